"""What is locked while a batch waits for its next try, or for a slow service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import asyncpg

from tests.integration.notes import Note, make_loop, note, noted, noted_ids, running, stands_at
from tidegate import Context, RetryLater
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.postgres import Pool

# Two cores that do other things as well; a wait is longer.
_LONGEST_LOCK_SECONDS = 2.0
_OPEN_TRANSACTIONS = """
SELECT pid, state, query FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    AND (xact_start IS NOT NULL OR pid IN (SELECT l.pid FROM pg_locks AS l WHERE l.locktype <> 'virtualxid'))
"""


async def test_nothing_is_locked_while_a_batch_waits(
    pool: Pool, database: str, unique_name: Callable[[str], str]
) -> None:
    """Case 85: a transaction that stays open through a back-off keeps its rows locked from everybody, and one idle
    transaction of minutes keeps Postgres from cleaning up. The table that the handler wrote to can be altered."""
    broker, topic = MemoryBroker(), unique_name("waiting")
    broker.create_topic(topic, 1)
    tries, failed = 0, asyncio.Event()

    async def busy(command: Note, ctx: Context[None]) -> None:
        nonlocal tries
        tries += 1
        await note(command, ctx)
        if tries == 1:
            failed.set()
            raise RetryLater("the other system is busy", after=4)

    loop = await make_loop(pool, database, broker, topic, handler=busy)
    async with running(loop):
        broker.append(noted(topic, 0))
        await failed.wait()

        await _all_transactions_end(database)
        await pool.execute("SET lock_timeout = '100ms'; ALTER TABLE effect ADD COLUMN extra int")
        assert tries == 1, "the batch must still have been waiting, or this shows nothing"
        await stands_at(pool, 1)

    assert tries == 2
    assert await noted_ids(pool) == ["e0"], "what the first try wrote was rolled back"


async def test_nothing_is_locked_while_a_handler_prepares(
    pool: Pool, database: str, unique_name: Callable[[str], str]
) -> None:
    """Case 85: a slow call belongs into `prepare`, which runs before the transaction begins."""
    broker, topic = MemoryBroker(), unique_name("preparing")
    broker.create_topic(topic, 1)
    preparing, answer = asyncio.Event(), asyncio.Event()

    async def fetch(command: Note, deps: object) -> str:
        preparing.set()
        await answer.wait()
        return command.id

    async def note_prepared(command: Note, ctx: Context[None], fetched: str) -> None:
        await note(Note(fetched), ctx)

    loop = await make_loop(pool, database, broker, topic, handler=note_prepared, prepare=fetch)
    async with running(loop):
        broker.append(noted(topic, 0))
        await preparing.wait()

        await _all_transactions_end(database)
        answer.set()
        await stands_at(pool, 1)

    assert await noted_ids(pool) == ["e0"]


async def _all_transactions_end(dsn: str) -> None:
    """Returns when nobody else has an open transaction or a lock; fails if that takes longer than ending one does."""
    connection = await asyncpg.connect(dsn)
    try:
        deadline = time.monotonic() + _LONGEST_LOCK_SECONDS
        while still_open := await connection.fetch(_OPEN_TRANSACTIONS):
            assert time.monotonic() < deadline, still_open
            await asyncio.sleep(0.02)
    finally:
        await connection.close()
