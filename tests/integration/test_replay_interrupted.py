"""A replay that is interrupted at every one of its statements: it acts once, in order, and adds up (G2, G8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from dlq.runs import Outcome, RunState
from tests.integration.cut_connections import Cut, cut_pool
from tests.integration.parking_bench import BAD, Bench, make_bench, of_key
from tests.integration.replay_bench import ReplayBench, failing_for
from tests.integration.road import MakeRoad
from tidegate_kernel.errors import LeaseLost
from tidegate_kernel.postgres import Pool

_DEADLINE_SECONDS = 20.0


@pytest.fixture
async def bench(make_road: MakeRoad) -> Bench:
    return await make_bench(make_road)


@pytest.fixture
def replays(pool: Pool, database: str) -> ReplayBench:
    return ReplayBench(pool, database)


class Story:
    """A key with a letter, events parked behind it in two partitions, one of which fails; and a second letter. Each
    telling has keys and events of its own."""

    def __init__(self, bench: Bench, replays: ReplayBench) -> None:
        self._bench, self._replays, self._number = bench, replays, 0

    async def begin(self) -> None:
        if not self._number:
            # Not by where they stand: a row that was rolled back leaves its place to a later one.
            await self._bench.pool.execute("ALTER TABLE effect ADD COLUMN moment bigserial")
        self._number += 1
        self._ids = [f"{name}-{self._number}" for name in ("bad", "one", "two", "three", "four")]
        key = b"k%d" % self._number
        first = self._next_offset(0)
        bad, one, two, three, four = self._ids
        await self._bench.settle([of_key(first, key, BAD, id=bad), of_key(first + 1, key, id=one)])
        away = self._next_offset(1)
        await self._bench.settle([of_key(away, key, id=two), of_key(away + 1, key, id=three)], partition=1)
        await self._bench.settle([of_key(first + 2, key + b"'", BAD, id=four)])
        self._replays.handlers = failing_for(three)

    def _next_offset(self, partition: int) -> int:
        places = [place for at, place in self._bench.places.items() if at.partition == partition]
        return places[0].next_offset if places else 0

    async def is_told_well(self, run: int) -> None:
        bad, one, two, three, four = self._ids
        rows = await self._bench.pool.fetch("SELECT id FROM effect WHERE id = ANY($1) ORDER BY moment", self._ids)
        effects = [row["id"] for row in rows]
        assert [each for each in effects if each != four] == [bad, one, two]
        assert effects.count(four) == 1
        rows = await self._bench.pool.fetch(
            "SELECT event_id, state FROM tidegate.dead_letter WHERE event_id = ANY($1)", self._ids
        )
        assert {row["event_id"]: row["state"] for row in rows} == {bad: "resolved", four: "resolved", three: "dead"}
        row = await self._bench.pool.fetchrow(
            """SELECT state, parked, failed_events, (SELECT count(*) FROM tidegate.parked) FROM tidegate.replay
            WHERE id = $1""",
            run,
        )
        assert row is not None
        assert tuple(row) == (RunState.DONE, 3, 1, 0)
        await self._bench.pool.execute("DELETE FROM tidegate.blocking_letter; DELETE FROM tidegate.blocked_key")
        await self._bench.pool.execute("UPDATE tidegate.dead_letter SET state = 'discarded' WHERE state = 'dead'")


@pytest.fixture
async def story(bench: Bench, replays: ReplayBench) -> AsyncIterator[Story]:
    async with asyncio.timeout(500):
        yield Story(bench, replays)


async def count_of_statements(story: Story, replays: ReplayBench, database: str) -> int:
    cut = Cut()
    await story.begin()
    held = await replays.begin()
    async with cut_pool(database, cut) as pool:
        runner = await replays.runner(held, pool=pool)
        cut.is_armed = True
        await runner.run()
    await story.is_told_well(held.run)
    return cut.statements


@pytest.mark.timeout(600)
async def test_an_answer_lost_at_any_statement_changes_nothing(
    story: Story, replays: ReplayBench, database: str
) -> None:
    """G2, Case 61: the server has done what was asked, perhaps the COMMIT, and nobody heard. The runner looks again,
    acts once, goes on behind it, and what it tells adds up: also that an event behind a letter has failed, by which the
    command ends with 1."""
    for at in range(1, await count_of_statements(story, replays, database) + 1):
        await story.begin()
        held = await replays.begin()
        cut = Cut(at)
        async with cut_pool(database, cut) as pool:
            runner = await replays.runner(held, pool=pool)
            cut.is_armed = True
            assert await runner.run(), at
        await story.is_told_well(held.run)
        assert runner.tally.outcomes == {Outcome.RESOLVED: 2}, at
        run = await replays.run(held)
        assert (run.outcomes, run.is_clean) == ({Outcome.RESOLVED: 2}, False), at


@pytest.mark.timeout(600)
async def test_a_runner_killed_behind_any_statement_is_succeeded(
    story: Story, replays: ReplayBench, database: str
) -> None:
    """G8: kill -9 at any moment; whoever resumes the run ends it, and each event acts once, in its order."""
    for at in range(1, await count_of_statements(story, replays, database) + 1):
        await story.begin()
        held = await replays.begin()
        cut = Cut(at, for_good=True)
        async with cut_pool(database, cut) as pool:
            runner = await replays.runner(held, pool=pool)
            cut.is_armed = True
            killed = asyncio.create_task(runner.run())
            async with asyncio.timeout(_DEADLINE_SECONDS):
                await cut.reached.wait()
            killed.cancel()
            await asyncio.wait([killed])
        if (await replays.run(held)).state is RunState.RUNNING:
            await replays.pool.execute("UPDATE tidegate.replay SET lease_until = now()")
            await replays.work_off(await replays.resume(held.run))
        await story.is_told_well(held.run)


@pytest.mark.timeout(600)
async def test_a_runner_frozen_at_any_statement_wakes_up_to_nothing(
    story: Story, replays: ReplayBench, database: str
) -> None:
    """G9: it sleeps with its locks in its hands, until Postgres takes them; another runner ends the run. When it wakes
    up it decides nothing, at whatever statement that was."""
    lost = 0
    for at in range(1, await count_of_statements(story, replays, database) + 1):
        await story.begin()
        held = await replays.begin()
        cut = Cut(at, holds=True)
        async with cut_pool(database, cut, silence_limit_ms=200) as pool:
            runner = await replays.runner(held, pool=pool, silence_limit=timedelta(milliseconds=200))
            cut.is_armed = True
            frozen = asyncio.create_task(runner.run())
            async with asyncio.timeout(_DEADLINE_SECONDS):
                await cut.reached.wait()
                await replays.pool.execute("UPDATE tidegate.replay SET lease_until = now() WHERE state = 'running'")
                await replays.work_off(await replays.resume(held.run))
                cut.may_go_on.set()
                await asyncio.wait([frozen])
        lost += isinstance(frozen.exception(), LeaseLost)
        await story.is_told_well(held.run)
    assert lost == at, "a frozen runner told of an end that was not its own"
