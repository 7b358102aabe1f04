"""A commit tells Kafka where the group would resume; nothing may wait for it without end."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from tidegate_kernel import kafka_source
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import KafkaSource
from tidegate_kernel.kafka_metadata import TopicIds


class _Unanswered:
    """The client while the coordinator is away: it repeats its commit until one answers."""

    async def commit(self, offsets: Mapping[Any, Any]) -> None:
        await asyncio.Event().wait()


async def test_commit_does_not_wait_for_a_coordinator_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker told to end while Kafka is down must end, and a lane must not hang with all its partitions."""
    monkeypatch.setattr(kafka_source, "_COMMIT_SECONDS", 0.05)
    source = KafkaSource(_Unanswered(), cast("TopicIds", None))
    async with asyncio.timeout(5):
        with pytest.raises(Transient, match="orders:0@7: no answer"):
            await source.commit({TopicPartition("orders", 0): 7})
