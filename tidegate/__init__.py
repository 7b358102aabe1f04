"""Tidegate applies Kafka events exactly once to Postgres, Elasticsearch and ClickHouse.

Everything an application imports stands here; the other packages are Tidegate's own business.
"""

from consumers.envelopes import CloudEvents, DebeziumOutbox, PlainJson
from consumers.failure import RetryPolicy
from consumers.flood import FloodLimit
from consumers.formats import Json
from consumers.parking import ParkingLimit
from consumers.routes import Route, on
from consumers.topics import ScopeFields, Tombstone, Topic
from projections.clickhouse import ClickHouse
from projections.elasticsearch import Elasticsearch
from projections.writes import Delete, Upsert, Write
from tidegate.app import App
from tidegate.jobs.context import Context
from tidegate.jobs.declaration import ConsumerJob, Dependency, ProjectionJob
from tidegate.jobs.handlers import Handler, handle, handle_batch
from tidegate.version import __version__
from tidegate_kernel.errors import Rejected, RetryLater, TidegateError
from tidegate_kernel.event import Event, Scope

__all__ = [
    "App",
    "ClickHouse",
    "CloudEvents",
    "ConsumerJob",
    "Context",
    "DebeziumOutbox",
    "Delete",
    "Dependency",
    "Elasticsearch",
    "Event",
    "FloodLimit",
    "Handler",
    "Json",
    "ParkingLimit",
    "PlainJson",
    "ProjectionJob",
    "Rejected",
    "RetryLater",
    "RetryPolicy",
    "Route",
    "Scope",
    "ScopeFields",
    "TidegateError",
    "Tombstone",
    "Topic",
    "Upsert",
    "Write",
    "__version__",
    "handle",
    "handle_batch",
    "on",
]
