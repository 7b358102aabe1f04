"""How old the last success of jobs by the clock is, told by every process that runs them: the scope furthest behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.provider.declaration import ProviderSyncJob
from tidegate_kernel.event import JobId, Scope
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)

ScopesOf = Callable[[JobId], Awaitable[Sequence[Scope] | None]]
"""The scopes that a job works on today; None while its source does not tell."""


class Success(NamedTuple):
    """Of all scopes of a job the one that has waited longest.

    `succeeded_at`: when a run of it last ended well; before the first, since when one is due. `synced_until`: how far
    its provider has been asked, which is the cursor; None while one of the scopes has none, and for other jobs.
    """

    succeeded_at: datetime
    synced_until: datetime | None


class Successes:
    """The successes of some jobs, as metrics: those with a `freshness_sla`, and those with a provider's cursor."""

    def __init__(self, pool: Pool, jobs: Mapping[JobId, ClockJob], scopes_of: ScopesOf, metrics: Metrics) -> None:
        self._pool, self._scopes_of, self._metrics = pool, scopes_of, metrics
        self._jobs = {
            number: job
            for number, job in jobs.items()
            if job.freshness_sla is not None or isinstance(job, ProviderSyncJob)
        }
        for job in self._jobs.values():
            if job.freshness_sla is not None:
                metrics.freshness_sla.labels(job.code).set(job.freshness_sla.total_seconds())

    async def measure(self) -> None:
        """The metrics say what the database knows. Raises Transient."""
        scopes = {number: await self._scopes_of(number) for number in self._jobs}
        for number, found in (await self._read(scopes)).items():
            job = self._jobs[number]
            if job.freshness_sla is not None:
                self._metrics.run_succeeded.labels(job.code).set(found.succeeded_at.timestamp())
            if isinstance(job, ProviderSyncJob):
                until = found.synced_until
                self._metrics.provider_synced.labels(job.code).set(0 if until is None else until.timestamp())

    async def _read(self, scopes: Mapping[JobId, Sequence[Scope] | None]) -> Mapping[JobId, Success]:
        asked = [(number, scope) for number, listed in scopes.items() for scope in listed or ()]
        if not asked:
            return {}
        columns: tuple[list[Any], ...] = (
            [number for number, _ in asked],
            [scope.tenant for _, scope in asked],
            [scope.brand for _, scope in asked],
        )
        with translated_errors("look for successes"):
            async with self._pool.acquire(timeout=10) as connection:
                rows = await connection.fetch(_QUERIES["last_successes"], *columns)
        return {JobId(row["job"]): Success(row["succeeded_at"], row["synced_until"]) for row in rows}
