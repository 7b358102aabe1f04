"""Fetching that loses nothing when the client raises.

The client may drop records that it had drained already, skip an oversized one, or fail for a whole batch because of
one header. So after any exception every owned partition is sought to its own next unhandled offset, each is asked
alone, and the failing one is read record by record until the one the client cannot hand over stands alone.
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
    """The record at `offset` cannot be handed over by the client; `error` says why. `record`: what is known of it."""

    offset: int
    error: Poison
    record: Record | None = None


Found: TypeAlias = Sequence[Record] | Unreadable | SourceFailure
"""What a fetch has for a partition: its next records, the one that cannot be read, or why it must not go on."""


# After a seek the client may first have to wait for its request in flight, half a second at most.
_ALONE_SECONDS = 1.0


class Owned(Protocol):
    """What fetching needs to know of the partitions that this process owns."""

    def resume_offsets(self) -> Mapping[TopicPartition, int]:
        """The next unhandled offset of every owned partition."""


class Fetching:
    """Fetches for one lane. `owned` spans all lanes: a failure in one seeks them all."""

    def __init__(self, source: RecordSource, owned: Owned, *, max_records: int) -> None:
        self._source, self._owned, self._max_records = source, owned, max_records

    async def fetch(self, partitions: Iterable[TopicPartition], *, timeout: float) -> Mapping[TopicPartition, Found]:
        """Returns per partition its next records, the record that cannot be read, or why it cannot be fetched now.

        Raises SourceFailure if fetching as such fails (broker away); all partitions are sought then.
        """
        wanted = list(partitions)
        try:
            return await self._source.fetch(wanted, max_records=self._max_records, timeout=timeout)
        except SourceFailure as failure:
            self.seek_all()
            if not failure.is_about_a_record:
                raise
        # All in one round: a busy partition must not keep the failing one from its turn, nor the other way round.
        found = {partition: await self._alone(partition) for partition in wanted}
        return {partition: one for partition, one in found.items() if one is not None}

    def seek_all(self) -> None:
        """Every owned partition will be fetched from its own next unhandled offset."""
        assigned = self._source.assignment()
        for partition, offset in self._owned.resume_offsets().items():
            if partition in assigned:
                self._source.seek(partition, offset)

    async def _alone(self, partition: TopicPartition) -> Found | None:
        try:
            fetched = await self._source.fetch([partition], max_records=self._max_records, timeout=_ALONE_SECONDS)
        except SourceFailure as failure:
            self._seek(partition)
            if not failure.is_about_a_record:
                self.seek_all()
                raise
            return await self._step(partition)
        return fetched.get(partition)

    async def _step(self, partition: TopicPartition) -> Found | None:
        """Records of one partition read one at a time: the good ones before the failing one, or the failure itself."""
        offset = self._owned.resume_offsets().get(partition)
        if offset is None:
            return None
        records: list[Record] = []
        try:
            while len(records) < self._max_records and (one := await self._next(partition)):
                if records and one[0].offset <= records[-1].offset:
                    break  # another lane's failure sought it back meanwhile
                records += one
        except SourceFailure as failure:
            self._seek(partition, records[-1].offset + 1 if records else offset)
            if not records:
                return _found(failure, offset)
        return records or None

    async def _next(self, partition: TopicPartition) -> Sequence[Record]:
        fetched = await self._source.fetch([partition], max_records=1, timeout=_ALONE_SECONDS)
        return fetched.get(partition, ())

    def _seek(self, partition: TopicPartition, offset: int | None = None) -> None:
        at = self._owned.resume_offsets().get(partition) if offset is None else offset
        if at is not None and partition in self._source.assignment():
            self._source.seek(partition, at)


def _found(failure: SourceFailure, offset: int) -> Unreadable | SourceFailure:
    if isinstance(failure, UnreadableRecord):
        at = offset if failure.offset is None else failure.offset
        return Unreadable(at, Poison(str(failure), reason=Reason.CLIENT_PARSE), failure.record)
    if not failure.is_about_a_record:
        raise failure
    return failure
