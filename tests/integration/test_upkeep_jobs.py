"""Tidegate's own upkeep as jobs by the clock: seen, steered, and done by one worker at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from pydantic import SecretStr

from dlq.states import LetterState
from tests.integration.clockwork import Schedulers, Workshop, until
from tests.integration.test_letter_retention import keep, make_job, states
from tidegate import App, Every
from tidegate.jobs.clockwork import maintenance_upkeep
from tidegate.jobs.clockwork.history import RunRecord, recent_runs
from tidegate.jobs.clockwork.maintenance_job import MaintenanceJob
from tidegate.jobs.clockwork.maintenance_round import Round, UpkeepRoad
from tidegate.jobs.clockwork.requests import cancel_run
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import ClaimedRun, RunState
from tidegate.jobs.clockwork.scheduler import Scheduler
from tidegate.resources import Resources
from tidegate.upkeeping import Upkeep, open_upkeep
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Transient
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool
from tidegate_kernel.rounds import Tell
from tidegate_kernel.settings import Settings

pytestmark = pytest.mark.servers

APP = App(service="tests", owner="tests", jobs=[])
ALICE = Actor("alice", Role.OPERATOR)


class Workers:
    """Processes of a service without jobs of its own, on one database."""

    def __init__(self, pool: Pool, dsn: str) -> None:
        self.pool, self._stop = pool, asyncio.Event()
        self._settings = Settings(postgres_dsn=SecretStr(dsn))
        self.metrics = [Metrics(), Metrics()]

    async def begin(self) -> None:
        """A worker was there once, so that the schedules have begun."""
        async with AsyncExitStack() as opened:
            await self._start("w0", Metrics(), opened)

    @asynccontextmanager
    async def at_work(self, *, hours: int = 1) -> AsyncIterator[None]:
        """Two workers after so many hours in which there was none."""
        await self.begin()
        await self.pool.execute(
            "UPDATE tidegate.job_clock SET scheduled_until = scheduled_until - make_interval(hours => $1)", hours
        )
        async with AsyncExitStack() as opened:
            upkeeps = [await self._start(f"w{n}", each, opened) for n, each in enumerate(self.metrics)]
            running = [asyncio.create_task(upkeep.host.run(self._stop)) for upkeep in upkeeps]
            try:
                yield
            finally:
                self._stop.set()
                await asyncio.gather(*running)

    async def _start(self, owner: str, metrics: Metrics, opened: AsyncExitStack) -> Upkeep:
        threads = opened.enter_context(ThreadPoolExecutor(1))
        resources = Resources(self._settings, self.pool, SystemClock(), metrics, threads, owner)
        return await open_upkeep(APP, [], resources, stop=self._stop)

    async def runs(self) -> list[RunRecord]:
        async with self.pool.acquire() as connection:
            return list(await recent_runs(connection, "tests", code=None, limit=50))

    async def are_done(self, count: int) -> bool:
        return sum(run.state is RunState.DONE for run in await self.runs()) >= count


@pytest.fixture
def workers(pool: Pool, database: str, monkeypatch: pytest.MonkeyPatch) -> Workers:
    """Rounds are due at once, half an hour ago and in half an hour again, whatever time it is."""
    since_hour = (SystemClock().now() - timedelta(minutes=30) - datetime(1970, 1, 1, tzinfo=UTC)) % timedelta(hours=1)
    monkeypatch.setattr(maintenance_upkeep, "_EVERY", Every(timedelta(hours=1), since_hour))
    monkeypatch.setattr(maintenance_upkeep, "_DAILY", Every(timedelta(hours=1), since_hour))
    monkeypatch.setattr(maintenance_upkeep, "_SPREAD", timedelta(0))
    return Workers(pool, database)


async def test_upkeep_runs_by_the_clock_once_for_all_workers(workers: Workers, pool: Pool) -> None:
    """Two workers, one run of each kind, told of as any other job's: when, how it ended, how much it removed."""
    await keep(pool, await make_job(pool, "tests", "ledger"), LetterState.RESOLVED, count=700)

    async with workers.at_work():
        await until(lambda: workers.are_done(4))

    runs = {run.code: run for run in await workers.runs()}
    assert sorted(run.code for run in await workers.runs()) == [
        "tidegate.audit",
        "tidegate.inbox",
        "tidegate.letters",
        "tidegate.runs",
    ]
    assert (runs["tidegate.letters"].processed, runs["tidegate.letters"].trigger) == (700, "schedule")
    assert await states(pool) == []
    expired = [each.letters_expired.labels("ledger")._value.get() for each in workers.metrics]
    assert sorted(expired) == [0, 700]
    assert await pool.fetchval("SELECT succeeded_at IS NOT NULL FROM tidegate.inbox_upkeep")


async def test_downtime_is_made_up_for_by_one_round(workers: Workers) -> None:
    """A service that was away for a night has one night's heap, and needs no twelve rounds for it."""
    async with workers.at_work(hours=12):
        await until(lambda: workers.are_done(4))

    assert [(run.state, run.missed) for run in await workers.runs()] == [(RunState.DONE, 11)] * 4


