"""A projection's runner that was asleep while somebody decided otherwise: what it writes when it wakes up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from dlq.runs import Outcome, RunKind, Wish, start_run
from projections.memory import MemorySink
from projections.writes import Upsert
from tests.integration.cut_connections import Answer, Cut, cut_pool
from tests.integration.parking_bench import GARBAGE, TOPICS, Noted, of_key
from tests.integration.replay_bench import ReplayBench
from tests.integration.road import MakeRoad
from tidegate import ProjectionJob, on
from tidegate_kernel.event import JobId
from tidegate_kernel.postgres import Connection, Pool

_DEADLINE_SECONDS = 20.0


@pytest.fixture
async def sink() -> MemorySink:
    made = MemorySink()
    await made.prepare()
    return made


@pytest.fixture
async def replays(make_road: MakeRoad, pool: Pool, database: str, sink: MemorySink) -> ReplayBench:
    """With one letter, which today's code can decode."""
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
    await road.handle([of_key(0, b"k", GARBAGE)])
    await pool.execute("UPDATE tidegate.dead_letter SET value = $1", b'{"n":1}')
    return ReplayBench(pool, database, job, sink=sink)


class Asleep(Cut):
    """The runner falls asleep when it has heard the answer to a statement."""

    async def pass_on(self, connection: Connection, statement: Awaitable[Answer]) -> Answer:
        answer = await statement
        self.statements += self.is_armed
        if self.is_armed and self.statements == self._at:
            self.reached.set()
            await self.may_go_on.wait()
        return answer


async def test_what_was_discarded_while_a_runner_slept_is_not_written(
    replays: ReplayBench, sink: MemorySink, database: str
) -> None:
    """G8: a discarded letter acts never. The store knows of no run and no lease, so the runner has to: behind whatever
    statement it slept, either nobody could discard the letter, or nothing of it reaches the store."""
    letters, discarded, at = await replays.letters(), [], 1
    while True:
        held = await replays.begin(letters)
        asleep = Asleep(at)
        async with cut_pool(database, asleep) as pool:
            runner = await replays.runner(held, pool=pool)
            asleep.is_armed = True
            frozen = asyncio.create_task(runner.run())
            reached = asyncio.create_task(asleep.reached.wait())
            async with asyncio.timeout(_DEADLINE_SECONDS):
                await asyncio.wait([frozen, reached], return_when=asyncio.FIRST_COMPLETED)
                had_written, is_discarded = bool(sink.rows()), await _discards(replays, letters)
                asleep.may_go_on.set()
                await asyncio.wait([frozen, reached])
        assert had_written or not (is_discarded and sink.rows()), at
        if had_written:
            break
        discarded.append(is_discarded)
        await replays.pool.execute("DELETE FROM tidegate.correction")
        await replays.pool.execute("UPDATE tidegate.dead_letter SET state = 'dead', decided_at = NULL")
        at += 1
    assert set(discarded) == {True, False}


async def _discards(replays: ReplayBench, letters: Sequence[UUID]) -> bool:
    """Whether the letters could be discarded; else somebody holds them."""
    try:
        async with replays.pool.acquire() as connection, connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = '300ms'")
            await connection.execute("UPDATE tidegate.replay SET lease_until = now() WHERE state = 'running'")
            wish = Wish(kind=RunKind.DISCARD, letters=letters, digest="", reason="test traffic", asked_by="tests")
            held = await start_run(connection, JobId(1), wish, holder="tests")
    except asyncpg.LockNotAvailableError:
        return False
    return await replays.work_off(held, kind=RunKind.DISCARD) == {Outcome.DISCARDED: 1}
