"""From schedules to runs, and from runs that are due to a process that works on them. Any number of processes at once.

What keeps them from doing anything twice stands in the database: an occurrence is one run for each scope by a unique
index, and a run is taken together with the lease of its scope.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import structlog

from inbox.store import register_job
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.runs import (
    LEASE_TTL,
    Claim,
    ClaimedRun,
    Found,
    RunState,
    Stalled,
    claim_runs,
    end_stalled,
    give_back_items,
    look,
    names_of,
    retry_run,
)
from tidegate.jobs.clockwork.schedule import Occurrence, each_occurrence, jitter, newest_occurrence
from tidegate.jobs.clockwork.scopes import lock_name, scopes_of
from tidegate_kernel import logs
from tidegate_kernel.clock import Clock, ServerClock
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import JobId, Scope
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.queries import load_queries

_log = structlog.get_logger(__name__)
_QUERIES = load_queries(__package__)

CLAIM_RULE = "clock"
"""What a job by the clock is registered with: it claims no events."""

# Runs that one statement makes: it locks nobody out for longer than some ten milliseconds.
_CHUNK = 500
# A source that asks a slow service must not hold up the other schedules of the process for long.
_SCOPES_SECONDS = 10.0


async def register_clock_job(connection: Connection, service: str, job: ClockJob) -> JobId:
    """Returns the job's number. Raises Misconfigured where its code belongs to a job of another kind."""
    return await register_job(connection, service=service, code=job.job_code, claim_rule=CLAIM_RULE)


async def register_clock_jobs(pool: Pool, service: str, jobs: Sequence[ClockJob]) -> Mapping[JobId, ClockJob]:
    """Returns the jobs by their numbers. Raises Misconfigured as `register_clock_job`, Transient."""
    with translated_errors("register jobs"):
        async with pool.acquire(timeout=10) as connection:
            return {await register_clock_job(connection, service, job): job for job in jobs}