async def test_ended_runs_leave_with_the_upkeep(workers: Workers, pool: Pool) -> None:
    """History has its retention, that of upkeep itself among them: a week."""
    await workers.begin()
    for days in (6, 8):
        await pool.execute(_ENDED, timedelta(days=days))

    async with workers.at_work():
        await until(lambda: workers.are_done(5))
        await until(lambda: _are_left(workers, 1))

    ages = [SystemClock().now() - run.scheduled_at for run in await workers.runs()]
    assert timedelta(days=6) < max(ages) < timedelta(days=7)


_ENDED = """
    INSERT INTO tidegate.job_run (job, scheduled_at, due_at, finished_at, trigger, state, lock_name)
    SELECT id, now() - $1::interval, now() - $1::interval, now() - $1::interval, 'schedule', 'done', '-'
    FROM tidegate.job WHERE code = 'tidegate.inbox'
"""


async def _are_left(workers: Workers, count: int) -> bool:
    ended_long_ago = SystemClock().now() - timedelta(days=2)
    return sum(run.scheduled_at < ended_long_ago for run in await workers.runs()) == count


class Rounds:
    """A job of upkeep whose round the test makes up."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.shop = pool, Workshop(pool)
        job = APP.clock_job("tidegate.letters")
        assert isinstance(job, MaintenanceJob)
        self.job = job
        self.chunks: list[int] = []

    async def started(self) -> tuple[Scheduler, ClaimedRun]:
        scheduler = await Schedulers(self.pool, self.shop.clock).start(self.job)
        self.shop.clock.move(hours=1, minutes=15)
        await scheduler.make_runs()
        (run,) = await scheduler.claim(1)
        return scheduler, run

    async def work_off(self, run: ClaimedRun, round_: Round) -> RunState | None:
        return await work_off(replace(self.shop.hands(self.job), road=partial(UpkeepRoad, round_)), run)

    def of(self, between: Callable[[int], Awaitable[None]]) -> Round:
        """Five chunks of ten things; `between` is what happens before each is told of."""

        async def round_(tell: Tell) -> None:
            for number in range(5):
                self.chunks.append(number)
                await between(number)
                await tell(10)

        return round_

    async def told(self) -> tuple[str, int, str | None]:
        first = "SELECT state, processed, error_message FROM tidegate.job_run ORDER BY id LIMIT 1"
        row = await self.pool.fetchrow(first)
        assert row is not None
        return tuple(row)


@pytest.fixture
def rounds(pool: Pool) -> Rounds:
    return Rounds(pool)


async def test_round_is_cancelled_between_chunks(rounds: Rounds) -> None:
    """An operator who sees it in the way need not wait for its end; what it has removed is told."""
    _, run = await rounds.started()

    async def cancel(number: int) -> None:
        if number == 2:
            await cancel_run(rounds.pool, ALICE, "tests", run.id, reason="in the way")

    assert await rounds.work_off(run, rounds.of(cancel)) is RunState.CANCELLED
    assert (rounds.chunks, await rounds.told()) == ([0, 1, 2], ("cancelled", 30, None))


async def test_round_ends_with_its_process_and_is_gone_on_with(rounds: Rounds) -> None:
    """SIGTERM: bounded by a chunk; the run is due again, for any other worker."""
    scheduler, run = await rounds.started()

    async def stop(number: int) -> None:
        if number == 1:
            rounds.shop.stop.set()

    async def nothing(_: int) -> None:
        return None

    assert await rounds.work_off(run, rounds.of(stop)) is RunState.DUE
    rounds.shop.stop.clear()
    (again,) = await scheduler.claim(1)
    assert await rounds.work_off(again, rounds.of(nothing)) is RunState.DONE
    assert (rounds.chunks, await rounds.told()) == ([0, 1, 0, 1, 2, 3, 4], ("done", 70, None))


async def test_worker_that_lost_its_lease_ends_its_round(rounds: Rounds) -> None:
    """Two workers that sweep the same pages do each other's work, at twice the cost."""
    scheduler, run = await rounds.started()

    async def sleep_too_long(number: int) -> None:
        if number == 1:
            await rounds.pool.execute("UPDATE tidegate.lease SET expires_at = now()")
            await scheduler.end_stalled(await scheduler.look())

    assert await rounds.work_off(run, rounds.of(sleep_too_long)) is None
    assert rounds.chunks == [0, 1]


async def test_what_stood_in_the_way_of_a_round_is_its_runs_error(rounds: Rounds) -> None:
    """`tidegate jobs runs` says why, and the next try is due in a minute, not in an hour."""
    scheduler, run = await rounds.started()

    async def fail(number: int) -> None:
        if number == 1:
            raise Transient("the store does not answer")

    assert await rounds.work_off(run, rounds.of(fail)) is RunState.FAILED
    assert await rounds.told() == ("failed", 10, "the store does not answer")
    assert await scheduler.claim(1) == []
    rounds.shop.clock.move(minutes=1)
    assert [each.trigger for each in await scheduler.claim(1)] == ["retry"]
