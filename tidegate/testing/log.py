"""One partition of the in-memory Kafka: records in offset order, with holes where a real log has them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter

from tidegate_kernel.event import Headers
from tidegate_kernel.source import LogRange, OffsetOutOfRange, SourceFailure

_by_offset = attrgetter("offset")


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A `Record` as the log keeps it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(slots=True)
class Log:
    """The log of one partition. `faults` are what a client raises on reaching those offsets, each time."""

    topic: str
    partition: int
    start: int = 0
    end: int = 0
    faults: dict[int, SourceFailure] = field(default_factory=dict)
    _records: list[StoredRecord] = field(default_factory=list)
    _open: dict[int, int] = field(default_factory=dict)
    _written_by: dict[int, int] = field(default_factory=dict)

    @property
    def stable_end(self) -> int:
        """The last stable offset: nothing of a transaction still open stands below it."""
        return min(self._open.values(), default=self.end)

    def range(self) -> LogRange:
        return LogRange(self.start, self.stable_end)

    def append(
        self,
        *,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        transaction: int | None = None,
    ) -> StoredRecord:
        """The record stands at the log's end; within a transaction it is read only once that has committed."""
        record = StoredRecord(self.topic, self.partition, self.end, timestamp, key, value, tuple(headers))
        if transaction is not None:
            self._open.setdefault(transaction, self.end)
            self._written_by[self.end] = transaction
        self._records.append(record)
        self.end += 1
        return record

    def end_transaction(self, transaction: int, *, commit: bool) -> None:
        """Its records become readable, or vanish and leave a hole; the marker takes an offset of its own."""
        if self._open.pop(transaction, None) is None:
            return
        written = {offset for offset, by in self._written_by.items() if by == transaction}
        self._written_by = {offset: by for offset, by in self._written_by.items() if offset not in written}
        if not commit:
            self._records = [record for record in self._records if record.offset not in written]
        self.end += 1

    def skip(self, offsets: int) -> None:
        """`offsets` offsets pass without a record, as control records and compaction leave them."""
        self.end += offsets

    def remove(self, offset: int) -> None:
        """The record at `offset` is gone, as after compaction; its offset stays."""
        self._records = [record for record in self._records if record.offset != offset]

    def trim(self, start: int) -> None:
        """Retention removed everything below `start`."""
        self.start = max(self.start, min(start, self.end))
        self._records = [record for record in self._records if record.offset >= self.start]

    def last_offset(self) -> int | None:
        """Where the last readable record stands; None in an empty log."""
        beyond = bisect_left(self._records, self.stable_end, key=_by_offset)
        return self._records[beyond - 1].offset if beyond else None

    def records(self) -> list[StoredRecord]:
        """All that a reader can see."""
        return list(self._readable(self.start))

    def read(self, offset: int, limit: int) -> tuple[list[StoredRecord], int]:
        """At most `limit` records from `offset` on, and where the next read goes on, past holes at the end.

        Raises OffsetOutOfRange, or the fault of the first offset that has one.
        """
        if not self.start <= offset <= self.end:
            raise OffsetOutOfRange(
                f"{self.topic}:{self.partition} holds offsets {self.start} to {self.end}, not {offset}"
            )
        found: list[StoredRecord] = []
        for record in self._readable(offset):
            if record.offset in self.faults:
                raise self.faults[record.offset]
            found.append(record)
            if len(found) == limit:
                return found, record.offset + 1
        return found, max(offset, self.stable_end)

    def first_at(self, timestamp_ms: int) -> int:
        """The first offset whose record is as late as `timestamp_ms`, else the end; the start for 1970 and before."""
        if timestamp_ms <= 0:
            return self.start
        return next((r.offset for r in self._readable(self.start) if r.timestamp >= timestamp_ms), self.stable_end)

    def _readable(self, offset: int) -> Iterator[StoredRecord]:
        first = bisect_left(self._records, offset, key=_by_offset)
        beyond = bisect_left(self._records, self.stable_end, key=_by_offset)
        return islice(self._records, first, beyond)
