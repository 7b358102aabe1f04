"""Leases on a real Postgres: one holder at a time, by the database's clock, each with a greater token."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tidegate_kernel.errors import LeaseLost
from tidegate_kernel.lease import Lease, Token
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.servers

TTL = timedelta(seconds=3)


def lease(pool: Pool, holder: str, *, ttl: timedelta = TTL) -> Lease:
    return Lease(pool, "refresh:tests/counts", holder=holder, ttl=ttl)


async def expire(pool: Pool) -> None:
    """As if its time to live had passed."""
    await pool.execute("UPDATE tidegate.lease SET expires_at = now()")


async def taken(pool: Pool, holder: str, *, ttl: timedelta = TTL) -> Token:
    token = await lease(pool, holder, ttl=ttl).take()
    assert token is not None
    return token


async def test_second_holder_gets_nothing_while_it_lasts(pool: Pool) -> None:
    """Two refreshers would be two loads on the store; two runs of a schedule would be worse."""
    await taken(pool, "a")

    assert await lease(pool, "b").take() is None
    assert await lease(pool, "a").take() is None


async def test_of_many_that_ask_at_once_one_gets_it(pool: Pool) -> None:
    """All workers of a job start together."""
    tokens = await asyncio.gather(*(lease(pool, f"w{n}").take() for n in range(10)))

    assert sorted(token for token in tokens if token is not None) == [1]


async def test_token_grows_with_each_holder(pool: Pool) -> None:
    """G9: a holder that was frozen past its end is told apart from the one that came after it."""
    first = await taken(pool, "a")
    await expire(pool)

    second = await taken(pool, "b")
    await lease(pool, "b").release(second)

    assert first < second < await taken(pool, "a")


async def test_stale_holder_neither_renews_nor_releases(pool: Pool) -> None:
    """G9: it would end the lease of whoever works now."""
    stale = await taken(pool, "a")
    await expire(pool)
    await taken(pool, "b")

    with pytest.raises(LeaseLost, match="refresh:tests/counts"):
        await lease(pool, "a").renew(stale)
    await lease(pool, "a").release(stale)

    assert await lease(pool, "c").take() is None


async def test_expired_lease_cannot_be_renewed_even_if_nobody_took_it(pool: Pool) -> None:
    """Somebody may have begun to take it: what has ended has ended."""
    token = await taken(pool, "a")
    await expire(pool)

    with pytest.raises(LeaseLost):
        await lease(pool, "a").renew(token)


async def test_kept_lease_outlives_its_time_to_live_and_is_released_at_the_end(pool: Pool) -> None:
    """Renewed at thirds: the block is longer than the lease, and nobody has to wait for its end afterwards."""
    ttl = timedelta(seconds=0.9)
    mine = lease(pool, "a", ttl=ttl)

    async with mine.keep(await taken(pool, "a", ttl=ttl)):
        until = asyncio.get_running_loop().time() + 2
        while asyncio.get_running_loop().time() < until:
            assert await lease(pool, "b").take() is None
            await asyncio.sleep(0.05)

    assert await lease(pool, "b").take() is not None


async def test_holder_that_lost_it_is_cancelled_in_its_block(pool: Pool) -> None:
    """What it does beyond its end is done twice."""
    ttl = timedelta(seconds=0.9)
    mine, token = lease(pool, "a", ttl=ttl), await taken(pool, "a", ttl=ttl)

    async def work() -> None:
        async with asyncio.timeout(5), mine.keep(token):
            await expire(pool)
            await taken(pool, "b")
            await asyncio.Event().wait()

    with pytest.raises(LeaseLost):
        await work()

    assert await lease(pool, "c").take() is None, "the other's lease was released"


async def test_holder_that_cannot_renew_is_cancelled_before_the_end(pool: Pool) -> None:
    """With Postgres away nobody tells it that another has the lease."""
    ttl = timedelta(seconds=3)
    mine, token = lease(pool, "a", ttl=ttl), await taken(pool, "a", ttl=ttl)
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def work() -> None:
        # A table lock holds back every renewal, as a server that does not answer would.
        async with pool.acquire() as connection, mine.keep(token), connection.transaction():
            await connection.execute("LOCK TABLE tidegate.lease IN ACCESS EXCLUSIVE MODE")
            await asyncio.Event().wait()

    with pytest.raises(LeaseLost, match="renewed in time"):
        await work()

    assert loop.time() - began < ttl.total_seconds() + 2


async def test_an_error_of_the_block_passes_as_it_is(pool: Pool) -> None:
    """A time-out of the work is no lost lease."""
    mine = lease(pool, "a")

    with pytest.raises(TimeoutError):
        async with mine.keep(await taken(pool, "a")), asyncio.timeout(0.01):
            await asyncio.Event().wait()

    assert await lease(pool, "b").take() is not None
