"""Replay through the job's own pipeline, on real Postgres: once, in order, whole (G2, G4, G8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from dlq.runs import Outcome, RunKind
from tests.integration.parking_bench import BAD, GARBAGE, Bench, Note, make_bench, of_key, parking_job
from tests.integration.replay_bench import ReplayBench, failing_for, lenient, mended
from tests.integration.road import MakeRoad
from tidegate import Context, handle
from tidegate_kernel.errors import AlreadyRunning, LeaseLost
from tidegate_kernel.postgres import Pool

K, L = b"k", b"l"


@pytest.fixture
async def bench(make_road: MakeRoad) -> Bench:
    return await make_bench(make_road)


@pytest.fixture
def replays(pool: Pool, database: str) -> ReplayBench:
    return ReplayBench(pool, database)


def stopping(replays: ReplayBench) -> Callable[[Note, Context[None]], Awaitable[None]]:
    async def stop_after_one(command: Note, ctx: Context[None]) -> None:
        await lenient(command, ctx)
        assert replays.last is not None
        replays.last.stop()

    return stop_after_one


async def test_a_mended_handler_takes_the_letter_and_what_waited_behind_it_in_order(
    bench: Bench, replays: ReplayBench
) -> None:
    """G4, Case 57: the inbox holds the letter's claim, and yet the replay runs; then the key is free."""
    await bench.settle([of_key(0, K, BAD), of_key(1, K), of_key(2, L), of_key(3, K)])
    replays.handlers = mended()

    outcomes = await replays.replay()

    assert outcomes == {Outcome.RESOLVED: 1}
    assert await bench.effects() == ["e2", "e0", "e1", "e3"]
    assert (await bench.parked(), await bench.blocked_keys()) == ([], 0)
    assert await replays.states() == ["resolved"]
    await bench.settle([of_key(4, K)])
    assert (await bench.effects())[-1] == "e4"


async def test_what_fails_again_keeps_its_place_and_those_behind_it(bench: Bench, replays: ReplayBench) -> None:
    """G4: a replay that changes nothing must not let anything past either."""
    await bench.settle([of_key(0, K, BAD), of_key(1, K), of_key(2, L, BAD), of_key(3, L)])
    replays.handlers = failing_for("e0")

    outcomes = await replays.replay()

    assert outcomes == {Outcome.FAILED: 1, Outcome.RESOLVED: 1}
    assert await bench.effects() == ["e2", "e3"]
    assert await bench.parked() == ["e1"]
    assert await replays.states() == ["dead", "resolved"]
    row = await replays.pool.fetchrow(
        "SELECT replay_count, occurrences FROM tidegate.dead_letter WHERE event_id = 'e0'"
    )
    assert row is not None
    assert tuple(row) == (1, 2)


async def test_a_parked_event_that_fails_becomes_a_letter_in_its_place(bench: Bench, replays: ReplayBench) -> None:
    """The sequence stops at its first failure, and a later replay goes on from there, in order."""
    await bench.settle([of_key(0, K, BAD), of_key(1, K), of_key(2, K), of_key(3, K)])
    replays.handlers = failing_for("e2")

    first = await replays.replay()
    stopped_with = await bench.effects(), await bench.parked(), await bench.letters()
    replays.handlers = mended()
    second = await replays.replay()

    assert first == {Outcome.RESOLVED: 1}
    assert stopped_with == (["e0", "e1"], ["e3"], [0, 2])
    assert second == {Outcome.RESOLVED: 1}
    assert await bench.effects() == ["e0", "e1", "e2", "e3"]
    assert (await bench.blocked_keys(), await replays.states()) == (0, ["resolved", "resolved"])


async def test_a_parked_event_that_cannot_be_decoded_any_more_keeps_its_claim(
    bench: Bench, replays: ReplayBench
) -> None:
    """G1: its letter has to know that the claim in the inbox is its own, or the event counts as done and never acts."""
    await bench.settle([of_key(0, K, BAD), of_key(1, K)])
    replays.handlers = mended()
    await replays.pool.execute("UPDATE tidegate.parked SET value = $1", GARBAGE)
    await replays.replay()
    await replays.pool.execute("UPDATE tidegate.dead_letter SET value = $1 WHERE state = 'dead'", b'{"n":1}')

    outcomes = await replays.replay()

    assert outcomes == {Outcome.RESOLVED: 1}
    assert await bench.effects() == ["e0", "e1"]


async def test_a_letter_behind_one_that_is_not_replayed_waits(bench: Bench, replays: ReplayBench) -> None:
    """G4: choosing the second letter of a key does not put it before the first."""
    await bench.settle([of_key(0, K, BAD)])
    await bench.settle([of_key(1, K, GARBAGE), of_key(2, K)])
    replays.handlers = mended()
    first, second = await replays.letters()

    outcomes = await replays.replay([second])
    assert outcomes == {Outcome.BEHIND: 1}
    assert (await bench.effects(), await replays.states()) == ([], ["dead", "dead"])

    assert await replays.replay([first]) == {Outcome.RESOLVED: 1}
    assert await bench.effects() == ["e0"]
    assert await bench.parked() == ["e2"]


