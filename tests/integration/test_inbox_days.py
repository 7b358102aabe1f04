"""The inbox's days on real Postgres: attached ahead of time, without holding claims up."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from datetime import date, timedelta

import asyncpg
import pytest

from inbox.days import attach_days
from inbox.identity import CONSTANT_BUCKET
from inbox.store import claim
from tests.integration.claims import SILENCE_LIMIT, key, owner, partitions_of, set_today, take
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import Fence
from tidegate_kernel.postgres import Connection, Pool

TODAY = date(2024, 2, 28)
# With a horizon of three days.
COMING = [TODAY + timedelta(days=n) for n in range(8)]
PAST = [TODAY - timedelta(days=n) for n in (3, 2, 1)]
ALL_DAYS = COMING + PAST


@pytest.fixture
async def connection(database: str) -> AsyncIterator[Connection]:
    opened = await asyncpg.connect(database)
    await set_today(opened, TODAY)
    yield opened
    await opened.close()


@pytest.fixture
async def fence(pool: Pool) -> Fence:
    return await owner(pool, horizon=timedelta(days=3))


async def test_days_around_today_are_attached_once(connection: Connection, fence: Fence) -> None:
    """Ahead of time, over a leap day: the first claim of a day finds its partition, and a second round does nothing."""
    assert await attach_days(connection) == (ALL_DAYS, [])
    assert await attach_days(connection) == ([], [])
    await set_today(connection, TODAY + timedelta(days=1))
    assert await attach_days(connection) == ([TODAY + timedelta(days=8)], [])


@pytest.mark.parametrize("horizon, behind", [(1, 2), (14, 14), (90, 31), (None, 31)])
async def test_days_go_back_as_far_as_claims_are_remembered(
    connection: Connection, pool: Pool, horizon: int | None, behind: int
) -> None:
    """A job that starts on a topic with a history would fill the default partition, which is searched at each ATTACH;
    a year of history is not worth 365 tables."""
    await owner(pool, horizon=None if horizon is None else timedelta(days=horizon))
    attached, _ = await attach_days(connection)
    assert min(attached) == TODAY - timedelta(days=behind)
    assert max(attached) == TODAY + timedelta(days=7)


@pytest.mark.parametrize("day", [None, date.min, TODAY - timedelta(days=32), TODAY + timedelta(days=8), date.max])
async def test_no_partition_for_a_day_that_is_not_near(connection: Connection, fence: Fence, day: date | None) -> None:
    """A skewed clock, or whoever calls the function by hand, must not litter the schema with tables."""
    with pytest.raises(asyncpg.InvalidParameterValueError):
        await connection.fetchval("SELECT tidegate.attach_inbox_day($1)", day)


async def test_claims_land_in_the_partition_of_their_day(connection: Connection, pool: Pool, fence: Fence) -> None:
    """A day that is dropped later takes exactly its own claims with it; days of broken clocks have no partition."""
    await attach_days(connection)
    far = [TODAY + timedelta(days=8), date(1999, 1, 1), date.min, date.max]
    keys = [key(bucket) for bucket in (TODAY, TODAY + timedelta(days=7), CONSTANT_BUCKET, *far)]

    await take(pool, fence, keys)

    assert await partitions_of(connection, keys) == ["20240228", "20240306", "constant", *["default"] * 4]
    assert await take(pool, fence, keys) == frozenset(range(len(keys)))


async def test_two_workers_attach_the_same_days_at_once(database: str, connection: Connection, fence: Fence) -> None:
    """Every worker does this at its start: none may fail, and together they attach each day once."""
    other = await asyncpg.connect(database)
    try:
        both = await asyncio.gather(attach_days(connection), attach_days(other))
        left = await attach_days(connection)
    finally:
        await other.close()

    days = [day for each in (*both, left) for day in each.days]
    assert sorted(days) == sorted(ALL_DAYS)


async def test_row_type_of_another_workers_table_is_no_failure(connection: Connection, fence: Fence) -> None:
    """Two tables of one name at the same moment: the later one may find the other's row type first, and goes on."""
    await connection.execute(f"CREATE DOMAIN tidegate.inbox_{TODAY:%Y%m%d} AS text")
    assert await attach_days(connection) == ([day for day in ALL_DAYS if day != TODAY], [])


async def test_day_with_claims_in_default_stays_there(connection: Connection, pool: Pool, fence: Fence) -> None:
    """Moving rows would make claims fail or wait: the day is left alone for good, and its claims are found."""
    early = key(TODAY)
    await take(pool, fence, [early])

    assert (await attach_days(connection)).days == [day for day in ALL_DAYS if day != TODAY]
    assert await attach_days(connection) == ([], [])
    assert await connection.fetchval("SELECT tidegate.attach_inbox_day($1)", TODAY) is False
    assert await take(pool, fence, [early, key(TODAY)]) == {0}


async def test_open_handler_makes_upkeep_wait_not_other_claims(
    connection: Connection, pool: Pool, fence: Fence
) -> None:
    """A handler may hold claims in the default partition for half a minute: upkeep gives up soon, and claims go on."""
    other = await owner(pool, partition=1, horizon=timedelta(days=3))
    longest = 0.0
    async with pool.acquire() as handler, handler.transaction():
        await claim(handler, fence, [key(date(1999, 1, 1))], silence_limit=SILENCE_LIMIT)
        began = time.monotonic()
        upkeep = asyncio.create_task(attach_days(connection))
        while not upkeep.done():
            asked = time.monotonic()
            await take(pool, other, [key(date(1999, 1, 2)), key(CONSTANT_BUCKET)])
            longest = max(longest, time.monotonic() - asked)

        assert await upkeep == ([], ALL_DAYS)
        assert time.monotonic() - began < 4, "one lock time-out a round; one for each day would add up to five seconds"
        assert longest < 10, "a claim waits no longer than the lock time-out of half a second"

    assert await attach_days(connection) == (ALL_DAYS, [])


async def test_role_that_owns_nothing_can_keep_the_inbox(connection: Connection, fence: Fence) -> None:
    """Workers run with few rights: what makes and drops tables runs as its owner; without EXECUTE a remedy is told."""
    role = f"poor_{secrets.token_hex(4)}"
    await connection.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA tidegate TO {role}")
    await connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA tidegate TO {role}; SET ROLE {role}")
    try:
        with pytest.raises(Misconfigured, match=r"tidegate migrate --worker-role ROLE"):
            await attach_days(connection)
        await connection.execute(
            f"RESET ROLE; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tidegate TO {role}; SET ROLE {role}"
        )
        assert await attach_days(connection) == (ALL_DAYS, [])
    finally:
        await connection.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")
