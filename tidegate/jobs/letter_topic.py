"""Reading a DLQ topic from its beginning to the ends of now, whatever stands in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from consumers.fetching import Fetching, Found, Unreadable
from consumers.unread import UnreadRecord
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import Record, TopicPartition
from tidegate_kernel.source import LogRange, RecordSource, SourceFailure

_MAX_RECORDS = 500
_FETCH_SECONDS = 1.0
_PATIENCE_SECONDS = 30.0


class TopicReading:
    """One pass over the partitions that `reader` was opened with, up to `ranges`. Use once."""

    def __init__(self, reader: RecordSource, ranges: Mapping[TopicPartition, LogRange], clock: Clock) -> None:
        self._reader, self._ranges, self._clock = reader, ranges, clock
        self._next = {partition: held.start for partition, held in ranges.items()}
        self._fetching = Fetching(reader, self, max_records=_MAX_RECORDS)

    def resume_offsets(self) -> Mapping[TopicPartition, int]:
        return self._next

    async def records(self) -> AsyncIterator[Record]:
        """Yields every record in offset order, partition after partition.

        One that the client cannot hand over is what is known of it. Raises Transient where the topic cannot be read on.
        """
        self._fetching.seek_all()
        for partition in sorted(self._ranges):
            async for record in self._of_partition(partition):
                yield record

    async def _of_partition(self, partition: TopicPartition) -> AsyncIterator[Record]:
        end = self._ranges[partition].end
        give_up_at = self._clock.monotonic() + _PATIENCE_SECONDS
        while self._next[partition] < end:
            found = (await self._fetching.fetch([partition], timeout=_FETCH_SECONDS)).get(partition)
            records = self._taken(partition, found)
            if records:
                give_up_at = self._clock.monotonic() + _PATIENCE_SECONDS
            elif self._is_drained(partition, end):
                return
            elif self._clock.monotonic() > give_up_at:
                raise Transient(f"{partition}: nothing came after offset {self._next[partition]}; try again")
            for record in records:
                if record.offset < end:
                    yield record

    def _taken(self, partition: TopicPartition, found: Found | None) -> Sequence[Record]:
        match found:
            case None:
                return ()
            case SourceFailure():
                raise Transient(f"{partition} cannot be read at offset {self._next[partition]}: {found}") from found
            case Unreadable(offset, _, record):
                self._next[partition] = offset + 1
                self._reader.seek(partition, offset + 1)
                return [UnreadRecord(*partition, offset) if record is None else record]
            case records:
                if records:
                    self._next[partition] = records[-1].offset + 1
                return records

    def _is_drained(self, partition: TopicPartition, end: int) -> bool:
        """Whether what is left are markers of transactions and what compaction removed."""
        return (self._reader.drained_to(partition) or 0) >= end