async def test_a_second_replay_of_one_letter_is_a_conflict(bench: Bench, replays: ReplayBench) -> None:
    """Case 58: a double click is one execution and one conflict."""
    await bench.settle([of_key(0, K, BAD)])
    letters = await replays.letters()
    held = await replays.begin(letters)

    with pytest.raises(AlreadyRunning, match=f"run {held.run} has them"):
        await replays.begin(letters)

    replays.handlers = mended()
    assert await replays.work_off(held) == {Outcome.RESOLVED: 1}
    assert await bench.effects() == ["e0"]


async def test_a_resolved_letter_is_not_replayed_again(bench: Bench, replays: ReplayBench) -> None:
    """Case 57: what is done acts no second time."""
    await bench.settle([of_key(0, K, BAD)])
    letters = await replays.letters()
    replays.handlers = mended()
    await replays.replay(letters)

    with pytest.raises(AlreadyRunning, match="were decided"):
        await replays.begin(letters)
    assert await bench.effects() == ["e0"]


async def test_undecodable_then_decodable_now_claims_its_id(bench: Bench, replays: ReplayBench) -> None:
    """G2: its letter had no claim; a copy of the event that came elsewhere meanwhile must not act twice."""
    await bench.settle([of_key(0, K, GARBAGE), of_key(1, L, GARBAGE, id="e9")])
    await bench.settle([of_key(2, b"m", id="e9")], topic="returns")
    await replays.pool.execute("UPDATE tidegate.dead_letter SET value = $1", b'{"n":1}')

    outcomes = await replays.replay()

    assert outcomes == {Outcome.RESOLVED: 1, Outcome.ALREADY_PROCESSED: 1}
    assert await bench.effects() == ["e9", "e0"]
    again = await bench.settle([of_key(3, L, id="e0")], topic="returns")
    assert again.duplicates == 1


async def test_after_so_many_replays_a_letter_is_quarantined(bench: Bench, replays: ReplayBench) -> None:
    """Case 54: poison goes round no more than n times, unless somebody forces it."""
    await bench.settle([of_key(0, K, BAD)])
    replays.most_replays = 2
    await replays.replay()
    await replays.replay()
    assert await replays.states() == ["quarantined"]
    (letter,) = await replays.letters(states=["quarantined"])

    with pytest.raises(AlreadyRunning):
        await replays.begin([letter])

    replays.handlers = mended()
    assert await replays.replay([letter], is_forced=True) == {Outcome.RESOLVED: 1}


async def test_a_runner_that_lost_its_run_decides_nothing(bench: Bench, replays: ReplayBench) -> None:
    """G9: the lease ran out while it was frozen; whoever took the run over does the work, once."""
    await bench.settle([of_key(0, K, BAD), of_key(1, K)])
    replays.handlers = mended()
    held = await replays.begin()
    frozen = await replays.runner(held)
    await replays.pool.execute("UPDATE tidegate.replay SET lease_until = now()")
    taken = await replays.resume(held.run)

    with pytest.raises(LeaseLost):
        await frozen.run()
    assert await bench.effects() == []

    assert await replays.work_off(taken) == {Outcome.RESOLVED: 1}
    assert await bench.effects() == ["e0", "e1"]


async def test_a_run_that_was_cut_off_behind_a_letter_goes_on_with_what_is_parked(
    bench: Bench, replays: ReplayBench
) -> None:
    """A kill -9 between a letter and the events behind it must leave nobody waiting for ever."""
    await bench.settle([of_key(0, K, BAD), of_key(1, K), of_key(2, L, BAD)])
    replays.handlers = mended()
    held = await replays.begin()
    replays.handlers = [handle(Note, stopping(replays))]
    runner = await replays.runner(held, rate=4)  # so slow a pace makes batches of one
    await runner.run()
    assert (await bench.effects(), await bench.parked()) == (["e0"], ["e1"])

    replays.handlers = mended()
    await replays.work_off(await replays.resume(held.run))

    assert await bench.effects() == ["e0", "e1", "e2"]
    assert await bench.blocked_keys() == 0


async def test_a_letter_of_which_only_the_place_is_known_is_refused(bench: Bench, replays: ReplayBench) -> None:
    """G1: taken for a record without a value it would be skipped, and count as handled."""
    await bench.settle([of_key(0, K, BAD), of_key(1, L, BAD), of_key(2, b"m", BAD)])
    await replays.pool.execute(
        """UPDATE tidegate.dead_letter SET has_payload = false, key = NULL, value = NULL WHERE event_id = 'e0'"""
    )
    replays.handlers = mended()

    outcomes = await replays.replay()

    assert outcomes == {Outcome.REFUSED: 1, Outcome.RESOLVED: 2}
    assert await replays.states() == ["dead", "resolved", "resolved"]


