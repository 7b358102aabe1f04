"""Ports to Kafka: a reader of records and a writer of records.

Two implementations pass one contract suite (`tests/contract`): `tidegate_kernel.kafka` on the real client and
`tidegate.testing.memory` in process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from uuid import UUID

from tidegate_kernel.errors import Transient
from tidegate_kernel.event import Record, TopicPartition

Revoked = Callable[[frozenset[TopicPartition]], Awaitable[None]]
Assigned = Callable[[frozenset[TopicPartition]], None]


class SourceFailure(Transient):
    """Fetching failed. Whatever the client had buffered may be gone: seek every partition before the next fetch."""

    is_about_a_record = False


class UnreadableRecord(SourceFailure):
    """The client cannot hand over one record: a header name that is no UTF-8, or a size above the fetch limit.

    `offset` is None where the client does not say which. `record` is what could be read around the client, to be kept
    and not to be handled: bytes of a header's name that are no text are lone surrogates in it.
    """

    is_about_a_record = True

    def __init__(self, message: str, *, offset: int | None = None, record: Record | None = None) -> None:
        super().__init__(message)
        self.offset, self.record = offset, record


class CorruptBatch(SourceFailure):
    """A batch fails its checksum or cannot be decompressed. Reading on would lose it, so it blocks its partition."""

    is_about_a_record = True


class OffsetOutOfRange(SourceFailure):
    """The log does not hold the offset: retention removed it, or the topic was re-created. Never jumped over."""

    is_about_a_record = True


class ClientDied(SourceFailure):
    """The client has ceased to work for good. Neither a record nor Kafka is at fault: a new client is needed."""


class NotAssigned(Transient):
    """The partition is not (or no longer) assigned to this member."""


class NotAcknowledged(Transient):
    """Kafka did not confirm a write; it may or may not have happened."""


class MessageTooLarge(NotAcknowledged):
    """The broker or the client refuses a message of this size for the topic; it was not written."""


class LogRange(NamedTuple):
    """Offsets that a partition holds now: the first kept one, and the next to be written (last stable offset)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to be written. `timestamp` in milliseconds; None lets the client say now."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int | None = None
    partition: int | None = None


class RecordSource(Protocol):
    """A member of a consumer group, or a reader of assigned partitions. Used from one event loop only."""

    def require_alive(self) -> None:
        """Returns while the client works, whether or not Kafka answers it. Raises ClientDied.

        Asks nobody. Every method that may raise Transient raises ClientDied in its place where that is why it failed.
        """

    def assignment(self) -> frozenset[TopicPartition]:
        """Partitions the client believes are ours now."""

    async def fetch(
        self, partitions: Iterable[TopicPartition], *, max_records: int, timeout: float
    ) -> Mapping[TopicPartition, Sequence[Record]]:
        """Returns at most `max_records` records of `partitions` in offset order, or nothing after `timeout` seconds.

        Raises SourceFailure; afterwards the client's own positions mean nothing until they are sought. Two tasks may
        fetch disjoint partitions at once.
        """

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """The next fetch of `partition` starts at `offset`. Raises NotAssigned."""

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops fetching them, keeps membership. Unassigned partitions are passed over."""

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undoes `pause`."""

    def drained_to(self, partition: TopicPartition) -> int | None:
        """Offset the client will fetch next, past control records and compacted gaps; None while unknown."""

    def known_end(self, partition: TopicPartition) -> int | None:
        """Last stable offset seen by the newest fetch answer; None before the first."""

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Tells the group where it would resume. Raises Transient if not confirmed, NotAssigned if outdated."""

    async def ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        """Returns what each partition holds now. Raises SourceFailure."""

    async def offsets_at(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> Mapping[TopicPartition, int]:
        """Returns per partition the first offset whose timestamp is >= `timestamp_ms`, else its end.

        0 and less mean the log's start: a record without a time has none that could be compared.
        """

    async def topic_id(self, topic: str) -> UUID:
        """Kafka's id of the topic now; `UUID(int=0)` where the broker has none. Raises SourceFailure."""

    async def partitions_of(self, topic: str) -> frozenset[TopicPartition]:
        """Partitions the topic has now; empty if there is no such topic. Raises SourceFailure."""

    async def close(self) -> None:
        """Leaves the group and closes connections. Idempotent."""


class RecordWriter(Protocol):
    """Writes records and waits until Kafka has them on all in-sync replicas."""

    async def write(self, records: Sequence[Outgoing]) -> Sequence[NotAcknowledged | None]:
        """Writes in order; returns per record None when acknowledged, else why not. Order per key is kept."""

    async def close(self) -> None:
        """Flushes and closes. Idempotent."""
