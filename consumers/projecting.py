"""A projection's pure half: events and tombstones to encoded writes, with every failure told apart already."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from itertools import groupby
from typing import Any

from consumers.batch import Batch
from consumers.claims import BatchClaims
from consumers.decoding import Arrival, Decoded
from consumers.letters import failure_of_arrival, failure_of_record
from consumers.topics import Tombstone, Topic, record_time
from dlq.letters import Failure
from projections.sink import EncodesAll, Refusal, Sink
from projections.writes import Delete, Upsert, Write
from tidegate_kernel.errors import InvalidDocument, Poison, Reason
from tidegate_kernel.event import Record


class Projected:
    """The writes of a batch, each with the arrival or record it came from, and what could not be projected."""

    def __init__(self, batch: Batch, claims: BatchClaims) -> None:
        self._batch, self._claims = batch, claims
        self.encoded: Sequence[Any] = ()
        self.owners: list[Arrival | Record] = []
        self.failed_events: list[Failure] = []
        self.failed_tombstones: list[Failure] = []

    @property
    def has_failures(self) -> bool:
        return bool(self.failed_events or self.failed_tombstones)

    def refuse(self, refused: Sequence[Refusal]) -> None:
        """The store refused these writes for good: their events are dead letters, each once."""
        told: set[int] = set()
        for refusal in refused:
            owner = self.owners[refusal.index]
            offset = self.offset_of(owner)
            if offset not in told:
                told.add(offset)
                self.fail(owner, InvalidDocument(refusal.message, reason=refusal.reason))

    def fail(self, owner: Arrival | Record, error: Exception) -> None:
        """The event or record of a write cannot be projected."""
        reason = error.reason if isinstance(error, Poison) else Reason.PROJECTION_FAILED
        if not isinstance(owner, Arrival):
            self.failed_tombstones.append(failure_of_record(self._batch, owner, error, reason=reason))
            return
        claim = self._claims.by_offset().get(owner.record.offset)
        self.failed_events.append(
            failure_of_arrival(self._batch, owner, error, reason=reason, claim=claim, handler=owner.route.function_name)
        )

    def superseded(self, stale_at: Collection[int]) -> Set[int]:
        """The offsets of the records all of whose writes were older than what the store holds."""
        overtaken = {self.offset_of(self.owners[index]) for index in stale_at}
        taken = {self.offset_of(owner) for index, owner in enumerate(self.owners) if index not in stale_at}
        return overtaken - taken if overtaken else overtaken

    @staticmethod
    def offset_of(owner: Arrival | Record) -> int:
        """Where the record stood from which a write was made."""
        return owner.record.offset if isinstance(owner, Arrival) else owner.offset

    def letters(self, fresh: Sequence[Arrival]) -> list[Failure]:
        """The failures to keep: a repeat of an event that failed before is a duplicate, not another dead letter."""
        offsets = {arrival.record.offset for arrival in fresh}
        return [f for f in self.failed_events if f.record.offset in offsets] + self.failed_tombstones


def project(batch: Batch, decoded: Decoded, claims: BatchClaims, sink: Sink) -> Projected:
    """Returns the encoded writes of every decoded record, duplicates too: a claim never gates a versioned write."""
    projected = Projected(batch, claims)
    writes, owners = [], projected.owners
    for arrival in decoded.events:
        try:
            written = arrival.route.function(arrival.event)
            if type(written) is Upsert or type(written) is Delete:
                writes.append(written)
                owners.append(arrival)
            elif written is not None:
                several = _checked(written)
                writes += several
                owners += [arrival] * len(several)
        except MemoryError:
            raise  # the machine's trouble, not the event's
        except Exception as error:
            # A pure function that raises will raise again: dead letter at once, whatever the class.
            projected.fail(arrival, error)
    for record, topic in decoded.tombstones:
        try:
            delete = _delete(record, topic)
        except Poison as error:
            projected.fail(record, error)
        else:
            if delete is not None:
                writes.append(delete)
                owners.append(record)
    _encode(projected, writes, sink)
    return projected


def _encode(projected: Projected, writes: Sequence[Write], sink: Sink) -> None:
    """All at once; where the sink refuses one, each event or record by itself: it is written whole or not at all."""
    try:
        if isinstance(sink, EncodesAll):
            projected.encoded = sink.encode_all(writes)
        else:
            projected.encoded = list(map(sink.encode, writes))
    except MemoryError:
        raise
    except Exception:
        _encode_apart(projected, writes, sink)


def _encode_apart(projected: Projected, writes: Sequence[Write], sink: Sink) -> None:
    owners, encoded = projected.owners, []
    projected.owners = []
    for _, group in groupby(zip(owners, writes, strict=True), key=lambda pair: id(pair[0])):
        pairs = list(group)
        owner = pairs[0][0]
        try:
            encoded += [sink.encode(write) for _, write in pairs]
        except MemoryError:
            raise
        except Exception as error:
            projected.fail(owner, error)
        else:
            projected.owners += [owner] * len(pairs)
    projected.encoded = encoded


def _delete(record: Record, topic: Topic) -> Delete | None:
    if topic.tombstone is None:
        raise Poison(f"record without a value, and topic {topic.name!r} declares no tombstone", reason=Reason.NO_VALUE)
    try:
        return topic.tombstone(Tombstone(record, record_time(record), topic.tombstone_version))
    except Poison:
        raise
    except Exception as error:
        # What the function looks for is an id and a version. A delete without them cannot be ordered, only kept.
        raise Poison(f"the tombstone function raised {type(error).__name__}", reason=Reason.NO_VERSION) from error


def _checked(written: Any) -> Sequence[Write]:
    writes: Sequence[Write] = written
    for write in writes:
        if not isinstance(write, (Upsert, Delete)):
            raise TypeError(f"a projection returns Upsert or Delete, not {type(write).__name__}")
    return writes
