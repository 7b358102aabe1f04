"""Positions on real Postgres: who owns a partition, and what an owner that fell silent may still do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID

import asyncpg
import pytest

from consumers.positions import Position, Positions, advance
from inbox.store import register_job
from tidegate_kernel.errors import StaleOwner
from tidegate_kernel.event import LIVE, JobCode, JobId, RunId, TopicPartition
from tidegate_kernel.postgres import Pool

ORDERS = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
TOPIC_ID = UUID(int=7)
START = Position(0, 40, TOPIC_ID)


@pytest.fixture
async def job(pool: Pool) -> JobId:
    async with pool.acquire() as connection:
        return await register_job(connection, service="tests", code=JobCode("notes"), claim_rule="v1")


@pytest.fixture
def positions(pool: Pool, job: JobId) -> Positions:
    return Positions(pool, job=job, run=LIVE, owner="tests")


@asynccontextmanager
async def silent_owner(dsn: str, partition: TopicPartition) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """Yields the connection of a process that locked its position in a transaction and then stopped."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("BEGIN")
        await connection.execute(
            "SELECT FROM tidegate.position WHERE topic = $1 AND partition = $2 FOR UPDATE", *partition
        )
        yield connection
    finally:
        connection.terminate()


async def test_position_that_was_never_begun_has_no_owner(positions: Positions) -> None:
    """The first start must know the log's start before it may own anything."""
    assert await positions.take_over(ORDERS) is None
    assert await positions.read(ORDERS) is None
    assert await positions.all() == {}


async def test_first_beginning_is_the_one_that_counts(positions: Positions) -> None:
    """Two processes start a job at once: the second one's start must not move what the first has settled since."""
    await positions.begin({ORDERS: START})
    await positions.begin({ORDERS: Position(9, 0, UUID(int=8), 100), OTHER: START})

    assert await positions.all() == {ORDERS: START, OTHER: START}


async def test_each_takeover_raises_the_epoch(positions: Positions) -> None:
    """The epoch is what shuts an earlier owner out; it grows by one, and the offset stays."""
    await positions.begin({ORDERS: START})

    epochs = [taken.epoch for _ in range(3) if (taken := await positions.take_over(ORDERS))]

    assert epochs == [1, 2, 3]
    assert await positions.read(ORDERS) == replace(START, epoch=3)


async def test_takeovers_at_one_moment_get_different_epochs(positions: Positions) -> None:
    """A rebalance lets several members believe in the same partition for a while; no two may settle under one epoch."""
    await positions.begin({ORDERS: START})

    taken = await asyncio.gather(*(positions.take_over(ORDERS) for _ in range(5)))

    assert sorted(each.epoch for each in taken if each) == [1, 2, 3, 4, 5]


async def test_earlier_owner_moves_nothing(positions: Positions, pool: Pool) -> None:
    """G9: an advance under an old epoch, or from an offset that is not the row's, changes nothing and says so."""
    await positions.begin({ORDERS: START})
    mine, theirs = await positions.take_over(ORDERS), await positions.take_over(ORDERS)
    assert mine is not None
    assert theirs is not None

    async with pool.acquire() as connection:
        for wrong in (mine, replace(theirs, next_offset=39)):
            with pytest.raises(StaleOwner, match=r"orders:0"):
                await advance(connection, positions.fence(ORDERS, wrong), next_offset=50)
        assert await positions.read(ORDERS) == theirs
        await advance(connection, positions.fence(ORDERS, theirs), next_offset=50)

    assert await positions.read(ORDERS) == replace(theirs, next_offset=50)


async def test_runs_of_a_job_do_not_see_each_other(positions: Positions, pool: Pool, job: JobId) -> None:
    """A backfill reads the same partitions under positions of its own; the live consumer stays where it is."""
    backfill = Positions(pool, job=job, run=RunId(1), owner="tests")
    await positions.begin({ORDERS: START})
    await backfill.begin({ORDERS: Position(0, 0, TOPIC_ID, end_offset=40)})

    await backfill.take_over(ORDERS)

    assert await positions.all() == {ORDERS: START}
    assert await backfill.all() == {ORDERS: Position(1, 0, TOPIC_ID, end_offset=40)}


async def test_takeover_ends_the_silent_owner_and_nobody_else(positions: Positions, database: str) -> None:
    """A paused process that holds the row's lock would stop its successor for ever; a bystander must not pay for it."""
    await positions.begin({ORDERS: START, OTHER: START})
    async with silent_owner(database, ORDERS) as silent, silent_owner(database, OTHER) as bystander:
        began = time.monotonic()

        taken = await asyncio.wait_for(positions.take_over(ORDERS), timeout=60)

        assert taken == replace(START, epoch=1)
        assert time.monotonic() - began > 4.5, "a live owner gets time to finish"
        with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.AdminShutdownError)):
            await silent.fetchval("SELECT 1")
        assert await bystander.fetchval("SELECT 1") == 1


async def test_takeover_waits_for_an_owner_that_is_about_to_finish(positions: Positions, database: str) -> None:
    """A batch that is being settled commits first: its work is kept, and the successor resumes behind it."""
    await positions.begin({ORDERS: START})
    async with silent_owner(database, ORDERS) as owner:
        takeover = asyncio.create_task(positions.take_over(ORDERS))
        await until_somebody_waits(owner)
        await owner.execute("UPDATE tidegate.position SET next_offset = 60")
        await owner.execute("COMMIT")

        assert await asyncio.wait_for(takeover, timeout=4) == Position(1, 60, TOPIC_ID)


async def test_cancelled_takeover_gives_its_connection_back(positions: Positions, pool: Pool, database: str) -> None:
    """Case 82: a worker that stops while it waits for a lock must not leave a busy connection in the pool."""
    await positions.begin({ORDERS: START})
    async with silent_owner(database, ORDERS) as owner:
        for _ in range(pool.get_max_size() + 1):
            takeover = asyncio.create_task(positions.take_over(ORDERS))
            await until_somebody_waits(owner)
            takeover.cancel()
            await asyncio.gather(takeover, return_exceptions=True)
            assert takeover.cancelled(), "a stop is told as an error of the takeover"

    assert pool.get_idle_size() == pool.get_size()
    assert await positions.take_over(ORDERS) == replace(START, epoch=1)


async def until_somebody_waits(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Returns once a backend waits for a lock that `connection` holds."""
    pid = connection.get_server_pid()
    async with asyncio.timeout(10):
        while not await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))", pid
        ):
            await asyncio.sleep(0.01)