class Scheduler:
    """The schedules of some jobs of a service, as one process sees them; `holder` names it on what it claims.

    A ServerClock is set by Postgres with each look: a process whose own clock is ahead makes no run too early, which
    would also keep the others from making theirs.
    """

    def __init__(
        self, pool: Pool, clock: Clock, *, service: str, holder: str, deps: Any = None, ttl: timedelta = LEASE_TTL
    ) -> None:
        self._pool, self._clock, self._service, self._holder = pool, clock, service, holder
        self._deps, self._ttl = deps, ttl
        self._jobs: dict[JobId, ClockJob] = {}
        self._next: dict[JobId, datetime] = {}
        self._scopes: dict[JobId, Sequence[Scope] | None] = {}

    @property
    def jobs(self) -> Mapping[JobId, ClockJob]:
        """The jobs that were begun, by their numbers."""
        return self._jobs

    @property
    def next_occurrence(self) -> datetime | None:
        """When a schedule next has something to be made into runs; what is overdue by now waits for something else."""
        now = self._clock.now()
        return min((due for due in self._next.values() if due > now), default=None)

    async def begin(self, jobs: Sequence[ClockJob]) -> None:
        """The jobs are registered; a new or changed schedule owes nothing. Raises Misconfigured, Transient."""
        await self.look()  # at the clock
        for job in jobs:
            async with self._transaction() as connection:
                number = await register_clock_job(connection, self._service, job)
                schedule = str(job.trigger or "by hand")
                await connection.execute(_QUERIES["begin_clock"], number, self._clock.now(), schedule)
            self._jobs[number] = job
        for number, (until, _) in (await self._read_clocks(list(self._jobs))).items():
            self._note(number, until)

    async def make_runs(self) -> int:
        """What has come due is made into runs, unless its job is paused: then its schedule stands still.

        Returns how many runs were made by this process, those skipped for an overlap among them. Raises Transient, and
        whatever a job's scopes raise.
        """
        now = self._clock.now()
        overdue = [number for number, due in self._next.items() if due <= now]
        if not overdue:
            return 0
        made = 0
        for number, (until, is_paused) in (await self._read_clocks(overdue)).items():
            if not is_paused:
                made += await self._make_runs_of(number, until, now)
        return made

    async def claim(self, limit: int) -> Sequence[ClaimedRun]:
        """At most `limit` runs that are due are this process's, fewer where no more can be had. Raises Transient."""
        claimed: list[ClaimedRun] = []
        has_more = True
        while has_more and len(claimed) < limit:
            try:
                claim = await self._claim(limit - len(claimed))
            except Transient:
                if not claimed:
                    raise
                break  # what has been claimed is to be worked on, and its leases have begun
            claimed += claim.runs
            has_more = claim.has_more
        return claimed

    async def _claim(self, limit: int) -> Claim:
        # A transaction of its own each time: two that went on with one lease in hand could wait for each other.
        async with self._transaction() as connection:
            return await claim_runs(
                connection, list(self._jobs), now=self._clock.now(), limit=limit, holder=self._holder, ttl=self._ttl
            )

    async def look(self) -> Found:
        """Returns what there is to do. Raises Transient."""
        with translated_errors("look for runs"):
            async with self._pool.acquire(timeout=10) as connection:
                found = await look(connection, list(self._jobs), now=self._clock.now())
        self._hear(found.now)
        return found

    async def held_up(self) -> Mapping[JobId, int]:
        """Returns how many due runs of each job wait because another run has their lock. Raises Transient."""
        with translated_errors("look for runs"):
            async with self._pool.acquire(timeout=10) as connection:
                rows = await connection.fetch(_QUERIES["held_up_runs"], list(self._jobs), self._clock.now())
        return {JobId(row["job"]): row["runs"] for row in rows}

    async def end_stalled(self, found: Found) -> Sequence[Stalled]:
        """Runs without a holder are `stalled`; another goes on with each, as often as its job allows. Raises Transient.

        They are known by the token of their lease: a process of the same name as the dead one is no sign of life.
        """
        if not found.gone:
            return []
        async with self._transaction() as connection:
            stalled = await end_stalled(connection, found.gone)
            for run in stalled:
                if not run.is_over and run.attempt < self._jobs[run.job].run_attempts:
                    await retry_run(connection, run.id, due_at=self._clock.now())
                else:
                    await give_back_items(connection, run.id)
        for run in stalled:
            _log.warning(logs.RUN_STALLED, **names_of(self._jobs[run.job].code, run))
        return stalled

    def _hear(self, now: datetime) -> None:
        if isinstance(self._clock, ServerClock):
            self._clock.hear(now)

    async def _make_runs_of(self, number: JobId, until: datetime, now: datetime) -> int:
        job = self._jobs[number]
        occurrences = _occurrences(job, after=until, now=now)
        scopes = await self._scopes_of(job) if occurrences else []
        if scopes is None:
            return 0
        if occurrences:
            self._scopes[number] = scopes
        made = 0
        for occurrence in occurrences:
            for start in range(0, len(scopes), _CHUNK):
                made += await self._insert(number, occurrence, scopes[start : start + _CHUNK])
        if occurrences:
            # Last: a process that dies before this is followed by one that makes the same runs again, in vain.
            async with self._transaction() as connection:
                await connection.execute(_QUERIES["move_clock"], number, occurrences[-1].scheduled_at)
        self._note(number, occurrences[-1].scheduled_at if occurrences else until)
        return made

    async def known_scopes(self, number: JobId) -> Sequence[Scope] | None:
        """The scopes of a job as of its last occurrence; asked for before the first. None: its source did not tell."""
        if number not in self._scopes:
            self._scopes[number] = await self._scopes_of(self._jobs[number])
        return self._scopes[number]

    async def _scopes_of(self, job: ClockJob) -> Sequence[Scope] | None:
        """None where the job's own source fails or hangs: that holds up its own runs only, which are made later."""
        asked = asyncio.create_task(scopes_of(job.code, job.scopes, self._deps), name=f"scopes-{job.code}")
        try:
            await asyncio.wait([asked], timeout=_SCOPES_SECONDS)
        finally:
            asked.cancel()  # no effect once it is done
        if not asked.done():
            _log.error(logs.SCOPES_UNKNOWN, job=job.code, error=f"no answer within {_SCOPES_SECONDS:g} s")
            return None
        if asked.cancelled() or (error := asked.exception()) is not None:
            _log.error(logs.SCOPES_UNKNOWN, job=job.code, exc_info=None if asked.cancelled() else error)
            return None
        return asked.result()

    async def _insert(self, number: JobId, occurrence: Occurrence, scopes: Sequence[Scope]) -> int:
        job = self._jobs[number]
        locks = [lock_name(self._service, job.lock_key or job.code, scope) for scope in scopes]
        due = [occurrence.scheduled_at + _delay(job, scope, occurrence.scheduled_at) for scope in scopes]
        async with self._transaction() as connection:
            rows = await connection.fetch(
                _QUERIES["schedule_runs"],
                number,
                occurrence.scheduled_at,
                [scope.tenant for scope in scopes],
                [scope.brand for scope in scopes],
                due,
                locks,
                occurrence.missed,
                self._clock.now(),
                job.overlap == "skip",
            )
        skipped = sum(row["state"] == RunState.SKIPPED_OVERLAP for row in rows)
        if skipped:
            _log.warning(logs.RUNS_SKIPPED, job=job.code, scheduled_at=str(occurrence.scheduled_at), scopes=skipped)
        return len(rows)

    def _note(self, number: JobId, until: datetime) -> None:
        trigger = self._jobs[number].trigger
        if trigger is not None:
            self._next[number] = trigger.next_after(until)

    async def _read_clocks(self, numbers: Sequence[JobId]) -> Mapping[JobId, tuple[datetime, bool]]:
        with translated_errors("read schedules"):
            async with self._pool.acquire(timeout=10) as connection:
                rows = await connection.fetch(_QUERIES["read_clocks"], list(numbers))
        return {JobId(row["job"]): (row["scheduled_until"], row["is_paused"]) for row in rows}

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Connection]:
        with translated_errors("schedule"):
            async with self._pool.acquire(timeout=10) as connection, connection.transaction():
                yield connection


def _delay(job: ClockJob, scope: Scope, scheduled_at: datetime) -> timedelta:
    return jitter(lock_name("", job.code, scope), scheduled_at, job.jitter)


def _occurrences(job: ClockJob, *, after: datetime, now: datetime) -> Sequence[Occurrence]:
    if job.trigger is None:
        return []
    if job.catch_up == "each":
        return each_occurrence(job.trigger, after=after, now=now, most=job.catch_up_limit)
    newest = newest_occurrence(job.trigger, after=after, now=now)
    return [] if newest is None else [newest]
