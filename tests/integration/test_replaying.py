"""A run worked off by one process, on real Postgres: held while it takes long, left resumable, told as it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from pydantic import SecretStr

from dlq.runs import Outcome, RunKind, RunState
from projections.memory import MemorySink
from projections.sink import Applied
from tests.integration.parking_bench import BAD, GARBAGE, TOPICS, Bench, Note, Noted, make_bench, of_key, parking_job
from tests.integration.road import MakeRoad, Road
from tidegate import App, Context, ProjectionJob, Rejected, Upsert, handle, on
from tidegate.jobs.declaration import Job
from tidegate.jobs.replays import Asked
from tidegate.replaying import ReplayOptions, ReplayProgress, ReplayReport, resume_replay, run_replay
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import ReplayId
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import Settings

ANNA = Actor("anna", Role.OPERATOR)
K, L = b"k", b"l"


@dataclass
class Runner:
    """One process after the other, working on the letters of one job; its handlers and sink as they are now."""

    pool: Pool
    dsn: str
    job: Job
    app: App
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    progress: list[ReplayProgress] = field(default_factory=list)

    async def replay(self, letters: Sequence[UUID] | None = None) -> ReplayReport:
        rows = await self.pool.fetch("SELECT id FROM tidegate.dead_letter WHERE state = 'dead'")
        chosen = [row["id"] for row in rows] if letters is None else letters
        asked = Asked(code=self.job.job_code, kind=RunKind.REPLAY, letters=chosen, digest="d", reason="mended")
        return await run_replay(self.app, self._settings, asked, self._options, actor=ANNA, stop=self.stop)

    async def resume(self, run: int = 1, *, kind: RunKind = RunKind.REPLAY) -> ReplayReport:
        return await resume_replay(
            self.app, self._settings, ReplayId(run), self._options, kind=kind, actor=ANNA, stop=self.stop
        )

    async def states(self) -> list[str]:
        rows = await self.pool.fetch('SELECT state FROM tidegate.dead_letter ORDER BY "offset"')
        return [row["state"] for row in rows]

    async def run_state(self) -> str:
        state: str = await self.pool.fetchval("SELECT state FROM tidegate.replay ORDER BY id DESC LIMIT 1")
        return state

    @property
    def _settings(self) -> Settings:
        return Settings(postgres_dsn=SecretStr(self.dsn))

    @property
    def _options(self) -> ReplayOptions:
        return ReplayOptions(on_progress=self.progress.append)


@pytest.fixture
async def bench(make_road: MakeRoad) -> Bench:
    return await make_bench(make_road)


def runner_of(pool: Pool, dsn: str, handler: Any) -> Runner:
    job = parking_job()
    return Runner(pool, dsn, job, App(service="tests", owner="tests", jobs=[job], handlers=[handle(Note, handler)]))


async def lenient(command: Note, ctx: Context[None]) -> None:
    await ctx.db.execute("INSERT INTO effect (id, n) VALUES ($1, $2)", command.id, command.n)


async def test_the_report_says_what_failed_behind_the_letters_too(bench: Bench, pool: Pool, database: str) -> None:
    """The letter came to its end, and yet something is wrong: a parked event failed in its turn."""

    async def not_the_second(command: Note, ctx: Context[None]) -> None:
        await lenient(command, ctx)
        if command.id == "e1":
            raise Rejected("not this one")

    await bench.settle([of_key(0, K, BAD), of_key(1, K), of_key(2, K)])

    report = await runner_of(pool, database, not_the_second).replay()

    assert (dict(report.run.outcomes), report.run.parked, report.run.failed_events) == ({Outcome.RESOLVED: 1}, 1, 1)
    assert (report.run.is_clean, report.run.state, report.run.left) == (False, RunState.DONE, 0)
    assert await bench.parked() == ["e2"]


async def test_a_run_stays_its_runners_while_one_batch_takes_long(
    bench: Bench, pool: Pool, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G9: slow handlers must not make a living runner look dead, or another would end its run under it."""
    monkeypatch.setattr("tidegate.replay_lease.LEASE_SECONDS", 0.3)

    async def until(connection: Any) -> datetime:
        found: datetime = await connection.fetchval("SELECT lease_until FROM tidegate.replay")
        return found

    async def until_renewed(command: Note, ctx: Context[None]) -> None:
        await lenient(command, ctx)
        connection = await asyncpg.connect(database)
        try:
            first = await until(connection)
            async with asyncio.timeout(10):
                while await until(connection) == first:
                    await asyncio.sleep(0.05)
        finally:
            await connection.close()

    await bench.settle([of_key(0, K, BAD)])

    report = await runner_of(pool, database, until_renewed).replay()

    assert report.run.is_clean


