"""What the driver's errors become at the edge."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from tidegate_kernel.cancellation import raise_if_cancelled
from tidegate_kernel.errors import Transient
from tidegate_kernel.postgres import translated_errors


async def _work(started: asyncio.Event) -> None:
    """A transaction whose connection breaks while its owner is told to end."""
    with translated_errors("settle"):
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            raise asyncpg.InterfaceError("cannot call Transaction.__aexit__(): the underlying connection is closed")


@pytest.mark.parametrize(
    "told",
    [
        "connection is closed",
        "cannot call Connection.fetchrow(): connection has been released back to the pool",
    ],
)
async def test_a_broken_connection_is_transient(told: str) -> None:
    """Whoever waits and tries again knows it by its class. The second tells of a cut between statements."""
    with pytest.raises(Transient, match="settle: InterfaceError"), translated_errors("settle"):
        raise asyncpg.InterfaceError(told)


async def test_a_cancellation_is_not_lost_in_the_error_of_a_broken_connection() -> None:
    """Upkeep catches Transient and goes on: taken for one, a cancellation would leave it running for ever."""
    started = asyncio.Event()
    task = asyncio.create_task(_work(started))
    await started.wait()

    task.cancel()
    await asyncio.wait([task], timeout=5)

    assert task.cancelled()


async def test_a_time_limit_is_not_lost_in_the_error_of_a_broken_connection() -> None:
    """A time limit is a cancellation too: who sets one waits for TimeoutError, and for nothing else."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await _work(asyncio.Event())


async def _fail(wanted: asyncio.Event) -> None:
    await wanted.wait()
    raise Transient("the broker is down")


async def test_a_cancellation_is_not_lost_in_what_was_gathered() -> None:
    """`asyncio.gather` raises what a part of it raised, also where it was cancelled in that very moment."""
    wanted = asyncio.Event()

    async def look() -> None:
        while True:
            try:
                await asyncio.gather(_fail(wanted), asyncio.Event().wait())
            except Transient as error:
                raise_if_cancelled(error)
                await asyncio.Event().wait()

    task = asyncio.create_task(look())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    wanted.set()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=5)

    assert task.cancelled()
