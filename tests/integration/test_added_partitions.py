"""More partitions for a topic whose keys have an order: a key's later records go to another one than its earlier."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from aiokafka.admin import NewPartitions

from consumers.loop import ConsumerLoop
from tests.integration.notes import running, until
from tests.integration.offset_bench import OPERATOR, Bench, letters, make_topic
from tidegate.jobs.intents import pause, resume
from tidegate.jobs.selection import select
from tidegate.stack.names import StackAddresses
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import open_reader
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import KafkaSettings

pytestmark = pytest.mark.timeout(150)


@pytest.fixture
async def bench(pool: Pool, database: str, stack: StackAddresses, unique_name: Callable[[str], str]) -> Bench:
    kafka = KafkaSettings(
        bootstrap=stack.kafka_bootstrap, session_timeout=timedelta(seconds=6), heartbeat_interval=timedelta(seconds=1)
    )
    made = Bench(pool, database, kafka, [unique_name("added")])
    await make_topic(kafka, made.topic)
    return made


async def test_an_added_partition_is_not_read_before_what_the_older_ones_held(bench: Bench) -> None:
    """G4: the key's later records would overtake its earlier ones. What waits is stored: the next owner, after a
    restart, waits for the same offset, and not for the end of a log that goes on growing."""
    await bench.send(*letters(0, 2))
    async with running(await bench.loop()):
        await bench.stands_at(2)
    await bench.send(*letters(2, 5))
    await _add_partition(bench)
    await bench.send(*letters(20, 23), partition=1)

    async with _with_partition_0_paused(bench):
        first = await bench.loop()
        async with running(first):
            told = await _waits(first, bench)
            assert "begins once partition 0, now at 2, has reached 5" in told
        await bench.send(*letters(5, 8))
        assert await bench.position(1) == 0
        second = await bench.loop()
        async with running(second):
            assert await _waits(second, bench) == told
    assert await bench.effects() == letters(0, 2)

    async with running(await bench.loop()):
        await bench.stands_at(3, partition=1)
        await bench.stands_at(8)
    done = [row["id"] for row in await bench.pool.fetch("SELECT id FROM effect ORDER BY ctid")]
    assert set(letters(2, 5)) < set(done[: done.index(letters(20, 21)[0])])
    assert sorted(done) == sorted(letters(0, 8) + letters(20, 23))


async def test_partitions_of_a_job_that_starts_wait_for_nobody(bench: Bench) -> None:
    """None of them was added later, whichever worker begins with which of them."""
    await _add_partition(bench)
    await bench.send(*letters(0, 3))
    await bench.send(*letters(3, 6), partition=1)
    async with _with_partition_0_paused(bench), running(await bench.loop()):
        await bench.stands_at(3, partition=1)
    assert await bench.effects() == letters(3, 6)


async def _waits(loop: ConsumerLoop, bench: Bench) -> str:
    """Returns why the added partition is not read, once the other one is owned."""
    old, added = TopicPartition(bench.topic, 0), TopicPartition(bench.topic, 1)

    async def is_decided() -> bool:
        is_told = bool(loop.being_taken().get(added))
        return old in loop.holdings.owned and (is_told or added in loop.holdings.owned)

    await until(is_decided)
    assert added not in loop.holdings.owned, "it is read at once"
    return loop.being_taken()[added]


@asynccontextmanager
async def _with_partition_0_paused(bench: Bench) -> AsyncIterator[None]:
    chosen = select(bench.app, "notes", place=f"{bench.topic}:0")
    await pause(bench.pool, OPERATOR, chosen, reason="first")
    yield
    await resume(bench.pool, OPERATOR, chosen, reason="")


async def _add_partition(bench: Bench) -> None:
    async with bench.admin() as admin:
        await admin.create_partitions({bench.topic: NewPartitions(2, None)})
    async with open_reader(bench.kafka) as reader:
        while len(await reader.partitions_of(bench.topic)) < 2:
            await asyncio.sleep(0.05)
