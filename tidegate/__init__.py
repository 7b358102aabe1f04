"""Tidegate applies Kafka events exactly once to Postgres, Elasticsearch and ClickHouse.

Everything an application imports stands here; the other packages are Tidegate's own business.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tidegate.version import __version__

if TYPE_CHECKING:
    from consumers.envelopes import CloudEvents, DebeziumOutbox, PlainJson
    from consumers.failure import RetryPolicy
    from consumers.flood import FloodLimit
    from consumers.formats import Json
    from consumers.parking import ParkingLimit
    from consumers.routes import Route, fold, on
    from consumers.topics import RecordTime, ScopeFields, Tombstone, Topic, VersionHeader
    from projections.clickhouse import ClickHouse
    from projections.elasticsearch import Elasticsearch
    from projections.writes import Delete, Upsert, Write
    from tidegate.app import App
    from tidegate.jobs.clockwork.declaration import Occasion, Page, ScheduledJob
    from tidegate.jobs.clockwork.maintenance_job import ByRule, MaintenanceJob
    from tidegate.jobs.clockwork.provider.declaration import Circuit, ProviderSyncJob, Pull, RateLimit
    from tidegate.jobs.clockwork.provider.http import HttpProvider
    from tidegate.jobs.clockwork.provider.pulling import AccessRefused, PageGone, ProviderAway, Pulled, Throttled
    from tidegate.jobs.clockwork.schedule import Cron, Every
    from tidegate.jobs.clockwork.scopes import AcrossScopes
    from tidegate.jobs.context import Context
    from tidegate.jobs.declaration import ConsumerJob, Dependency, FoldJob, ProjectionJob
    from tidegate.jobs.handlers import Handler, answer, fetch, handle, handle_batch
    from tidegate.jobs.text import Text
    from tidegate_kernel.errors import Rejected, RetryLater, TidegateError
    from tidegate_kernel.event import Event, Scope

__all__ = [
    "AccessRefused",
    "AcrossScopes",
    "App",
    "ByRule",
    "Circuit",
    "ClickHouse",
    "CloudEvents",
    "ConsumerJob",
    "Context",
    "Cron",
    "DebeziumOutbox",
    "Delete",
    "Dependency",
    "Elasticsearch",
    "Event",
    "Every",
    "FloodLimit",
    "FoldJob",
    "Handler",
    "HttpProvider",
    "Json",
    "MaintenanceJob",
    "Occasion",
    "Page",
    "PageGone",
    "ParkingLimit",
    "PlainJson",
    "ProjectionJob",
    "ProviderAway",
    "ProviderSyncJob",
    "Pull",
    "Pulled",
    "RateLimit",
    "RecordTime",
    "Rejected",
    "RetryLater",
    "RetryPolicy",
    "Route",
    "ScheduledJob",
    "Scope",
    "ScopeFields",
    "Text",
    "Throttled",
    "TidegateError",
    "Tombstone",
    "Topic",
    "Upsert",
    "VersionHeader",
    "Write",
    "__version__",
    "answer",
    "fetch",
    "fold",
    "handle",
    "handle_batch",
    "on",
]

# Each name is imported when it is first asked for: `tidegate --help` and `tidegate.stack` need none of them. To type
# checkers the imports above say the same; a test compares the two.
_HOMES = {
    "consumers.envelopes": "CloudEvents DebeziumOutbox PlainJson",
    "consumers.failure": "RetryPolicy",
    "consumers.flood": "FloodLimit",
    "consumers.formats": "Json",
    "consumers.parking": "ParkingLimit",
    "consumers.routes": "Route fold on",
    "consumers.topics": "RecordTime ScopeFields Tombstone Topic VersionHeader",
    "projections.clickhouse": "ClickHouse",
    "projections.elasticsearch": "Elasticsearch",
    "projections.writes": "Delete Upsert Write",
    "tidegate.app": "App",
    "tidegate.jobs.clockwork.declaration": "Occasion Page ScheduledJob",
    "tidegate.jobs.clockwork.maintenance_job": "ByRule MaintenanceJob",
    "tidegate.jobs.clockwork.provider.declaration": "Circuit ProviderSyncJob Pull RateLimit",
    "tidegate.jobs.clockwork.provider.http": "HttpProvider",
    "tidegate.jobs.clockwork.provider.pulling": "AccessRefused PageGone ProviderAway Pulled Throttled",
    "tidegate.jobs.clockwork.schedule": "Cron Every",
    "tidegate.jobs.clockwork.scopes": "AcrossScopes",
    "tidegate.jobs.context": "Context",
    "tidegate.jobs.declaration": "ConsumerJob Dependency FoldJob ProjectionJob",
    "tidegate.jobs.handlers": "Handler answer fetch handle handle_batch",
    "tidegate.jobs.text": "Text",
    "tidegate_kernel.errors": "Rejected RetryLater TidegateError",
    "tidegate_kernel.event": "Event Scope",
}

if not TYPE_CHECKING:  # a type checker that saw it would take any name for one of ours

    def __getattr__(name: str) -> object:
        for home, names in _HOMES.items():
            if name in names.split():
                value = globals()[name] = getattr(import_module(home), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
