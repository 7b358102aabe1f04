"""What the in-memory Kafka holds: topics, their logs, groups, and the faults that were asked for."""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from tidegate.testing.groups import Group
from tidegate.testing.log import Log, StoredRecord
from tidegate_kernel.clock import Clock, SystemClock
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import Headers, TopicPartition
from tidegate_kernel.source import Outgoing, SourceFailure

_MAX_MESSAGE_BYTES = 1024 * 1024  # a broker's own default


@dataclass(slots=True)
class _Topic:
    id: UUID
    logs: list[Log]
    max_message_bytes: int
    turn: Iterator[int] = field(default_factory=itertools.count)


class MemoryTopics:
    """Topics, logs and groups, without their clients. Use from one event loop.

    While `is_down`, every request of sources and writers fails as over a lost connection. With `creates_topics`, what
    is written to an unknown topic creates it, with one partition.
    """

    def __init__(self, clock: Clock | None = None, *, creates_topics: bool = False) -> None:
        self.clock = clock or SystemClock()
        self._creates_topics = creates_topics
        self._topics: dict[str, _Topic] = {}
        self._groups: dict[str, Group] = {}
        self._failures: list[tuple[TopicPartition | None, SourceFailure]] = []
        self._is_down = False
        self._change: asyncio.Future[None] | None = None
        self._rebalances: set[asyncio.Task[None]] = set()

    # Topics and records.

    def create_topic(self, name: str, partitions: int = 1, *, max_message_bytes: int = _MAX_MESSAGE_BYTES) -> UUID:
        """Returns the new topic's id. Raises Misconfigured if there is one of that name."""
        if name in self._topics:
            raise Misconfigured(f"topic {name!r} exists already")
        logs = [Log(name, number) for number in range(partitions)]
        self._topics[name] = _Topic(uuid4(), logs, max_message_bytes)
        self._rebalance_readers_of(name)
        return self._topics[name].id

    def delete_topic(self, name: str) -> None:
        """The topic and its records are gone."""
        del self._topics[name]
        self.notify()

    def recreate_topic(self, name: str) -> UUID:
        """Returns the id of a new, empty topic under the old name, with as many partitions."""
        partitions = len(self._topics[name].logs)
        self.delete_topic(name)
        return self.create_topic(name, partitions)

    def topic_id(self, name: str) -> UUID:
        """The topic's id; all zeros where there is none."""
        topic = self._topics.get(name)
        return UUID(int=0) if topic is None else topic.id

    def partitions(self, name: str) -> list[TopicPartition]:
        """The topic's partitions in order; none for an unknown topic."""
        topic = self._topics.get(name)
        return [] if topic is None else [TopicPartition(name, log.partition) for log in topic.logs]

    def log(self, partition: TopicPartition) -> Log | None:
        """The log of `partition`, to look at or to break; None if it does not exist."""
        topic = self._topics.get(partition.topic)
        return topic.logs[partition.partition] if topic is not None and partition.partition < len(topic.logs) else None

    def append(self, outgoing: Outgoing, *, transaction: int | None = None) -> StoredRecord:
        """Returns the record as it stands in the log, visible to readers at once unless it belongs to a transaction."""
        if outgoing.topic not in self._topics and self._creates_topics:
            self.create_topic(outgoing.topic)
        topic = self._topics.get(outgoing.topic)
        if topic is None:
            raise Misconfigured(f"topic {outgoing.topic!r} does not exist; create it with create_topic")
        timestamp = int(self.clock.now().timestamp() * 1000) if outgoing.timestamp is None else outgoing.timestamp
        record = topic.logs[_partition_of(outgoing, topic)].append(
            timestamp=timestamp,
            key=outgoing.key,
            value=outgoing.value,
            headers=outgoing.headers,
            transaction=transaction,
        )
        self.notify()
        return record

    def put(
        self, partition: TopicPartition, value: bytes | None, *, key: bytes | None = None, headers: Headers = ()
    ) -> StoredRecord:
        """Returns the record that now stands at the end of `partition`."""
        return self.append(Outgoing(partition.topic, value, key, headers, partition=partition.partition))

    def records(self, topic: str) -> list[StoredRecord]:
        """What a reader of the topic can see, partition by partition in offset order."""
        known = self._topics.get(topic)
        return [] if known is None else [record for log in known.logs for record in log.records()]

    def max_message_bytes(self, topic: str) -> int | None:
        """The topic's limit; None for a topic that cannot be written to because it does not exist."""
        known = self._topics.get(topic)
        if known is None:
            return _MAX_MESSAGE_BYTES if self._creates_topics else None
        return known.max_message_bytes

    def group(self, name: str) -> Group:
        """The group of that name, made at the first mention."""
        return self._groups.setdefault(name, Group(self.partitions))

    # Trouble.

    @property
    def is_down(self) -> bool:
        return self._is_down

    @is_down.setter
    def is_down(self, value: bool) -> None:
        self._is_down = value
        self.notify()

    def fail_next_fetch(self, failure: SourceFailure, partition: TopicPartition | None = None) -> None:
        """The next fetch (of `partition`, or of any) raises `failure`; what it had drained from others is lost."""
        self._failures.append((partition, failure))
        self.notify()

    def take_failure(self, partition: TopicPartition | None) -> SourceFailure | None:
        """The failure asked for `partition`, once."""
        for index, (about, failure) in enumerate(self._failures):
            if about == partition:
                del self._failures[index]
                return failure
        return None

    async def rebalanced(self) -> None:
        """Every rebalance that leaving members or changed topics set off has come to its end."""
        while self._rebalances:
            await asyncio.wait(list(self._rebalances))

    # What sources wait for.

    def changed(self) -> asyncio.Future[None]:
        """Done at the next change of anything: a record, an assignment, a fault, the connection."""
        if self._change is None or self._change.done():
            self._change = asyncio.get_running_loop().create_future()
        return self._change

    def notify(self) -> None:
        """Something changed: whoever waits looks again."""
        if self._change is not None and not self._change.done():
            self._change.set_result(None)

    def rebalance_later(self, group: Group) -> None:
        """The remaining members are rebalanced in the background: who leaves does not wait for them."""
        if group.members:
            task = asyncio.get_running_loop().create_task(group.rebalance(), name="rebalance")
            self._rebalances.add(task)
            task.add_done_callback(self._rebalances.discard)

    def _rebalance_readers_of(self, topic: str) -> None:
        for group in self._groups.values():
            if any(topic in member.topics for member in group.members):
                self.rebalance_later(group)
        self.notify()


def _partition_of(outgoing: Outgoing, topic: _Topic) -> int:
    """By key, always the same; without a key in turn."""
    if outgoing.partition is not None:
        return outgoing.partition
    if outgoing.key is None:
        return next(topic.turn) % len(topic.logs)
    return zlib.crc32(outgoing.key) % len(topic.logs)
