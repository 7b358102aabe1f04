"""Fetching that loses nothing when the client raises.

The client may drop records that it had drained already, skip an oversized one, or fail for a whole batch because of
one header. So after any exception every owned partition is sought to its own next unhandled offset, and the failing
partition is read record by record until the one the client cannot hand over stands alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tidegate_kernel.errors import Poison, Reason
from tidegate_kernel.event import Record, TopicPartition
from tidegate_kernel.source import RecordSource, SourceFailure, UnreadableRecord


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The record at `offset` cannot be handed over by the client; `error` says why."""

    offset: int
    error: Poison


Found: TypeAlias = Sequence[Record] | Unreadable | SourceFailure
"""What a fetch has for a partition: its next records, the one that cannot be read, or why it must not go on."""


class Owned(Protocol):
    """What fetching needs to know of the partitions that this process owns."""

    def resume_offsets(self) -> Mapping[TopicPartition, int]:
        """The next unhandled offset of every owned partition."""


class Fetching:
    """Fetches for one lane. `owned` spans all lanes: a failure in one seeks them all."""

    def __init__(self, source: RecordSource, owned: Owned, *, max_records: int) -> None:
        self._source, self._owned, self._max_records = source, owned, max_records

    async def fetch(self, partitions: Iterable[TopicPartition], *, timeout: float) -> Mapping[TopicPartition, Found]:
        """Returns records, or for a partition alone the record that cannot be read, or why it cannot be fetched now.

        Raises SourceFailure if fetching as such fails (broker away); all partitions are sought then.
        """
        wanted = list(partitions)
        try:
            return await self._source.fetch(wanted, max_records=self._max_records, timeout=timeout)
        except SourceFailure as failure:
            self.seek_all()
            if not failure.is_about_a_record:
                raise
        for partition in wanted:
            found = await self._step(partition)
            if found is not None:
                return {partition: found}
        return {}

    def seek_all(self) -> None:
        """Every owned partition will be fetched from its own next unhandled offset."""
        assigned = self._source.assignment()
        for partition, offset in self._owned.resume_offsets().items():
            if partition in assigned:
                self._source.seek(partition, offset)

    async def _step(self, partition: TopicPartition) -> Found | None:
        """Records of one partition read one at a time: the good ones before the failing one, or the failure itself."""
        offset = self._owned.resume_offsets().get(partition)
        if offset is None:
            return None
        records: list[Record] = []
        try:
            while len(records) < self._max_records and (one := await self._next(partition)):
                records += one
        except SourceFailure as failure:
            self.seek_all()
            if not records:
                return _found(failure, offset)
            self._source.seek(partition, records[-1].offset + 1)
        return records or None

    async def _next(self, partition: TopicPartition) -> Sequence[Record]:
        fetched = await self._source.fetch([partition], max_records=1, timeout=1.0)
        return fetched.get(partition, ())


def _found(failure: SourceFailure, offset: int) -> Unreadable | SourceFailure:
    if isinstance(failure, UnreadableRecord):
        at = offset if failure.offset is None else failure.offset
        return Unreadable(at, Poison(str(failure), reason=Reason.CLIENT_PARSE))
    return failure
