"""Sequences that are not what they were when their events failed: other keys, two keys, several partitions (G2, G4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlq.runs import Outcome, RunKind
from tests.integration.parking_bench import BAD, GARBAGE, GOOD, Bench, make_bench, of_key, parking_job
from tests.integration.replay_bench import ReplayBench, mended
from tests.integration.road import MakeRoad
from tidegate import Event
from tidegate_kernel.postgres import Pool

K = b"k"


@pytest.fixture
def replays(pool: Pool, database: str) -> ReplayBench:
    return ReplayBench(pool, database)


def by_customer(event: Event[Any]) -> str | None:
    return event.data.customer or None


def of_customer(offset: int, key: bytes, customer: str, n: int = 1) -> Any:
    return of_key(offset, key, b'{"n":%d,"customer":"%s"}' % (n, customer.encode()))


async def ordered_by_customer(make_road: MakeRoad, replays: ReplayBench) -> Bench:
    replays.job = parking_job(order_key=by_customer)
    return await make_bench(make_road, order_key=by_customer)


async def edit(pool: Pool, value: bytes) -> None:
    """Of every letter."""
    await pool.execute(
        """INSERT INTO tidegate.correction
            (job, topic, topic_id, partition, "offset", kind, value, letter, reason, made_by)
        SELECT job, topic, topic_id, partition, "offset", 'edit', $1, id, 'typo', 'tests' FROM tidegate.dead_letter""",
        value,
    )


async def test_behind_a_letter_that_got_another_key_nothing_is_handled_before_it(
    make_road: MakeRoad, replays: ReplayBench
) -> None:
    """G2, G4: an edit gave the letter another customer, and it fails again. What is parked behind it must not be
    handled and stay parked, to be handled once more by the next run."""
    bench = await ordered_by_customer(make_road, replays)
    await bench.settle([of_customer(0, b"o1", "ada", -1), of_customer(1, b"o2", "ada")])
    await edit(replays.pool, b'{"n":-1,"customer":"bob"}')

    assert await replays.replay() == {Outcome.FAILED: 1}
    assert (await bench.effects(), await bench.parked()) == ([], ["e1"])
    replays.handlers = mended()
    assert await replays.replay() == {Outcome.RESOLVED: 1}
    assert await bench.effects() == ["e0", "e1"]
    assert await bench.blocked_keys() == 0


async def test_in_a_job_that_gave_up_its_order_sequences_still_go_from_their_heads(
    make_road: MakeRoad, replays: ReplayBench
) -> None:
    """G2: parked while the job had an order, and replayed after it has none. An event acts once."""
    bench = await make_bench(make_road)
    await bench.settle([of_key(0, K, BAD), of_key(1, K)])
    replays.job = parking_job(order="skip")

    assert await replays.replay() == {Outcome.FAILED: 1}
    assert await bench.effects() == []
    replays.handlers = mended()
    assert await replays.replay() == {Outcome.RESOLVED: 1}
    assert await bench.effects() == ["e0", "e1"]


async def test_behind_what_cannot_be_decoded_any_more_its_own_sequence_waits(
    make_road: MakeRoad, replays: ReplayBench
) -> None:
    """G2: a parked event that the new release cannot decode has its record's key alone; the one behind it another."""
    bench = await ordered_by_customer(make_road, replays)
    await bench.settle([of_customer(0, b"o1", "ada", -1), of_customer(1, b"o2", "ada"), of_customer(2, b"o3", "ada")])
    await replays.pool.execute("UPDATE tidegate.parked SET value = $1 WHERE event_id = 'e1'", GARBAGE)
    replays.handlers = mended()

    assert await replays.replay() == {Outcome.RESOLVED: 1}
    assert (await bench.effects(), await bench.parked()) == (["e0"], ["e2"])
    await replays.pool.execute("UPDATE tidegate.dead_letter SET value = $1 WHERE state = 'dead'", GOOD)
    assert await replays.replay() == {Outcome.RESOLVED: 1}
    assert await bench.effects() == ["e0", "e1", "e2"]
    assert await bench.blocked_keys() == 0


