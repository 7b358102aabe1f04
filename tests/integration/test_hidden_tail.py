"""Offsets at a log's end that hold no record: markers and aborted records of a producer's transactions."""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.notes import make_loop, noted, noted_ids, running, stands_at
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.postgres import Pool


async def test_an_idle_topic_of_a_transactional_producer_is_no_gap_after_retention(
    pool: Pool, database: str, unique_name: Callable[[str], str]
) -> None:
    """G1, case 38: every transaction ends in a marker. A position that stays before the last one is a gap as soon as
    retention has emptied the topic: the next start would stop all partitions for records that never were."""
    broker, topic = MemoryBroker(), unique_name("tail")
    broker.create_topic(topic, 1)
    log = broker.log(TopicPartition(topic, 0))
    assert log is not None
    broker.append(noted(topic, 0))
    log.skip(1)
    async with running(await make_loop(pool, database, broker, topic)):
        await stands_at(pool, 2)

    log.trim(2)
    again = await make_loop(pool, database, broker, topic)
    async with running(again):
        broker.append(noted(topic, 1))
        await stands_at(pool, 3)

    assert await noted_ids(pool) == ["e0", "e1"]
