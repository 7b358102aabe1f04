"""Runs over a great deal: what is in memory at once is bounded, and every batch makes headway."""

from __future__ import annotations

import pytest

from consumers.replay_verdicts import Taken
from dlq.runs import Hold, Outcome
from tests.integration.parking_bench import BAD, Bench, make_bench, of_key
from tests.integration.replay_bench import ReplayBench, failing_for, mended
from tests.integration.road import MakeRoad
from tidegate_kernel.postgres import Pool


@pytest.fixture
async def bench(make_road: MakeRoad) -> Bench:
    return await make_bench(make_road)


@pytest.fixture
def replays(pool: Pool, database: str) -> ReplayBench:
    made = ReplayBench(pool, database)
    made.handlers = mended()
    return made


async def batches_of(replays: ReplayBench, held: Hold) -> list[Taken]:
    batches: list[Taken] = []
    runner = await replays.runner(held)
    runner._on_taken = batches.append
    await runner.run()
    return batches


@pytest.mark.parametrize("has_order", [True, False])
async def test_a_batch_holds_so_many_bytes_at_most(bench: Bench, replays: ReplayBench, has_order: bool) -> None:
    """Five hundred letters of 5 MB would be 2.5 GB, and the pod be gone. Here 8 are, over 32 MiB together."""
    await bench.settle([of_key(n, b"k%d" % n if has_order else None, BAD) for n in range(8)])
    await replays.pool.execute(
        """UPDATE tidegate.dead_letter
        SET value = convert_to('{"n":1,"customer":"' || repeat('x', 5000000) || '"}', 'utf8')"""
    )
    held = await replays.begin()

    batches = await batches_of(replays, held)

    assert [len(each.outcomes) for each in batches] == [6, 2]
    assert (await replays.run(held)).outcomes == {Outcome.RESOLVED: 8}


async def test_keys_that_stay_blocked_do_not_slow_down_the_others(bench: Bench, replays: ReplayBench) -> None:
    """A batch is shared out among its keys. Those whose letters have failed again leave their share to the key behind
    whose letter many events wait; else it would go on one by one."""
    await bench.settle([of_key(n, b"k%d" % n, BAD) for n in range(100)])
    await bench.settle([of_key(100, b"long", BAD), *(of_key(n, b"long") for n in range(101, 401))])
    replays.handlers = failing_for(*(f"e{n}" for n in range(100)))
    held = await replays.begin()

    batches = await batches_of(replays, held)

    assert len(batches) < 10
    assert (await bench.blocked_keys(), (await replays.run(held)).parked) == (100, 300)