@pytest.mark.parametrize("rate", [None, 4])
async def test_a_letter_that_blocks_two_keys_is_handled_at_any_pace(
    make_road: MakeRoad, replays: ReplayBench, rate: float | None
) -> None:
    """Undecodable, it blocked its record's key; as an event that failed it blocks its customer's, too. A slow pace
    makes batches of one key, in which it would never come first in both."""
    bench = await ordered_by_customer(make_road, replays)
    await bench.settle([of_key(0, b"o1", GARBAGE)])
    await replays.pool.execute("UPDATE tidegate.dead_letter SET value = $1", b'{"n":-1,"customer":"ada"}')
    assert await replays.replay() == {Outcome.FAILED: 1}
    assert await bench.blocked_keys() == 2
    await bench.settle([of_customer(1, b"o2", "ada")])
    assert await bench.parked() == ["e1"]
    replays.handlers = mended()

    held = await replays.begin()
    await (await replays.runner(held, rate=rate)).run()

    assert (await replays.run(held)).outcomes == {Outcome.RESOLVED: 1}
    assert await bench.effects() == ["e0", "e1"]
    assert await bench.blocked_keys() == 0


async def test_a_sequence_over_partitions_is_handled_in_its_order(make_road: MakeRoad, replays: ReplayBench) -> None:
    """G4: a key that moved, as after more partitions; each stretch of a partition is a batch of its own."""
    bench = await make_bench(make_road)
    await bench.settle([of_key(0, K, BAD), of_key(1, K)])
    await bench.settle([of_key(0, K, id="f0"), of_key(1, K, BAD, id="f1"), of_key(2, K, id="f2")], partition=1)
    await bench.settle([of_key(2, K)])
    replays.handlers = mended()

    assert await replays.replay() == {Outcome.RESOLVED: 1}
    assert await bench.effects() == ["e0", "e1", "f0", "f1", "f2", "e2"]
    assert await bench.blocked_keys() == 0


async def rewound(bench: Bench) -> None:
    """A letter that never became an event, whose record was read again after a release, and is parked behind it."""
    await bench.settle([of_key(0, K, GARBAGE)])
    place = next(iter(bench.places))
    await bench.pool.execute("UPDATE tidegate.position SET next_offset = 0 WHERE partition = 0")
    bench.places[place] = replace(bench.places[place], next_offset=0)
    await bench.settle([of_key(0, K, BAD), of_key(1, K)])
    assert await bench.parked() == ["e0", "e1"]


async def test_a_record_that_is_parked_behind_its_own_letter_and_fails_is_dead_again(
    make_road: MakeRoad, replays: ReplayBench
) -> None:
    """G1: the letter is done with, for the event waits in its own right; when that fails it is the letter of the same
    record. Left as done, no run would ever take it, and its key be blocked for good."""
    bench = await make_bench(make_road)
    await rewound(bench)
    await replays.pool.execute("UPDATE tidegate.dead_letter SET value = $1", BAD)

    await replays.replay()

    assert await bench.effects() == []
    assert await replays.states() == ["dead"]
    replays.handlers = mended()
    await replays.replay()
    assert await bench.effects() == ["e0", "e1"]
    assert (await bench.blocked_keys(), await replays.states()) == (0, ["resolved"])


async def test_what_was_decided_about_a_record_holds_also_where_it_is_parked(
    make_road: MakeRoad, replays: ReplayBench
) -> None:
    """The letter of the same record is discarded: what was read of it before the decision goes with it."""
    bench = await make_bench(make_road)
    await rewound(bench)
    replays.handlers = mended()

    assert await replays.replay(kind=RunKind.DISCARD) == {Outcome.DISCARDED: 1}
    assert await bench.effects() == ["e1"]
    assert await bench.blocked_keys() == 0
