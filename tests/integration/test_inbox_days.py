"""The inbox's days on real Postgres: attached ahead of time, without holding claims up."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from datetime import date, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from consumers.positions import Position, Positions
from inbox.days import attach_days
from inbox.identity import CONSTANT_BUCKET, ClaimKey
from inbox.store import claim, register_job
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import LIVE, Fence, JobCode, TopicPartition
from tidegate_kernel.postgres import Connection, Pool

TODAY = date(2024, 2, 28)
ALL_DAYS = [TODAY + timedelta(days=n) for n in range(-2, 8)]
SILENCE_LIMIT = timedelta(seconds=30)


@pytest.fixture
async def connection(database: str) -> AsyncIterator[Connection]:
    opened = await asyncpg.connect(database)
    yield opened
    await opened.close()


@pytest.fixture
async def fence(pool: Pool) -> Fence:
    async with pool.acquire() as connection:
        job = await register_job(connection, service="tests", code=JobCode("notes"), claim_rule="v1")
    positions, partition = Positions(pool, job=job, run=LIVE, owner="tests"), TopicPartition("orders", 0)
    await positions.begin({partition: Position(0, 0, UUID(int=7))})
    taken = await positions.take_over(partition)
    assert taken is not None
    return positions.fence(partition, taken)


def key(bucket: date) -> ClaimKey:
    return ClaimKey(bucket, uuid4())


async def take(pool: Pool, fence: Fence, keys: Sequence[ClaimKey]) -> None:
    async with pool.acquire() as connection, connection.transaction():
        await claim(connection, fence, keys, silence_limit=SILENCE_LIMIT)


async def partitions_of(connection: Connection, keys: Sequence[ClaimKey]) -> list[str]:
    rows = await connection.fetch("SELECT id, tableoid::regclass::text AS name FROM tidegate.inbox")
    by_id = {row["id"]: row["name"].removeprefix("tidegate.") for row in rows}
    return [by_id[each.id] for each in keys]


async def test_days_around_today_are_attached_once(connection: Connection) -> None:
    """Ahead of time, over a leap day: the first claim of a day finds its partition, and a second round does nothing."""
    assert await attach_days(connection, TODAY) == ALL_DAYS
    assert await attach_days(connection, TODAY) == []
    assert await attach_days(connection, TODAY + timedelta(days=1)) == [TODAY + timedelta(days=8)]


async def test_claims_land_in_the_partition_of_their_day(connection: Connection, pool: Pool, fence: Fence) -> None:
    """A day that is dropped later takes exactly its own claims with it."""
    await attach_days(connection, TODAY)
    buckets = [TODAY, TODAY + timedelta(days=7), CONSTANT_BUCKET, TODAY + timedelta(days=8), date(1999, 1, 1)]
    keys = [key(bucket) for bucket in buckets]

    await take(pool, fence, keys)

    assert await partitions_of(connection, keys) == [
        "inbox_20240228",
        "inbox_20240306",
        "inbox_constant",
        "inbox_default",
        "inbox_default",
    ]


async def test_two_workers_attach_the_same_days_at_once(database: str, connection: Connection) -> None:
    """Every worker does this at its start: none may fail, and together they attach each day once."""
    other = await asyncpg.connect(database)
    try:
        attached = await asyncio.gather(attach_days(connection, TODAY), attach_days(other, TODAY))
        left = await attach_days(connection, TODAY)
    finally:
        await other.close()

    days = [day for each in (*attached, left) for day in each]
    assert sorted(days) == ALL_DAYS


async def test_row_type_of_another_workers_table_is_no_failure(connection: Connection) -> None:
    """Two tables of one name at the same moment: the later one may find the other's row type first, and goes on."""
    await connection.execute(f"CREATE DOMAIN tidegate.inbox_{TODAY:%Y%m%d} AS text")
    assert await attach_days(connection, TODAY) == [day for day in ALL_DAYS if day != TODAY]


async def test_day_with_claims_in_default_stays_there(connection: Connection, pool: Pool, fence: Fence) -> None:
    """Moving rows would make claims fail or wait: the day is left alone for good, and its claims are found."""
    early = key(TODAY)
    await take(pool, fence, [early])

    attached = await attach_days(connection, TODAY)

    assert attached == [day for day in ALL_DAYS if day != TODAY]
    assert await attach_days(connection, TODAY) == []
    async with pool.acquire() as other, other.transaction():
        assert await claim(other, fence, [early, key(TODAY)], silence_limit=SILENCE_LIMIT) == {0}


async def test_open_handler_makes_upkeep_wait_not_other_claims(
    connection: Connection, pool: Pool, fence: Fence, database: str
) -> None:
    """A handler may hold claims in the default partition for half a minute: upkeep gives up soon, and claims go on."""
    other_fence = fence._replace(partition=1)
    await pool.execute(
        "INSERT INTO tidegate.position (job, topic, partition, next_offset, epoch, topic_id) "
        "SELECT job, topic, 1, next_offset, epoch, topic_id FROM tidegate.position"
    )
    async with pool.acquire() as handler, handler.transaction():
        await claim(handler, fence, [key(date(1999, 1, 1))], silence_limit=SILENCE_LIMIT)
        began = time.monotonic()
        upkeep = asyncio.create_task(attach_days(connection, TODAY))
        while not upkeep.done():
            await take(pool, other_fence, [key(date(1999, 1, 2)), key(CONSTANT_BUCKET)])

        assert await upkeep == []
        assert time.monotonic() - began < 2, "one lock time-out a round; one for each day would add up to five seconds"

    assert await attach_days(connection, TODAY) == ALL_DAYS


async def test_role_that_owns_nothing_is_told_the_remedy(connection: Connection) -> None:
    """A worker with fewer rights goes on: upkeep says what it lacks, in words that name the remedy."""
    role = f"poor_{secrets.token_hex(4)}"
    await connection.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA tidegate TO {role}")
    await connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA tidegate TO {role}; SET ROLE {role}")
    try:
        with pytest.raises(Misconfigured, match=r"own tidegate\.inbox"):
            await attach_days(connection, date(2026, 3, 10))
    finally:
        await connection.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")
