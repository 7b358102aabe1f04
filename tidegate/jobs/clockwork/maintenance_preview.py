"""What a job that removes things would remove: its own queries asked, in transactions that cannot write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from consumers.dispatch import HandlerFailed
from tidegate.jobs.blaming import Blaming
from tidegate.jobs.clockwork.items import Item, Items
from tidegate.jobs.clockwork.maintenance import expired_before
from tidegate.jobs.clockwork.maintenance_job import MaintenanceJob
from tidegate.jobs.clockwork.ordering import PageOrder
from tidegate.jobs.clockwork.runs import ClaimedRun, ClockRunId, Trigger
from tidegate.jobs.clockwork.units import RunHands
from tidegate_kernel.errors import TidegateError
from tidegate_kernel.event import JobId, Scope
from tidegate_kernel.lease import Token
from tidegate_kernel.postgres import translated_errors

_NOBODYS = UUID(int=0)


class QueryFailed(TidegateError):
    """The job's own code failed while it was asked what there is to remove."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a run for one scope would remove now, if nothing comes in its way: `items`, in `chunks` transactions.

    `passed_over`: what its query finds and makes no command of. `first`, `last`: keys of items; None where there are
    none, or the job is sensitive.
    """

    tenant: str
    brand: str
    expired_before: datetime | None
    items: int
    chunks: int
    passed_over: int
    first: str | None
    last: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Supposed:
    """A run that nobody asked for; `at`: its occasion."""

    scope: Scope
    at: datetime
    parameters: Mapping[str, str] = field(default_factory=dict)


async def preview(hands: RunHands, job: MaintenanceJob, supposed: Supposed) -> Preview:
    """Returns what a run would remove; Postgres itself refuses whatever would change something.

    Raises QueryFailed, Misconfigured, Transient.
    """
    run = await _pretended(hands, supposed)
    items, after = Items(job, run), None
    count, order = _Count(job), PageOrder(hands)
    while page := await _page(hands, items, after, count=count):
        await order.require(page, after=after)
        after = page[-1].key
    return Preview(
        tenant=run.scope.tenant,
        brand=run.scope.brand,
        expired_before=expired_before(job, run),
        items=count.items,
        chunks=count.chunks,
        passed_over=count.passed_over,
        first=count.first,
        last=count.last,
    )


class _Count:
    def __init__(self, job: MaintenanceJob) -> None:
        self._job = job
        self.items = self.chunks = self.passed_over = 0
        self.first: str | None = None
        self.last: str | None = None

    def add(self, page: Sequence[Item]) -> None:
        due = [item for item in page if self._job.command(item.arrival.event.data) is not None]
        self.items += len(due)
        self.passed_over += len(page) - len(due)
        self.chunks += bool(due) if self._job.unit == "batch" else len(due)
        if due and not self._job.is_sensitive:
            self.first, self.last = self.first or due[0].key, due[-1].key


async def _page(hands: RunHands, items: Items, after: str | None, *, count: _Count) -> Sequence[Item]:
    page = items.page(after)
    try:
        with translated_errors("dry run"):
            async with hands.pool.acquire(timeout=10) as connection, connection.transaction(readonly=True):
                answer = await hands.mediator.ask(page, connection)
        with Blaming(lambda: page, lambda error: error):
            batch = items.batch(answer, after=after)
            count.add(batch)
            return batch
    except HandlerFailed as failed:
        cause = failed.cause
        raise QueryFailed(f"job {hands.job.code!r}: its query failed: {type(cause).__name__}: {cause}") from cause


async def _pretended(hands: RunHands, supposed: Supposed) -> ClaimedRun:
    """The run as it would be claimed now, of a number and under a token that no run has."""
    with translated_errors("dry run"):
        async with hands.pool.acquire(timeout=10) as connection:
            now: datetime = await connection.fetchval("SELECT now()")
    return ClaimedRun(
        id=ClockRunId(0),
        job=JobId(0),
        scope=supposed.scope,
        scheduled_at=supposed.at,
        started_at=now,
        trigger=Trigger.MANUAL,
        lock_name="",
        missed=0,
        attempt=1,
        first_run=ClockRunId(0),
        parameters=supposed.parameters,
        correlation_id=_NOBODYS,
        token=Token(0),
    )
