"""Which partitions this process owns, and where each one stands. Plain state: no I/O, one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

import structlog

from consumers.batch import Batch
from consumers.positions import Position
from dlq.corrections import NO_CORRECTIONS, Correction
from dlq.parking import OrderKey
from tidegate_kernel import logs
from tidegate_kernel.event import Record, TopicPartition
from tidegate_kernel.source import RecordSource

_log = structlog.get_logger(__name__)


class Hold(StrEnum):
    """Why records of an owned partition must not be read or handled now; several may apply at once."""

    BLOCKED = "blocked"
    """Reading on would lose or mistake records: a gap, a re-created topic, a corrupt batch."""
    PAUSED = "paused"
    """An operator wants it so."""
    FLOOD = "flood"
    """Too many dead letters of its topic."""
    OUTAGE = "outage"
    """Something that every batch of the job needs does not answer."""
    BACKLOG = "backlog"
    """Too many of the job's dead letters, or of the events that it publishes, wait for Kafka."""
    PARKING = "parking"
    """Its next event has to be parked, and there is no room."""


@dataclass(slots=True)
class Holding:
    """An owned partition. `position` moves with each settle; `waiting` is a batch to be tried again at `due`.

    `trouble` made it wait, first at `waiting_since`. `holds` says why it must rest besides that; `stopped_tenant` is
    the paused tenant whose record comes next, `full` the key that there is no room to park for, if that is why.
    `in_hand_since`: since when a batch of it is being worked on, `idle` is set while none is; `limit` is what `cut_off`
    ends that batch by. `empty_fetches` counts fetches that asked for it in vain; `stalled_since`: since when it is
    known to be behind and not fetched. `tail_seen`: a hidden tail that the last fetch found, passed not before
    `tail_due`. `end_seen`: the log's end, as asked of Kafka while it rested. `is_finished`: a backfill has reached the
    partition's end. Before offset `suspect_until` may stand what ended the last owners; `group` bounds how many records
    are handled at once then, `is_attempting`: one is, alone. These times are monotonic seconds; timestamps of records
    are milliseconds. `corrections`: what had been decided about its records when it was taken. `gathered`: the records
    that were read so far of a range which was begun before. Before `fetch_due` it is left to
    fill.
    """

    partition: TopicPartition
    position: Position
    lane: int
    corrections: Mapping[int, Correction] = field(default_factory=lambda: NO_CORRECTIONS)
    gathered: list[Record] = field(default_factory=list)
    waiting: Batch | None = None
    due: float = 0.0
    trouble: str = ""
    waiting_since: float = 0.0
    tail_seen: int | None = None
    tail_due: float = 0.0
    in_hand_since: float | None = None
    fetch_due: float = 0.0
    empty_fetches: int = 0
    stalled_since: float | None = None
    oldest_in_hand: int | None = None
    newest_settled: int | None = None
    caught_up_at: datetime | None = None
    end_seen: int | None = None
    holds: dict[Hold, str] = field(default_factory=dict)
    stopped_tenant: str | None = None
    full: OrderKey | None = None
    is_finished: bool = False
    suspect_until: int | None = None
    group: int = 1
    is_attempting: bool = False
    limit: asyncio.Timeout | None = None
    is_cut_off: bool = False
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def is_ready(self) -> bool:
        """Whether records of it may be fetched now."""
        return self.waiting is None and not self.holds and not self.is_finished

    @property
    def is_suspect(self) -> bool:
        """Whether its next record may be what ended its last owner."""
        return self.suspect_until is not None and self.position.next_offset < self.suspect_until

    @property
    def blocked(self) -> str | None:
        """Why it must not be read on, until somebody decides what becomes of the records in question."""
        return self.holds.get(Hold.BLOCKED)

    def suspect_next(self, records: int) -> None:
        """If it was taken over suspect, the next `records` offsets are; call it right after the takeover."""
        if self.position.is_suspect:
            offset, (topic, partition) = self.position.next_offset, self.partition
            self.suspect_until = offset + records
            _log.warning(logs.PARTITION_SUSPECT, topic=topic, partition=partition, offset=offset)

    def suspicion_passed(self) -> None:
        """A group of suspect records was handled, and we live: the next may be larger, unless it is known to be bad."""
        known = self.position.grouped_until
        self.group = 1 if known is not None and self.position.next_offset < known else self.group * 2

    def block(self, why: str, source: RecordSource) -> None:
        """It is not read on until somebody decides what becomes of the records in question; told once, here."""
        self.hold(Hold.BLOCKED, why, source)
        _log.error(logs.PARTITION_BLOCKED, topic=self.partition.topic, partition=self.partition.partition, why=why)

    def hold(self, hold: Hold, why: str, source: RecordSource) -> None:
        """Nothing of it is read or begun until `release`; a batch in hand goes on."""
        self.holds[hold] = why
        source.pause([self.partition])

    def release(self, hold: Hold, source: RecordSource) -> None:
        """`hold` does not apply any more; it is read on unless something else is in the way. Idempotent."""
        if self.holds.pop(hold, None) is not None:
            self.read_on(source)

    def read_on(self, source: RecordSource) -> None:
        """Kafka hands over its records again, if nothing is in the way."""
        if self.is_ready:
            source.resume([self.partition])

    def seek(self, source: RecordSource) -> None:
        """Kafka's next records of it are those after what is handled or waits. Call only while it is ours."""
        if self.partition in source.assignment():
            source.seek(self.partition, self.resume_offset)

    @property
    def resume_offset(self) -> int:
        """The offset after what waits for another try, or is gathered: where a fetch has to go on."""
        if self.waiting is not None:
            return self.waiting.next_offset
        return self.gathered[-1].offset + 1 if self.gathered else self.position.next_offset

    def unhandled(self, records: Sequence[Record]) -> Sequence[Record]:
        """Without what lies below the position (pure redelivery never reaches Postgres) or beyond the end, if any."""
        first, end = self.position.next_offset, self.position.end_offset
        if records[0].offset >= first and (end is None or records[-1].offset < end):
            return records
        return [r for r in records if r.offset >= first and (end is None or r.offset < end)]

    def gather(self, records: Sequence[Record]) -> None:
        """Keeps what belongs to the range that was begun. What an earlier fetch had brought may come again."""
        end = self.position.range_end
        for record in records:
            if self.resume_offset <= record.offset and (end is None or record.offset < end):
                self.gathered.append(record)

    def has_gathered_all(self, source: RecordSource, newest: int) -> bool:
        """Whether all of the range is read with a fetch that ended at `newest`; compaction may have taken its end."""
        reached = max(newest + 1, source.drained_to(self.partition) or 0)
        return self.position.range_end is not None and reached >= self.position.range_end

    def is_drained(self, source: RecordSource) -> bool:
        """Whether nothing is left to fetch, also where control records or compaction hide the last offsets."""
        drained, end = source.drained_to(self.partition), source.known_end(self.partition)
        return drained is not None and end is not None and drained >= end

    def hidden_tail(self, source: RecordSource) -> int | None:
        """Where the log ends, if only offsets without records (markers, aborted transactions) lie before that."""
        drained = source.drained_to(self.partition)
        if drained is None or drained <= self.position.next_offset or self.position.end_offset is not None:
            return None
        if self.position.range_end is not None:
            return None  # its records are gathered, not handled
        return drained if self.is_ready and self.is_drained(source) else None

    def note_end(self, source: RecordSource) -> None:
        """Finished if nothing before the end is left. Call while no record of it is in hand: what the client has
        handed over counts as read, also where control records or compaction hide the last offsets."""
        end = self.position.end_offset
        if end is not None and self.waiting is None:
            self.is_finished = max(self.position.next_offset, source.drained_to(self.partition) or 0) >= end

    def note_log_end(self, end: int, now: datetime) -> None:
        """Kafka was asked for the log's end, because nothing of it is fetched."""
        self.end_seen = end
        if self.oldest_in_hand is None and self.position.next_offset >= end:
            self.caught_up_at = now

    def begin(self, batch: Batch, now: float) -> None:
        """A batch of it is in hand from `now` (monotonic) on, until `end`."""
        self.idle.clear()
        self.in_hand_since = now
        self.oldest_in_hand = max(0, batch.records[0].timestamp)

    def cut_off(self) -> None:
        """The batch in hand, if there is one, is cancelled: its transaction ends, and with it its locks. Call once."""
        self.is_cut_off = True
        if self.limit is not None:
            self.limit.reschedule(asyncio.get_running_loop().time())

    def end(self) -> None:
        """No batch of it is being worked on, whatever became of the last one."""
        self.in_hand_since = None
        self.idle.set()

    def wait(self, batch: Batch, trouble: str, *, now: float, delay: float) -> None:
        """The batch is to be tried again `delay` seconds after `now`."""
        if self.waiting is not batch:
            self.waiting_since = now
        self.waiting, self.due, self.trouble = batch, now + delay, trouble

    def settle(self, batch: Batch) -> None:
        """The batch is final."""
        self.position = replace(self.position, next_offset=batch.next_offset, range_end=None)
        self.newest_settled = max(0, batch.records[-1].timestamp)
        self.oldest_in_hand = None


