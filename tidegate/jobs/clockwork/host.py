"""The part of a worker that runs jobs by the clock: it schedules, claims as much as it has room for, and works.

An idle host asks the database one question every half heartbeat. A schedule is made into runs when it comes due, not
when somebody looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.provider.calling import CallOutcome
from tidegate.jobs.clockwork.provider.declaration import ProviderSyncJob
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import HEARTBEAT, ClaimedRun, Found, RunState, Tally, names_of
from tidegate.jobs.clockwork.scheduler import Scheduler
from tidegate.jobs.clockwork.success import Successes
from tidegate.jobs.clockwork.units import RunHands
from tidegate_kernel import logs
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import JobId
from tidegate_kernel.metrics import Metrics

_log = structlog.get_logger(__name__)

# An SLA is minutes or hours, and the alert reckons on from what was told last.
_SUCCESSES_EVERY_SECONDS = 60.0

RUNS_AT_ONCE = 4
"""Runs of one process side by side. Each holds a connection while it works; more replicas carry more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often a process gives signs of life, and how many runs it works on at once.

    Leases last `heartbeat` and a half, and runs without a holder are looked for every half: what a dead process has
    left is found within two.
    """

    heartbeat: timedelta = HEARTBEAT
    runs_at_once: int = RUNS_AT_ONCE
    grace: timedelta = timedelta(seconds=20)

    @property
    def lease_ttl(self) -> timedelta:
        return self.heartbeat * 1.5

    @property
    def look_seconds(self) -> float:
        return self.heartbeat.total_seconds() / 2


class ClockHost:
    """Runs the jobs of `hands` in this process until `stop`, which is also the hands' own.

    `successes`: once a minute it is told how old the last success of those jobs is that promise it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        hands: Mapping[JobId, RunHands],
        *,
        clock: Clock,
        metrics: Metrics,
        pace: Pace,
        successes: Successes | None = None,
    ) -> None:
        self._scheduler, self._hands, self._clock, self._metrics = scheduler, hands, clock, metrics
        self._pace, self._successes, self._successes_at = pace, successes, clock.monotonic()
        self._at_work: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self.last_sign = clock.monotonic()
        for each in hands.values():
            _count_from_zero(metrics, each.job)

    async def run(self, stop: asyncio.Event) -> None:
        """Returns after `stop`, with every run given back after its unit in hand, or cut off after the grace period."""
        stopping = asyncio.create_task(self._wake_at(stop), name="clock-stop")
        try:
            async with asyncio.TaskGroup() as tasks:
                while not stop.is_set():
                    wait_seconds = await self._turn(tasks)
                    await self._rest(wait_seconds)
                await self._leave()
        finally:
            stopping.cancel()

    async def _turn(self, tasks: asyncio.TaskGroup) -> float:
        """Does what there is to do now; returns after how many seconds there may be more."""
        self.last_sign = self._clock.monotonic()
        try:
            await self._scheduler.make_runs()
            found = await self._scheduler.look()
            if stalled := await self._scheduler.end_stalled(found):
                for run in stalled:
                    self._metrics.runs.labels(self._scheduler.jobs[run.job].code, RunState.STALLED).inc()
                found = await self._scheduler.look()  # others go on with them
            self._measure(found)
            if found.next_due_at is not None and found.next_due_at <= self._clock.now():
                await self._claim(tasks, due=sum(found.due.values()))
            await self._look_for_what_was_away()
            await self._measure_successes()
        except Transient as error:
            _log.warning(logs.SCHEDULE_HELD_BACK, error=str(error))
            return self._pace.look_seconds
        return self._seconds_until(found.next_due_at)

    async def _claim(self, tasks: asyncio.TaskGroup, *, due: int) -> None:
        room = self._pace.runs_at_once - len(self._at_work)
        runs = await self._scheduler.claim(room) if room > 0 else []
        for run in runs:
            task = tasks.create_task(self._work(run), name=f"run-{run.id}")
            self._at_work.add(task)
            task.add_done_callback(self._ended)
        if len(runs) < min(room, due):
            await self._count_held_up()

    async def _look_for_what_was_away(self) -> None:
        """A breaker opens when a run fails; that it closes again must not wait for a run that fails once more."""
        for hands in self._hands.values():
            if hands.outages is not None and hands.outages.open:
                await hands.outages.all_answer()

    async def _count_held_up(self) -> None:
        """Asked only where there was room, and more stood there as due than could be had."""
        for number, runs in (await self._scheduler.held_up()).items():
            self._metrics.run_contention.labels(self._scheduler.jobs[number].code).inc(runs)

    async def _work(self, run: ClaimedRun) -> None:
        told = names_of(self._hands[run.job].job.code, run)
        try:
            await work_off(self._hands[run.job], run, ttl=self._pace.lease_ttl)
        except Transient as error:
            # Its lease runs out, and whoever finds it goes on with it.
            _log.warning(logs.RUN_LOST, **told, error=str(error))
        except Exception as error:
            # A defect in one run must not cut off the others of this process; found without a holder, it is `stalled`.
            _log.error(logs.RUN_LOST, **told, exc_info=error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._at_work.discard(task)
        self._wake.set()

    def _measure(self, found: Found) -> None:
        for number, job in self._scheduler.jobs.items():
            self._metrics.runs_due.labels(job.code).set(found.due.get(number, 0))

    async def _measure_successes(self) -> None:
        if self._successes is not None and self._clock.monotonic() >= self._successes_at:
            await self._successes.measure()
            self._successes_at = self._clock.monotonic() + _SUCCESSES_EVERY_SECONDS

    def _seconds_until(self, due_at: datetime | None) -> float:
        """Until the next occurrence, run or look: what is due and cannot be had waits for that."""
        now = self._clock.now()
        times = [at for at in (self._scheduler.next_occurrence, due_at) if at is not None and at > now]
        return min([self._pace.look_seconds, *((at - now).total_seconds() for at in times)])

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _wake_at(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._wake.set()

    async def _leave(self) -> None:
        if self._at_work:
            await asyncio.wait(self._at_work, timeout=self._pace.grace.total_seconds())
        for task in self._at_work:
            task.cancel()


def _count_from_zero(metrics: Metrics, job: ClockJob) -> None:
    """Prometheus sees no increase in a counter that begins at one: the first failure would raise no alert."""
    code = job.code
    for state in (RunState.FAILED, RunState.STALLED):
        metrics.runs.labels(code, state)
    for outcome in Tally._fields:
        metrics.run_items.labels(code, outcome)
    metrics.run_contention.labels(code)
    if isinstance(job, ProviderSyncJob):
        for told in CallOutcome:
            metrics.provider_calls.labels(code, told)
