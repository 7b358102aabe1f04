"""One record read from Kafka by its coordinates, and what a job's own decoder makes of it. Its payload goes nowhere."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from consumers.batch import Batch
from consumers.claims import claims_of
from consumers.topics import record_time
from tidegate.console.fate import Content, Reading
from tidegate.jobs.declaration import Job
from tidegate.jobs.decoding import decoder_of
from tidegate_kernel.clock import Clock
from tidegate_kernel.event import LIVE, Fence, JobId, Record, TopicPartition
from tidegate_kernel.kafka import open_reader
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import LogRange, RecordSource, SourceFailure

_FETCH_SECONDS = 0.5
_READ_SECONDS = 10.0


class Look(NamedTuple):
    """What stands at some coordinates; `record` is None for any `reading` but READ."""

    reading: Reading
    record: Record | None = None

    @property
    def written_at(self) -> datetime | None:
        return None if self.record is None else record_time(self.record)


class Opened(NamedTuple):
    """The record as a job sees it; `claim` is the id that it takes in the inbox, if it is an event."""

    content: Content = Content()
    claim: UUID | None = None


async def look_at(
    settings: KafkaSettings, partition: TopicPartition, offset: int, log: LogRange | None, clock: Clock
) -> Look:
    """Reads the record at `offset` of a partition that holds `log` (None: there is no such partition)."""
    if log is None:
        return Look(Reading.MISSING)
    if offset < log.start:
        return Look(Reading.GONE)
    if offset >= log.end:
        return Look(Reading.NOT_WRITTEN)
    async with open_reader(settings, [partition]) as reader:
        reader.seek(partition, offset)
        give_up_at = clock.monotonic() + _READ_SECONDS
        while clock.monotonic() < give_up_at:
            if (look := await _first_from(reader, partition, offset)) is not None:
                return look
    return Look(Reading.UNREADABLE)


async def _first_from(reader: RecordSource, partition: TopicPartition, offset: int) -> Look | None:
    """None while the client has nothing to tell yet."""
    try:
        fetched = (await reader.fetch([partition], max_records=1, timeout=_FETCH_SECONDS)).get(partition)
    except SourceFailure as failure:
        if not failure.is_about_a_record:
            raise
        return Look(Reading.UNREADABLE)
    if fetched:
        return Look(Reading.READ, fetched[0]) if fetched[0].offset == offset else Look(Reading.NO_RECORD)
    drained = reader.drained_to(partition)
    return Look(Reading.NO_RECORD) if drained is not None and drained > offset else None


def open_record(job: Job, record: Record, topic_id: UUID) -> Opened:
    """What the job's own decoder makes of `record`; nothing of the payload is kept."""
    decoded = decoder_of(job).decode([record])
    if decoded.events:
        event = decoded.events[0].event
        fence = Fence(JobId(0), LIVE, record.topic, record.partition, 0, record.offset)
        batch = Batch(fence, topic_id, [record], record.offset + 1)
        claim = claims_of(job.claim_rule, batch, decoded.events).keys[0].id
        return Opened(Content(event_id=event.id or None, event_type=event.type), claim)
    if decoded.tombstones:
        return Opened(Content(is_tombstone=True))
    if decoded.failures:
        failure = decoded.failures[0]
        envelope = failure.envelope
        refusal = f"{failure.error.reason}: {failure.error}"
        if envelope is None:
            return Opened(Content(refusal=refusal))
        return Opened(Content(event_id=envelope.id or None, event_type=envelope.type, refusal=refusal))
    return Opened(Content(event_type=next(iter(decoded.unlisted_types), None), is_unlisted=True))