async def test_a_letter_of_a_topic_that_the_job_no_longer_reads_is_refused(bench: Bench, replays: ReplayBench) -> None:
    """Nothing says how its records are to be decoded; the others of the run go on."""
    await bench.settle([of_key(0, K, BAD), of_key(1, L, BAD)])
    await replays.pool.execute("UPDATE tidegate.dead_letter SET topic = 'gone' WHERE event_id = 'e0'")
    await replays.pool.execute("DELETE FROM tidegate.blocking_letter")
    replays.handlers = mended()

    assert await replays.replay() == {Outcome.REFUSED: 1, Outcome.RESOLVED: 1}


async def test_the_report_adds_up(bench: Bench, replays: ReplayBench) -> None:
    """Case 61: replayed, failed and skipped sum to what was asked for."""
    await bench.settle([of_key(n, b"k%d" % n, BAD) for n in range(30)])
    replays.handlers = failing_for("e3", "e7")

    held = await replays.begin()
    await replays.work_off(held)
    run = await replays.run(held)

    assert run.outcomes == {Outcome.RESOLVED: 28, Outcome.FAILED: 2}
    assert (run.letters, run.undecided, run.state) == (30, 0, "done")


async def test_a_discard_frees_what_is_parked_behind_it(bench: Bench, replays: ReplayBench) -> None:
    """Somebody decides that the record means nothing; what came after it is handled, in order, and the letter kept."""
    await bench.settle([of_key(0, K, BAD), of_key(1, K), of_key(2, K)])

    outcomes = await replays.replay(kind=RunKind.DISCARD)

    assert outcomes == {Outcome.DISCARDED: 1}
    assert await bench.effects() == ["e1", "e2"]
    assert (await replays.states(), await bench.blocked_keys()) == (["discarded"], 0)
    assert await replays.pool.fetchval("SELECT kind FROM tidegate.correction") == "discard"


async def test_what_is_of_a_topic_that_the_job_reads_no_more_stays(bench: Bench, replays: ReplayBench) -> None:
    """A release took the topic away: nothing is lost, and the run goes on with the rest. A discard gives it up."""
    await bench.settle([of_key(0, K, BAD), of_key(1, K)], topic="returns")
    await bench.settle([of_key(0, L, BAD, id="e9")])
    replays.job = replace(replays.job, topics=[topic for topic in replays.job.topics if topic.name != "returns"])
    replays.handlers = mended()

    outcomes = await replays.replay()

    assert outcomes == {Outcome.REFUSED: 1, Outcome.RESOLVED: 1}
    assert (await bench.parked(), await replays.states()) == (["e1"], ["resolved", "dead"])
    assert await replays.replay(kind=RunKind.DISCARD) == {Outcome.DISCARDED: 1}
    assert await bench.parked() == ["e1"]


async def test_letters_without_an_order_are_replayed_together(make_road: MakeRoad, replays: ReplayBench) -> None:
    """order="skip": later events have passed; each letter stands for itself, also those without a key."""
    bench = await make_bench(make_road, order="skip")
    replays.job = parking_job(order="skip")
    await bench.settle([of_key(0, K, BAD), of_key(1, K), of_key(2, None, BAD)])
    await bench.settle([replace(of_key(0, K, BAD), value=BAD)], partition=1)
    replays.handlers = mended()

    outcomes = await replays.replay()

    assert outcomes == {Outcome.RESOLVED: 2}
    assert sorted(await bench.effects()) == ["e0", "e1", "e2"]


async def test_what_is_behind_a_letter_without_a_payload_waits_unhandled(bench: Bench, replays: ReplayBench) -> None:
    """G2: its handler must not run before its turn, and then again in its turn."""
    await bench.settle([of_key(0, K, BAD), of_key(1, K)])
    await replays.pool.execute("UPDATE tidegate.dead_letter SET has_payload = false, value = NULL")
    replays.handlers = mended()

    outcomes = await replays.replay()

    assert outcomes == {Outcome.REFUSED: 1}
    assert (await bench.effects(), await bench.parked()) == ([], ["e1"])


async def test_of_two_letters_of_one_event_the_one_that_has_its_claim_is_handled(
    bench: Bench, replays: ReplayBench
) -> None:
    """G1: the other finds the id taken; were it to speak for both, the event would be lost as its own repeat."""
    await bench.settle([of_key(0, None, GARBAGE, id="e9"), of_key(1, None, BAD, id="e9")])
    await replays.pool.execute("UPDATE tidegate.dead_letter SET value = $1 WHERE claimed_id IS NULL", b'{"n":1}')
    replays.handlers = mended()

    outcomes = await replays.replay()

    assert outcomes == {Outcome.RESOLVED: 1, Outcome.ALREADY_PROCESSED: 1}
    assert await bench.effects() == ["e9"]
    assert await replays.states() == ["already_processed", "resolved"]
