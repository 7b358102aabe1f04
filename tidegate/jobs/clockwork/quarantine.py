"""Items that failed: which there are, and how a person lets runs try the quarantined ones again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.runs import ClockRunId
from tidegate.jobs.clockwork.scheduler import register_clock_job
from tidegate_kernel.audit import permitted
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import Scope
from tidegate_kernel.permissions import Action, Actor, Deed
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostItem:
    """An item that failed. `key`: by what it is done once. One that is `quarantined` is tried again by no run."""

    code: str
    tenant: str
    brand: str
    key: str
    run: ClockRunId
    outcome: str
    error_class: str | None
    error_message: str | None
    decided_at: datetime


async def lost_items(connection: Connection, service: str, *, code: str | None, limit: int) -> Sequence[LostItem]:
    """Returns items that failed and were not done since, the newest first. Raises Transient."""
    with translated_errors("read items"):
        rows = await connection.fetch(_QUERIES["lost_items"], service, code, limit)
    return [LostItem(**row) for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What somebody wants to be tried again: quarantined items of a scope; `keys` None: all of them."""

    job: ClockJob
    scope: Scope
    keys: Sequence[str] | None
    reason: str


async def release_items(database: Connection | Pool, actor: Actor, service: str, release: Release) -> int:
    """The next run that meets the items tries them again; returns how many that are.

    Raises Denied, also without a reason; Misconfigured where one of the keys is not quarantined; Transient.
    """
    scope, keys = release.scope, release.keys
    # How many and not which: a key may be somebody's.
    told = {"items": "all" if keys is None else len(keys)}
    target = f"{service}.{release.job.code}"
    tenant, brand = scope.tenant or None, scope.brand or None
    deed = Deed(Action.DLQ_REPLAY, target, release.reason, told, tenant=tenant, brand=brand)
    async with permitted(database, actor, deed) as connection:
        number = await register_clock_job(connection, service, release.job)
        wanted = None if keys is None else list(keys)
        rows = await connection.fetch(_QUERIES["release_items"], number, scope.tenant, scope.brand, wanted)
        missing = sorted(set(keys or ()) - {row["key"] for row in rows})
        if missing:
            raise Misconfigured(
                f"job {release.job.code!r} has no quarantined item {missing[0]!r} of that tenant and brand; "
                f"'tidegate jobs items {release.job.code}' shows which it has"
            )
        return len(rows)
