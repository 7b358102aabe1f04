"""A partition that has no room to park: it rests, says so, and goes on by itself; with Kafka in memory."""

from __future__ import annotations

from datetime import timedelta

import pytest

from consumers.lags import lags_of
from consumers.parking import ParkingLimit
from dlq.parking import record_key
from dlq.sequences import beginnings, lock_keys, take_out
from tests.integration.notes import Note, make_loop, note, noted, running, stands_at, until
from tidegate import Context, Rejected, RetryPolicy
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.event import JobId
from tidegate_kernel.postgres import Pool
from tidegate_kernel.source import Outgoing

TOPIC = "orders"
SOON = RetryPolicy(first_delay=timedelta(milliseconds=10), longest_delay=timedelta(milliseconds=10))


async def refuse_the_first(command: Note, ctx: Context[None]) -> None:
    if command.id == "e0":
        raise Rejected("no")
    await note(command, ctx)


def keyed(n: int, key: bytes) -> Outgoing:
    told = noted(TOPIC, n)
    return Outgoing(told.topic, told.value, key, told.headers, partition=0)


async def is_told(pool: Pool) -> bool:
    return bool(await pool.fetchval("SELECT count(*) FROM tidegate.presence WHERE state = 'parking'"))


@pytest.mark.timeout(60)
async def test_a_partition_without_room_rests_until_there_is_some(pool: Pool, database: str) -> None:
    """G4, G1: at the bound nothing passes its key and nothing is dropped; what it was for is over, and it goes on."""
    broker = MemoryBroker()
    broker.create_topic(TOPIC, 1)
    records = [broker.append(keyed(n, key)) for n, key in enumerate([b"k", b"k", b"l", b"k", b"l"])]
    loop = await make_loop(
        pool, database, broker, TOPIC, handler=refuse_the_first, retry=SOON, parking=ParkingLimit(per_key=1)
    )

    async with running(loop):
        await stands_at(pool, 3)
        await until(lambda: is_told(pool))
        assert await _noted(pool) == ["e2"]
        detail = await pool.fetchval("SELECT detail FROM tidegate.presence")
        assert detail == "offset 3 has to be parked, and 1 events are parked behind a dead letter of the same key"
        assert [each.is_full for each in lags_of(loop.holdings, loop.source, loop.clock.now())] == [True]  # type: ignore[arg-type]

        key = record_key(records[0])
        assert key is not None
        async with pool.acquire() as connection, connection.transaction():
            job = JobId(await connection.fetchval("SELECT id FROM tidegate.job"))
            await lock_keys(connection, job, [key])
            links = (await beginnings(connection, job, [key], limit=10))[key]
            letters = [link.letter for link in links if link.letter is not None]
            events = [link.parked for link in links if link.parked is not None]
            await take_out(connection, job, letters=letters, events=events, keys=[key])
        await stands_at(pool, 5)

    assert await _noted(pool) == ["e2", "e3", "e4"]


async def _noted(pool: Pool) -> list[str]:
    return [row["id"] for row in await pool.fetch("SELECT id FROM effect ORDER BY id")]
