"""Kafka in this process: the ports of `tidegate_kernel.source` without a server.

Checked by the contract suite that also runs on the real client (`tests/contract/test_kafka_ports.py`). Beyond that it
breaks on demand: failing fetches, records that no client can read, lost connections, retention, re-created topics.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from tidegate.testing.log import StoredRecord
from tidegate.testing.memory_source import MemorySource
from tidegate.testing.memory_topics import MemoryTopics
from tidegate.testing.memory_writer import MemoryWriter, Transaction
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.source import Assigned, Revoked

__all__ = ["MemoryBroker", "MemorySource", "MemoryWriter", "StoredRecord", "Transaction"]


class MemoryBroker(MemoryTopics):
    """A broker: topics, logs and groups, and clients of it. Use from one event loop."""

    def __init__(self, clock: Clock | None = None, *, creates_topics: bool = False) -> None:
        super().__init__(clock, creates_topics=creates_topics)
        self._transactions = itertools.count(1)

    @asynccontextmanager
    async def join(
        self, group: str, topics: Sequence[str], on_assigned: Assigned, on_revoked: Revoked
    ) -> AsyncIterator[MemorySource]:
        """Yields a member of `group` that has its first assignment; leaves the group afterwards.

        Raises Misconfigured for an unknown topic or while the broker is down.
        """
        missing = [topic for topic in topics if not self.partitions(topic)]
        if self.is_down or missing:
            raise Misconfigured(f"the broker is down or has no topic {missing}; create it with create_topic")
        members = self.group(group)
        source = MemorySource(self, members, topics, on_assigned=on_assigned, on_revoked=on_revoked)
        await members.join(source)
        try:
            yield source
        finally:
            await source.close()

    @asynccontextmanager
    async def reader(self, partitions: Iterable[TopicPartition] = ()) -> AsyncIterator[MemorySource]:
        """Yields a reader of `partitions` outside any group."""
        source = MemorySource(self, None, ())
        source.assign(frozenset(partitions))
        try:
            yield source
        finally:
            await source.close()

    def writer(self) -> MemoryWriter:
        """A writer on this broker."""
        return MemoryWriter(self)

    def transaction(self) -> Transaction:
        """Begins a producer's transaction: readers see what it writes once it commits."""
        return Transaction(self, next(self._transactions))
