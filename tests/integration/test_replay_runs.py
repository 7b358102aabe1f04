"""Runs that meet: two over the same letters, two hands at one run, letters that others decide about (G8)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from dlq.runs import Outcome, RunKind, RunState, Wish, approve_run, propose_run, release_stalled, stop_run
from tests.integration.parking_bench import BAD, Bench, make_bench, of_key
from tests.integration.replay_bench import ReplayBench, mended
from tests.integration.road import MakeRoad
from tidegate_kernel.errors import AlreadyRunning, Denied, Misconfigured
from tidegate_kernel.event import JobId
from tidegate_kernel.postgres import Connection, Pool


@pytest.fixture
async def bench(make_road: MakeRoad) -> Bench:
    return await make_bench(make_road)


@pytest.fixture
def replays(pool: Pool, database: str) -> ReplayBench:
    made = ReplayBench(pool, database)
    made.handlers = mended()
    return made


async def test_of_two_runs_over_overlapping_letters_one_begins(bench: Bench, replays: ReplayBench) -> None:
    """G8, Case 58: asked for at the same moment, one has all of its letters, and the other none."""
    await bench.settle([of_key(n, b"k%d" % n, BAD) for n in range(20)])
    letters = await replays.letters()

    answers = await asyncio.gather(replays.begin(letters[:15]), replays.begin(letters[:4:-1]), return_exceptions=True)

    (conflict,) = [each for each in answers if isinstance(each, BaseException)]
    assert isinstance(conflict, AlreadyRunning)
    (held,) = [each for each in answers if not isinstance(each, BaseException)]
    assert await replays.work_off(held) == {Outcome.RESOLVED: 15}
    assert await replays.replay() == {Outcome.RESOLVED: 5}
    assert sorted(await bench.effects()) == sorted(f"e{n}" for n in range(20))


async def test_a_run_is_resumed_once(bench: Bench, replays: ReplayBench) -> None:
    """G8: two people resume what has stalled, at the same moment."""
    await bench.settle([of_key(0, b"k", BAD)])
    held = await replays.begin()
    await replays.pool.execute("UPDATE tidegate.replay SET lease_until = now() - interval '1 second'")

    answers = await asyncio.gather(*(replays.resume(held.run) for _ in range(2)), return_exceptions=True)

    assert sum(isinstance(each, AlreadyRunning) for each in answers) == 1
    (taken,) = [each for each in answers if not isinstance(each, BaseException)]
    assert await replays.work_off(taken) == {Outcome.RESOLVED: 1}


async def test_a_second_person_approves_once(bench: Bench, replays: ReplayBench) -> None:
    """What two approve at the same moment is approved by the first, and not by whoever asked for it."""
    await bench.settle([of_key(0, b"k", BAD)])
    letters = await replays.letters()
    wish = Wish(kind=RunKind.REPLAY, letters=letters, digest="", reason="", asked_by="ann")
    async with replays.pool.acquire() as connection, connection.transaction():
        run = await propose_run(connection, JobId(1), wish)

    async def approve(by: str) -> None:
        async with replays.pool.acquire() as connection, connection.transaction():
            await approve_run(connection, JobId(1), run, by=by)

    with pytest.raises(Denied):
        await approve("ann")
    answers = await asyncio.gather(approve("bob"), approve("cid"), return_exceptions=True)

    assert [type(each) for each in answers if each is not None] == [Misconfigured]
    assert await replays.work_off(await replays.resume(run)) == {Outcome.RESOLVED: 1}


async def test_a_lease_that_is_just_renewed_is_not_released(bench: Bench, replays: ReplayBench) -> None:
    """G9: whoever looks for stalled runs waits for a runner that is at its row, and finds it alive."""
    await bench.settle([of_key(0, b"k", BAD)])
    held = await replays.begin()
    await replays.pool.execute("UPDATE tidegate.replay SET lease_until = now() - interval '1 second'")
    async with replays.pool.acquire() as runner:
        renewing = runner.transaction()
        await renewing.start()
        await runner.execute("UPDATE tidegate.replay SET lease_until = now() + interval '30 seconds'")
        async with replays.pool.acquire() as other:
            releasing = asyncio.create_task(_release(other))
            async with asyncio.timeout(10):
                while not await replays.pool.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                    await asyncio.sleep(0.01)
            await renewing.commit()
            assert not await releasing

    assert await replays.work_off(held) == {Outcome.RESOLVED: 1}


async def _release(connection: Connection) -> Sequence[int]:
    return await release_stalled(connection, JobId(1))


async def test_a_stop_that_comes_with_the_end_changes_nothing(bench: Bench, replays: ReplayBench) -> None:
    """The run has come to its end, and stays there; whoever asks later is told."""
    await bench.settle([of_key(0, b"k", BAD)])
    held = await replays.begin()
    await replays.work_off(held)

    with pytest.raises(Misconfigured, match="is done already"):
        async with replays.pool.acquire() as connection, connection.transaction():
            await stop_run(connection, JobId(1), held.run, by="bob")
    assert (await replays.run(held)).state is RunState.DONE


async def test_a_run_goes_on_with_what_others_have_left_of_it(bench: Bench, replays: ReplayBench) -> None:
    """Stopped; of its letters one is discarded and one replayed by others meanwhile. Resumed, it has the third alone,
    and its numbers add up."""
    await bench.settle([of_key(n, b"k%d" % n, BAD) for n in range(3)])
    first, second, _ = await replays.letters()
    held = await replays.begin()
    await replays.pool.execute("UPDATE tidegate.replay SET lease_until = now()")
    async with replays.pool.acquire() as connection, connection.transaction():
        assert list(await release_stalled(connection, JobId(1))) == [held.run]
    await replays.replay([first], kind=RunKind.DISCARD)
    await replays.replay([second])

    outcomes = await replays.work_off(await replays.resume(held.run))

    assert outcomes == {Outcome.NOT_TRIED: 2, Outcome.RESOLVED: 1}
    run = await replays.run(held)
    assert (run.state, run.undecided) == (RunState.DONE, 0)
    assert await bench.effects() == ["e1", "e2"]