async def test_a_stop_is_heard_before_a_batch_begins(bench: Bench, pool: Pool, database: str) -> None:
    """G10: letters that were not tried are as they were, and the run goes on where it stood."""
    await bench.settle([of_key(0, K, BAD), of_key(1, L, BAD)])
    runner = runner_of(pool, database, lenient)
    runner.stop.set()

    stopped = await runner.replay()

    assert (stopped.run.state, dict(stopped.run.outcomes)) == (RunState.STOPPED, {Outcome.NOT_TRIED: 2})
    assert (stopped.run.is_clean, await runner.states()) == (False, ["dead", "dead"])
    runner.stop.clear()
    resumed = await runner.resume()
    assert (resumed.run.is_clean, dict(resumed.run.outcomes)) == (True, {Outcome.RESOLVED: 2})
    assert runner.progress[-1] == ReplayProgress(2, 2, 0)


class Defective(MemorySink):
    """A store whose client has a defect: not an outage, not the record's fault."""

    is_defective = True

    async def apply(self, encoded: Sequence[Any]) -> Applied:
        if self.is_defective:
            raise RuntimeError("a defect of ours")
        return await super().apply(encoded)


@asynccontextmanager
async def _projection(make_road: MakeRoad, pool: Pool, dsn: str) -> AsyncIterator[tuple[Runner, Road, Defective]]:
    """A job whose documents have the number in their events as version, and the key of one document."""
    sink = Defective()
    await sink.prepare()
    sink.is_defective = False
    job = ProjectionJob(
        code="search",
        topics=TOPICS,
        unlisted="skip",
        runbook="-",
        events=[on("noted", Noted, lambda event: Upsert("k", event.data.n, {"n": event.data.n}))],
        sink=sink,
        freshness_sla=timedelta(seconds=5),
    )
    road = await make_road(job, sink=sink)
    yield Runner(pool, dsn, job, App(service="tests", owner="tests", jobs=[job])), road, sink


async def test_a_run_is_left_resumable_whatever_ends_it(make_road: MakeRoad, pool: Pool, database: str) -> None:
    """A defect nobody thought of is found at night: letters that hang in a dead run would be the second one."""
    async with _projection(make_road, pool, database) as (runner, road, sink):
        await road.handle([of_key(0, K, GARBAGE)])
        await pool.execute("UPDATE tidegate.dead_letter SET value = $1", b'{"n":1}')
        sink.is_defective = True

        with pytest.raises(RuntimeError, match="a defect of ours"):
            await runner.replay()

        assert (await runner.run_state(), await runner.states()) == ("stopped", ["dead"])
        sink.is_defective = False
        assert (await runner.resume()).run.is_clean
        assert sink.rows() == {"k": {"n": 1}}


async def test_a_letter_that_newer_events_have_overtaken_changes_nothing(
    make_road: MakeRoad, pool: Pool, database: str
) -> None:
    """Case 60: version 1 failed, version 2 was applied; replayed, version 1 is superseded and 2 stays."""
    async with _projection(make_road, pool, database) as (runner, road, sink):
        await road.handle([of_key(0, K, GARBAGE), of_key(1, K, b'{"n":2}')])
        await pool.execute("UPDATE tidegate.dead_letter SET value = $1", b'{"n":1}')

        report = await runner.replay()

        assert (report.run.is_clean, dict(report.run.outcomes)) == (True, {Outcome.SUPERSEDED: 1})
        assert sink.rows() == {"k": {"n": 2}}
        assert await runner.states() == ["superseded"]


async def test_a_run_is_resumed_as_what_it_is(bench: Bench, pool: Pool, database: str) -> None:
    """Discarding what was to be replayed would be another permission, and another effect."""
    await bench.settle([of_key(0, K, BAD)])
    runner = runner_of(pool, database, lenient)
    runner.stop.set()
    await runner.replay()

    with pytest.raises(Misconfigured, match="tidegate dlq replay --resume 1"):
        await runner.resume(kind=RunKind.DISCARD)
