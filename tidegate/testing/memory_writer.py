"""Writing to the in-memory Kafka."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.testing.log import Log
from tidegate.testing.memory_topics import MemoryTopics
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.source import MessageTooLarge, NotAcknowledged, Outgoing


class MemoryWriter:
    """`RecordWriter` on a MemoryBroker."""

    def __init__(self, broker: MemoryTopics) -> None:
        self._broker = broker

    async def write(self, records: Sequence[Outgoing]) -> Sequence[NotAcknowledged | None]:
        return [self._write(record) for record in records]

    async def close(self) -> None:
        """Nothing is ever left to flush."""

    def _write(self, record: Outgoing) -> NotAcknowledged | None:
        if self._broker.is_down:
            return NotAcknowledged("the broker is down")
        limit = self._broker.max_message_bytes(record.topic)
        if limit is None:
            return NotAcknowledged(f"topic {record.topic!r}: the broker does not know it; create it")
        if _size(record) > limit:
            return MessageTooLarge(f"topic {record.topic!r} takes {limit} bytes, this record has {_size(record)}")
        self._broker.append(record)
        return None


def _size(record: Outgoing) -> int:
    headers = sum(len(name.encode()) + len(value or b"") for name, value in record.headers)
    return len(record.value or b"") + len(record.key or b"") + headers


class Transaction:
    """A producer's transaction. Until it ends, readers stop before its first record."""

    def __init__(self, broker: MemoryTopics, number: int) -> None:
        self._broker, self._number = broker, number
        self._logs: dict[TopicPartition, Log] = {}

    async def write(self, records: Sequence[Outgoing]) -> None:
        """The records take their offsets now."""
        for record in records:
            stored = self._broker.append(record, transaction=self._number)
            place = TopicPartition(stored.topic, stored.partition)
            log = self._broker.log(place)
            assert log is not None  # it was just written to
            self._logs[place] = log

    async def commit(self) -> None:
        """Readers see the records."""
        self._end(commit=True)

    async def abort(self) -> None:
        """The records' offsets stay empty."""
        self._end(commit=False)

    def _end(self, *, commit: bool) -> None:
        for log in self._logs.values():
            log.end_transaction(self._number, commit=commit)
        self._broker.notify()
