"""A commit tells Kafka where the group would resume: nothing waits for it without end, and its failure says of what."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.errors import CommitFailedError, IllegalGenerationError, UnknownMemberIdError

from tidegate_kernel import kafka_source
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import KafkaSource
from tidegate_kernel.kafka_metadata import TopicIds
from tidegate_kernel.source import NotAssigned


class _Unanswered:
    """The client while the coordinator is away: it repeats its commit until one answers."""

    async def commit(self, offsets: Mapping[Any, Any]) -> None:
        await asyncio.Event().wait()


class _Refused:
    """The client whose group has moved on."""

    def __init__(self, error: Exception) -> None:
        self._error, self._coordinator = error, SimpleNamespace(generation=7)

    async def commit(self, offsets: Mapping[Any, Any]) -> None:
        raise self._error


async def test_commit_does_not_wait_for_a_coordinator_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker told to end while Kafka is down must end, and a lane must not hang with all its partitions."""
    monkeypatch.setattr(kafka_source, "_COMMIT_SECONDS", 0.05)
    source = KafkaSource(_Unanswered(), cast("TopicIds", None))
    async with asyncio.timeout(5):
        with pytest.raises(Transient, match="orders:0@7: no answer"):
            await source.commit({TopicPartition("orders", 0): 7})


@pytest.mark.parametrize("error", [CommitFailedError(), IllegalGenerationError(), UnknownMemberIdError()])
async def test_refused_commit_names_its_offsets_and_generation(error: Exception) -> None:
    """Case 26: 'commit failed' alone leaves the reader to guess which of forty partitions, and whose fault."""
    source = KafkaSource(_Refused(error), cast("TopicIds", None))
    with pytest.raises(NotAssigned) as told:
        await source.commit({TopicPartition("orders", 1): 9, TopicPartition("orders", 0): 7})
    assert str(told.value).startswith(f"commit of orders:0@7, orders:1@9: {type(error).__name__} in generation 7")
