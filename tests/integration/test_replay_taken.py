"""A runner that is late, and is at work yet when somebody takes its run: one of them waits, and neither breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from consumers.replay_work import Group, confirm, look
from dlq.parking import record_key
from dlq.runs import Hold, Outcome, decide, hold, release_stalled, resume_run, stop_run
from tests.integration.parking_bench import BAD, Bench, make_bench, of_key
from tests.integration.replay_bench import ReplayBench, mended
from tests.integration.road import TOPIC_ID, MakeRoad
from tidegate_kernel.errors import AlreadyRunning
from tidegate_kernel.event import JobId, ReplayId
from tidegate_kernel.postgres import Connection, Pool

_DEADLINE_SECONDS = 20.0
_JOB = JobId(1)


@pytest.fixture
async def bench(make_road: MakeRoad) -> Bench:
    return await make_bench(make_road)


@pytest.fixture
def replays(pool: Pool, database: str) -> ReplayBench:
    made = ReplayBench(pool, database)
    made.handlers = mended()
    return made


async def _release(connection: Connection) -> object:
    return await release_stalled(connection, _JOB)


async def _resume(connection: Connection) -> object:
    with pytest.raises(AlreadyRunning):
        await resume_run(connection, _JOB, ReplayId(1), holder="another")
    return []


async def _stop(connection: Connection) -> object:
    return [] if not await stop_run(connection, _JOB, ReplayId(1), by="anna") else "ended under it"


@pytest.mark.parametrize("take", [_release, _resume, _stop])
async def test_a_late_runner_at_work_and_who_takes_its_run_do_not_wait_for_each_other(
    bench: Bench, replays: ReplayBench, take: Callable[[Connection], Awaitable[object]]
) -> None:
    """G9: its lease has run out over a batch that it ends at last. Both lock letters first, then the run; the other way
    round Postgres had to end one of them, and whoever asked for a replay got a deadlock for an answer."""
    await bench.settle([of_key(0, b"k", BAD), of_key(1, b"l", BAD)])
    letters = await replays.letters()
    held = await replays.begin()
    await replays.pool.execute("UPDATE tidegate.replay SET lease_until = now() - interval '1 second'")

    async with replays.pool.acquire() as runner, runner.transaction():
        await _take_up(runner, held)
        taking = asyncio.create_task(_in_transaction(replays.pool, take))
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while not await replays.pool.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                await asyncio.sleep(0.01)
        await hold(runner, held)
        await decide(runner, held, {letters[0]: Outcome.FAILED}, most_replays=5)

    async with asyncio.timeout(_DEADLINE_SECONDS):
        assert await taking == []
    run = await replays.run(held)
    assert (dict(run.outcomes), run.undecided) == ({Outcome.FAILED: 1}, 1)


async def test_a_runner_that_leaves_letters_does_not_hold_its_run_while_it_waits_for_them(
    bench: Bench, replays: ReplayBench
) -> None:
    """The same where it does not decide about letters, but leaves them: it was asked to stop."""
    await bench.settle([of_key(0, b"k", BAD), of_key(1, b"l", BAD)])
    held = await replays.begin()
    await replays.pool.execute("UPDATE tidegate.replay SET lease_until = now() - interval '1 second'")

    async with replays.pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM tidegate.dead_letter FOR UPDATE")
        runner = await replays.runner(held)
        runner.stop()
        ending = asyncio.create_task(runner.run())
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while not await replays.pool.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                await asyncio.sleep(0.01)
        assert await _is_free(replays.pool), "the runner holds its run, and waits for its letters"

    async with asyncio.timeout(_DEADLINE_SECONDS):
        await asyncio.wait([ending])
    assert (await replays.run(held)).outcomes == {Outcome.NOT_TRIED: 2}


async def _is_free(pool: Pool) -> bool:
    row = await pool.fetchrow("SELECT FROM tidegate.replay FOR UPDATE SKIP LOCKED")
    return row is not None


async def _take_up(connection: Connection, held: Hold) -> None:
    keys = [key for each in (b"k", b"l") if (key := record_key(of_key(0, each))) is not None]
    work = await look(connection, held, Group("orders", TOPIC_ID, 0, keys=keys), limit=10)
    await confirm(connection, held, work, silence_limit=timedelta(seconds=60))


async def _in_transaction(pool: Pool, take: Callable[[Connection], Awaitable[object]]) -> object:
    async with pool.acquire() as connection, connection.transaction():
        return await take(connection)
