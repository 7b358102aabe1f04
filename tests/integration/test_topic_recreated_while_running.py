"""A topic that is deleted and made anew under a running consumer which does not notice."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest

from consumers import recreation
from tests.integration.notes import make_loop, noted, noted_ids, running, stands_at, until
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.postgres import Pool


async def test_a_topic_made_anew_unnoticed_stops_its_partition_instead_of_reading_on_in_the_middle(
    pool: Pool, database: str, unique_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1, case 65: a worker cut off while the topic was re-created sees no error, for the new log is long enough. It
    would read on at its old offset, and everything before it would be lost without a word."""
    monkeypatch.setattr(recreation, "LOOK_EVERY_SECONDS", 0.05)
    broker, topic = MemoryBroker(), unique_name("anew")
    broker.create_topic(topic, 1)
    for n in range(3):
        broker.append(noted(topic, n))
    loop = await make_loop(pool, database, broker, topic)

    async def is_blocked() -> bool:
        found = loop.holdings.get(TopicPartition(topic, 0))
        return found is not None and found.blocked is not None

    async with running(loop):
        await stands_at(pool, 3)
        # The name has another topic now, as long as the old one, and no member of the group was told.
        broker._topics[topic].id = uuid4()
        await until(is_blocked)
        held = loop.holdings.get(TopicPartition(topic, 0))

    assert held is not None
    assert "re-created" in (held.blocked or "")
    assert not held.is_ready
    assert await noted_ids(pool) == ["e0", "e1", "e2"]
