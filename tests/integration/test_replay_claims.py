"""Whose claim it is that a replay finds in the inbox: nothing is swallowed, nothing acts twice (G1, G2)."""

from __future__ import annotations

import pytest

from dlq.runs import Outcome
from tests.integration.parking_bench import BAD, GARBAGE, GOOD, Bench, make_bench, of_key
from tests.integration.replay_bench import ReplayBench, failing_for, mended
from tests.integration.road import MakeRoad
from tidegate_kernel.postgres import Pool

K, L = b"k", b"l"


@pytest.fixture
async def bench(make_road: MakeRoad) -> Bench:
    return await make_bench(make_road)


@pytest.fixture
def replays(pool: Pool, database: str) -> ReplayBench:
    return ReplayBench(pool, database)


async def days_pass(pool: Pool, days: int) -> None:
    """All that has happened was so many days earlier."""
    await pool.execute(
        """UPDATE tidegate.dead_letter
        SET first_failed_at = first_failed_at - make_interval(days => $1),
            last_failed_at = last_failed_at - make_interval(days => $1),
            claimed_on = claimed_on - $1::integer""",
        days,
    )
    await pool.execute("UPDATE tidegate.inbox SET claimed_on = claimed_on - $1::integer", days)


async def make_decodable(pool: Pool) -> None:
    """As a release with a mended model does."""
    await pool.execute("UPDATE tidegate.dead_letter SET value = $1 WHERE value = $2", GOOD, GARBAGE)


async def test_a_claim_that_a_replay_made_is_still_the_letters_own_days_later(
    bench: Bench, replays: ReplayBench
) -> None:
    """G1: undecodable at first, it got its claim by a replay, in which its handler failed. Taken for somebody else's by
    the age of the letter, the event would count as done, and never act."""
    await bench.settle([of_key(0, K, GARBAGE)])
    await days_pass(replays.pool, 5)
    await make_decodable(replays.pool)
    replays.handlers = failing_for("e0")
    assert await replays.replay() == {Outcome.FAILED: 1}
    await days_pass(replays.pool, 1)
    replays.handlers = mended()

    outcomes = await replays.replay()

    assert outcomes == {Outcome.RESOLVED: 1}
    assert await bench.effects() == ["e0"]


async def test_a_claim_made_again_after_the_horizon_is_still_the_letters_own(
    bench: Bench, replays: ReplayBench
) -> None:
    """G1: the horizon has passed over the claim, a replay has made it again and failed, and the next one succeeds."""
    await bench.settle([of_key(0, K, BAD)])
    await days_pass(replays.pool, 20)
    await replays.pool.execute("DELETE FROM tidegate.inbox")
    await replays.replay()
    await days_pass(replays.pool, 1)
    replays.handlers = mended()

    assert await replays.replay() == {Outcome.RESOLVED: 1}
    assert await bench.effects() == ["e0"]


async def test_a_later_delivery_that_was_handled_after_the_horizon_stands(bench: Bench, replays: ReplayBench) -> None:
    """G2: with the claim forgotten, the event came once more, elsewhere, and acted. The letter must not act again."""
    await bench.settle([of_key(0, K, BAD, id="e9")])
    await days_pass(replays.pool, 20)
    await replays.pool.execute("DELETE FROM tidegate.inbox")
    await bench.settle([of_key(1, L, id="e9")])
    replays.handlers = mended()

    assert await replays.replay() == {Outcome.ALREADY_PROCESSED: 1}
    assert await bench.effects() == ["e9"]


async def test_what_has_to_wait_has_claimed_nothing(bench: Bench, replays: ReplayBench) -> None:
    """G1: the second letter, undecodable at first, waits behind the first, which fails. A claim of its own that nobody
    remembers would be found by the next replay, and the event be lost as somebody else's."""
    await bench.settle([of_key(0, K, BAD)])
    await bench.settle([of_key(1, K, GARBAGE)])
    await make_decodable(replays.pool)
    replays.handlers = failing_for("e0")
    assert await replays.replay() == {Outcome.FAILED: 1, Outcome.BEHIND: 1}
    replays.handlers = mended()

    assert await replays.replay() == {Outcome.RESOLVED: 2}
    assert await bench.effects() == ["e0", "e1"]


async def test_a_forgotten_claim_of_what_has_to_wait_stays_forgotten(bench: Bench, replays: ReplayBench) -> None:
    """G1: made again for a letter that then had to wait, it would be younger than the letter, as somebody else's is."""
    await bench.settle([of_key(0, K, BAD), of_key(1, K)])
    replays.handlers = failing_for("e1")
    await replays.replay()
    await replays.pool.execute("UPDATE tidegate.dead_letter SET state = 'dead', value = $1", BAD)
    first, _ = await replays.letters()
    await replays.pool.execute(
        """INSERT INTO tidegate.blocking_letter SELECT $1, job, topic, key, turn, 0 FROM tidegate.blocking_letter""",
        first,
    )
    await replays.pool.execute("DELETE FROM effect")
    await days_pass(replays.pool, 20)
    await replays.pool.execute("DELETE FROM tidegate.inbox")
    replays.handlers = failing_for("e0")
    assert await replays.replay() == {Outcome.FAILED: 1, Outcome.BEHIND: 1}
    replays.handlers = mended()

    assert await replays.replay() == {Outcome.RESOLVED: 2}
    assert await bench.effects() == ["e0", "e1"]


@pytest.mark.parametrize("first, second", [(K, L), (L, K)])
async def test_a_repeat_of_what_has_to_wait_is_not_told_to_be_done(
    bench: Bench, replays: ReplayBench, first: bytes, second: bytes
) -> None:
    """G1: two letters of one event, neither of which has its claim. The first has to wait; then the second acts."""
    await bench.settle([of_key(0, first, BAD)])
    await bench.settle([of_key(1, first, GARBAGE, id="e9"), of_key(2, second, GARBAGE, id="e9")])
    await make_decodable(replays.pool)
    replays.handlers = failing_for("e0")

    assert await replays.replay() == {Outcome.FAILED: 1, Outcome.BEHIND: 1, Outcome.RESOLVED: 1}
    assert await bench.effects() == ["e9"]
    replays.handlers = mended()
    assert await replays.replay() == {Outcome.RESOLVED: 1, Outcome.ALREADY_PROCESSED: 1}
    assert await bench.effects() == ["e9", "e0"]
