"""What became of an event, of a key, or of the record at some coordinates: asked of Postgres and Kafka, no worker.

Nothing here shows a payload, so nothing here needs a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple, TypeAlias
from uuid import UUID

from consumers.obstacle import is_same_topic
from dlq.letters import text_for_postgres
from tidegate.app import App
from tidegate.console.claim_ids import EventSought, claim_ids
from tidegate.console.fate import (
    Claim,
    Fate,
    Letter,
    Parked,
    Place,
    Reading,
    SkippedRange,
    Standing,
    Traces,
    Verdict,
    fate_of_event,
    fate_of_key,
    fate_of_place,
)
from tidegate.console.lag import LivePosition, Log, read_logs
from tidegate.console.record import Look, Opened, look_at, open_record
from tidegate.console.traces import TraceReader, Waiting
from tidegate.jobs.declaration import Job, ProjectionJob
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import open_reader
from tidegate_kernel.postgres import connect, translated_errors
from tidegate_kernel.settings import KafkaSettings, Settings

_NOT_BY_ID = "Kafka itself was not searched: it finds records by their place only"


class KeySought(NamedTuple):
    """A record key, in one topic or in all."""

    key: bytes
    topic: str | None = None


class PlaceSought(NamedTuple):
    """Coordinates of a record."""

    partition: TopicPartition
    offset: int


Sought: TypeAlias = EventSought | KeySought | PlaceSought


@dataclass(frozen=True, slots=True)
class JobFinding:
    """What became of it in one job. `position`: where the job stands in the partition that was asked about.

    `event_id` and `event_type` are those of the record at the coordinates, as this job decodes it.
    """

    job: str
    fate: Fate
    told: str
    claims: Sequence[Claim] = ()
    letters: Sequence[Letter] = ()
    parked: Sequence[Parked] = ()
    skipped: SkippedRange | None = None
    position: int | None = None
    records_before: int | None = None
    event_id: str | None = None
    event_type: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """Everything that was found. `outbox`: events of this id that a handler published and that are not in Kafka yet."""

    is_found: bool
    jobs: Sequence[JobFinding]
    reading: Reading | None = None
    written_at: datetime | None = None
    outbox: Sequence[Waiting] = ()
    notes: Sequence[str] = ()


async def find(app: App, settings: Settings, sought: Sought, jobs: Sequence[Job], clock: Clock) -> Found:
    """Returns what became of it in each of `jobs`.

    Raises Misconfigured if Postgres or Kafka cannot be asked, or if none of the jobs reads the topic.
    """
    try:
        async with connect(settings.postgres_dsn.get_secret_value()) as connection:
            with translated_errors("find"):
                reader = await TraceReader.of(connection, app.service)
                match sought:
                    case EventSought():
                        return await _find_event(reader, sought, jobs)
                    case KeySought():
                        return await _find_key(reader, sought, jobs)
                    case PlaceSought():
                        return await _find_place(reader, settings.kafka, sought, _readers_of(sought, jobs), clock)
    except Transient as error:
        raise Misconfigured(f"it cannot be looked for now: {error}") from error


async def _find_event(reader: TraceReader, sought: EventSought, jobs: Sequence[Job]) -> Found:
    findings = []
    for job in jobs:
        ids, lacking = claim_ids(job, sought)
        told_id = text_for_postgres(sought.id)
        letters = await reader.letters_of_event(job, told_id, tenant=sought.tenant, brand=sought.brand)
        parked = await reader.parked_of_event(job, told_id, tenant=sought.tenant, brand=sought.brand)
        traces = _traces(reader, job, claims=await reader.claims(job, ids), letters=letters, parked=parked)
        findings.append(_finding(job, traces, fate_of_event(traces, lacking=lacking)))
    outbox = await reader.unpublished(sought.id)
    is_found = bool(outbox) or any(each.claims or each.letters or each.parked for each in findings)
    return Found(is_found, findings, outbox=outbox, notes=[_NOT_BY_ID])


async def _find_key(reader: TraceReader, sought: KeySought, jobs: Sequence[Job]) -> Found:
    findings = []
    for job in jobs:
        letters = await reader.letters_of_key(job, sought.key, topic=sought.topic)
        parked = await reader.parked_of_key(job, sought.key, topic=sought.topic)
        traces = _traces(reader, job, letters=letters, parked=parked)
        findings.append(_finding(job, traces, fate_of_key(traces)))
    note = f"{_NOT_BY_ID}. What was applied of this key is not told by key: claims know event ids only"
    return Found(any(each.letters or each.parked for each in findings), findings, notes=[note])


async def _find_place(
    reader: TraceReader, kafka: KafkaSettings, sought: PlaceSought, jobs: Sequence[Job], clock: Clock
) -> Found:
    async with open_reader(kafka) as source:
        log = (await read_logs(source, [sought.partition.topic])).get(sought.partition)
    look = await look_at(kafka, sought.partition, sought.offset, None if log is None else log.range, clock)
    findings = [await _at_place(reader, sought, job, log, look) for job in jobs]
    is_found = look.record is not None or look.reading is Reading.UNREADABLE or any(map(_is_trace, findings))
    return Found(is_found, findings, look.reading, look.written_at)


async def _at_place(reader: TraceReader, sought: PlaceSought, job: Job, log: Log | None, look: Look) -> JobFinding:
    partition, offset = sought
    position = await reader.position(job, partition)
    standing = None if position is None else _standing(position, log)
    topic_id = _topic_id(position, standing, log)
    opened = Opened() if look.record is None or topic_id is None else open_record(job, look.record, topic_id)
    traces = _traces(reader, job, claims=await reader.claims(job, [] if opened.claim is None else [opened.claim]))
    traces = replace(traces, visible=await reader.visible(job, partition), offset=offset)
    if topic_id is not None:
        letters = await reader.letters_at(job, partition, topic_id, offset)
        skipped = await reader.skipped_at(job, partition, topic_id, offset)
        parked = await reader.parked_at(job, partition, topic_id, offset)
        traces = replace(traces, letters=letters, parked=parked, skipped=skipped)
    place = Place(
        offset=offset,
        reading=look.reading,
        log_start=0 if log is None else log.range.start,
        standing=standing,
        content=opened.content,
    )
    return _finding(job, traces, fate_of_place(traces, place), place=place)


def _standing(position: LivePosition, log: Log | None) -> Standing:
    return Standing(
        position.next_offset, is_other_topic=log is not None and not is_same_topic(position.topic_id, log.topic_id)
    )


def _topic_id(position: LivePosition | None, standing: Standing | None, log: Log | None) -> UUID | None:
    """Under which topic id the job keeps what it knows of the record that stands there now."""
    if position is not None and standing is not None and not standing.is_other_topic:
        return position.topic_id
    return None if log is None else log.topic_id


def _traces(
    reader: TraceReader,
    job: Job,
    *,
    claims: Sequence[Claim] = (),
    letters: Sequence[Letter] = (),
    parked: Sequence[Parked] = (),
) -> Traces:
    return Traces(
        is_projection=isinstance(job, ProjectionJob),
        has_started=reader.has_started(job),
        claims_since=reader.claims_since(job),
        claims=claims,
        letters=letters,
        parked=parked,
    )


def _finding(job: Job, traces: Traces, verdict: Verdict, *, place: Place | None = None) -> JobFinding:
    return JobFinding(
        job.code,
        verdict.fate,
        verdict.told,
        traces.claims,
        traces.letters,
        traces.parked,
        traces.skipped,
        position=None if place is None or place.standing is None else place.standing.next_offset,
        records_before=verdict.records_before,
        event_id=None if place is None else place.content.event_id,
        event_type=None if place is None else place.content.event_type,
    )


def _is_trace(finding: JobFinding) -> bool:
    """Whether it shows that there was a record, although none can be read now."""
    return finding.fate in (Fate.DEAD_LETTER, Fate.PARKED, Fate.SKIPPED, Fate.CLAIMED, Fate.SETTLED)


def _readers_of(sought: PlaceSought, jobs: Sequence[Job]) -> Sequence[Job]:
    topic = sought.partition.topic
    reading = [job for job in jobs if topic in {each.name for each in job.topics}]
    if not reading:
        read = ", ".join(sorted({each.name for job in jobs for each in job.topics})) or "none"
        raise Misconfigured(f"no job asked about reads topic {topic!r}; they read: {read}")
    return reading
