"""Runs as they stand, and how long they are remembered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.runs import ClockRunId, RunState, Trigger
from tidegate_kernel.clock import Clock
from tidegate_kernel.event import JobId
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.queries import load_queries
from tidegate_kernel.rounds import Tell, tell_nobody

_QUERIES = load_queries(__package__)

# Deleting so many takes some ten milliseconds; after that it lets others have their turn.
_CHUNK = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run as it stands, for people."""

    id: ClockRunId
    code: str
    tenant: str
    brand: str
    scheduled_at: datetime
    due_at: datetime
    trigger: Trigger
    state: RunState
    missed: int
    attempt: int
    first_run: int | None
    asked_by: str | None
    reason: str
    correlation_id: UUID
    holder: str | None
    processed: int
    skipped: int
    failed: int
    cancel_asked_by: str | None
    error_class: str | None
    error_message: str | None
    created_at: datetime
    started_at: datetime | None
    moved_at: datetime | None
    finished_at: datetime | None


async def recent_runs(connection: Connection, service: str, *, code: str | None, limit: int) -> Sequence[RunRecord]:
    """Returns the newest runs first. Raises Transient."""
    with translated_errors("read runs"):
        rows = await connection.fetch(_QUERIES["clock_runs"], service, code, limit)
    return [RunRecord(**{**row, "trigger": Trigger(row["trigger"]), "state": RunState(row["state"])}) for row in rows]


class History:
    """Forgets ended runs and what they did, after the time that each job says. Any number of processes at once."""

    def __init__(self, pool: Pool, clock: Clock, jobs: Mapping[JobId, ClockJob]) -> None:
        self._pool, self._clock, self._jobs = pool, clock, jobs

    async def forget(self, tell: Tell = tell_nobody) -> int:
        """Returns how many runs were removed; `tell` hears of runs and results. Raises Transient."""
        removed = 0
        for number, job in self._jobs.items():
            before = self._clock.now() - job.history
            removed += await self._drop(_QUERIES["drop_ended_runs"], number, before, tell=tell)
            if job.forgets_items:
                since = self._clock.now() - job.results_kept
                await self._drop(_QUERIES["drop_done_items"], number, since, tell=tell)
                if job.forgets_failures:
                    await self._drop(_QUERIES["drop_failed_items"], number, since, tell=tell)
        return removed

    async def _drop(self, query: str, number: JobId, before: datetime, *, tell: Tell) -> int:
        removed = 0
        while True:
            async with self._connection() as connection:
                rows = await connection.fetch(query, number, before, _CHUNK)
            removed += len(rows)
            await tell(len(rows))
            if len(rows) < _CHUNK:
                return removed

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        with translated_errors("forget runs"):
            async with self._pool.acquire(timeout=10) as connection:
                yield connection
