"""The pool of connections under what a rebalance and a stop do: cancel whoever waits or works."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from tidegate_kernel.errors import Transient
from tidegate_kernel.postgres import Connections, Pool, open_pool, translated_errors

_SIZE, _TASKS = 3, 100


async def _settle(pool: Pool) -> None:
    """As a batch does it, with an impatience that most of the tasks feel."""
    with translated_errors("settle"):
        async with pool.acquire(timeout=0.01) as connection, connection.transaction():
            await connection.fetchval("SELECT $1::int FROM pg_sleep(0.005)", 1)


@pytest.mark.parametrize("seed", range(5))
async def test_cancelled_and_impatient_acquires_leave_the_pool_whole(database: str, seed: int) -> None:
    """Case 82: a hundred tasks want one of three connections within 10 ms and are cancelled at random. Afterwards every
    connection is idle, all can be had at once, and the pool closes."""
    chance = random.Random(seed)
    async with open_pool(database, size=_SIZE) as pool:
        tasks = [asyncio.create_task(_settle(pool)) for _ in range(_TASKS)]
        for task in chance.sample(tasks, _TASKS // 2):
            await asyncio.sleep(chance.random() * 0.002)
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)

        assert {type(each) for each in ended} <= {type(None), Transient, asyncio.CancelledError}
        assert any(isinstance(each, asyncio.CancelledError) for each in ended)
        assert any(isinstance(each, Transient) for each in ended), "nobody was impatient"
        assert pool.get_idle_size() == pool.get_size() <= _SIZE
        async with contextlib.AsyncExitStack() as all_of_them:
            for _ in range(_SIZE):
                connection = await all_of_them.enter_async_context(pool.acquire(timeout=60))
                assert not connection.is_in_transaction()
                assert await connection.fetchval("SELECT 1") == 1
        await asyncio.wait_for(pool.close(), timeout=60)


async def _work_on_a_cut_connection(pool: Pool, connections: Connections) -> None:
    with translated_errors("settle"):
        async with pool.acquire(timeout=5) as connection:
            await connection.fetchval("SELECT 1")
            connections.cut()
            await connection.fetchval("SELECT 1")


async def test_a_connection_that_is_cut_between_two_statements_is_an_outage(database: str) -> None:
    """After a failover all connections are cut: what the driver says then is no handler's fault, and no defect."""
    connections = Connections()
    async with open_pool(database, size=1, connections=connections) as pool:
        with pytest.raises(Transient, match="released back"):
            await _work_on_a_cut_connection(pool, connections)