class Holdings:
    """All partitions of one job that this process owns now."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._held: dict[TopicPartition, Holding] = {}

    @property
    def owned(self) -> AbstractSet[TopicPartition]:
        return self._held.keys()

    def get(self, partition: TopicPartition) -> Holding | None:
        return self._held.get(partition)

    def all(self) -> list[Holding]:
        return list(self._held.values())

    def add(
        self, partition: TopicPartition, position: Position, corrections: Mapping[int, Correction] = NO_CORRECTIONS
    ) -> Holding:
        """The partition is ours from now on, in the lane that has the fewest."""
        loads = [sum(held.lane == lane for held in self._held.values()) for lane in range(self._lanes)]
        holding = Holding(partition, position, loads.index(min(loads)), corrections)
        self._held[partition] = holding
        return holding

    def drop(self, partitions: Iterable[TopicPartition]) -> list[Holding]:
        """They are not ours any more; returns what was held, so that work in flight can be waited for."""
        return [held for p in partitions if (held := self._held.pop(p, None)) is not None]

    def is_current(self, holding: Holding) -> bool:
        """Whether `holding` is still ours, and not an earlier ownership of the same partition."""
        return self._held.get(holding.partition) is holding

    def of_lane(self, lane: int) -> list[Holding]:
        return [held for held in self._held.values() if held.lane == lane]

    def resume_offsets(self) -> Mapping[TopicPartition, int]:
        return {partition: held.resume_offset for partition, held in self._held.items()}

    def settled(self) -> dict[TopicPartition, int]:
        """Settled offsets, for the hint to Kafka's group."""
        return {partition: held.position.next_offset for partition, held in self._held.items()}
