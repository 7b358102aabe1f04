"""`tidegate dlq import`: the dead letters of a job out of its DLQ topic, for a database that lost them or had none.

Two passes over the topic: the first finds out what it tells of each letter, the second brings the records that count,
chunk by chunk. A chunk is one transaction with its own row in the audit, so whatever ends an import in the middle, the
next one goes on where it stood: what is there already stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

from dlq.importing.history import History, Spot
from dlq.importing.reading import read_told
from dlq.importing.rows import Restored, known_letters, misfit_letter
from dlq.importing.told import Misfit, ToldLetter
from dlq.letters import Origin, letter_id
from dlq.states import LetterState
from tidegate.app import App
from tidegate.assembly import origin_of
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.declaration import Job
from tidegate.jobs.letter_payloads import with_payloads
from tidegate.jobs.letter_restoring import Restoring
from tidegate.jobs.letter_topic import TopicReading
from tidegate_kernel.audit import refuse_early
from tidegate_kernel.clock import Clock, SystemClock
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import LIVE, JobId, Record, TopicPartition
from tidegate_kernel.kafka import open_reader
from tidegate_kernel.permissions import Actor
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.settings import Settings
from tidegate_kernel.source import LogRange, RecordSource

_CHUNK_LETTERS = 500
_CHUNK_BYTES = 8 * 1024 * 1024
_MISFITS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportPlan:
    """What a DLQ topic tells. `letters` are counted by state: those that stand are `dead`.

    `known`: how many of the letters and misfits the database has; they stay as they are. `misfits` are records that
    tell nothing, the first of them by place and why. `items`: letters of items, which are not brought in.
    """

    job: str
    topic: str
    records: int
    letters: Mapping[LetterState, int]
    known: int
    misfits: int
    first_misfits: Mapping[str, str]
    items: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What an import came to. `restored` counts the letters that were written by state, misfits among the quarantined.

    A letter whose event had been handled by then came in as `already_processed`.
    """

    plan: ImportPlan
    restored: Mapping[LetterState, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.restored.values())


async def plan_import(app: App, settings: Settings, job: Job | ClockJob, connection: Connection) -> ImportPlan:
    """Returns what an import would find; nothing is changed. Raises Misconfigured without the topic, Transient.

    The topic of a job by the clock tells of items alone.
    """
    async with _opened(app, settings, job) as topic:
        return await _plan(topic, connection)


async def import_letters(
    app: App, settings: Settings, job: Job, database: Connection | Pool, *, actor: Actor
) -> ImportReport:
    """The database has every letter of the job's DLQ topic, up to its ends of now; what it had stays as it is.

    To do it twice changes nothing more. Raises Denied, Misconfigured without the topic, Transient: then some letters
    may be there, and the next import brings the others.
    """
    clock = SystemClock()
    restoring = Restoring(job, origin_of(app, job, JobId(0), LIVE), database, actor=actor, clock=clock)
    await refuse_early(database, actor, restoring.deed([]))
    async with _opened(app, settings, job) as topic:
        plan = await _plan(topic, database)
        restored: Counter[LetterState] = Counter()
        async for chunk in _chunks(topic):
            restored += await restoring.restore(await with_payloads(settings.kafka, chunk, clock))
        if not restored:
            await restoring.note_nothing()
        return ImportReport(plan=plan, restored=restored)


@dataclass(slots=True)
class _Topic:
    """A job's DLQ topic, opened; `history` is filled by the first pass."""

    job: Job | ClockJob
    origin: Origin
    id: UUID
    reader: RecordSource
    ranges: Mapping[TopicPartition, LogRange]
    clock: Clock
    history: History = field(default_factory=History)
    records: int = 0

    async def read(self) -> AsyncIterator[Record]:
        """One pass."""
        async for record in TopicReading(self.reader, self.ranges, self.clock).records():
            yield record

    def misfit(self, record: Record, why: str) -> Restored:
        return misfit_letter(self.origin, record, self.id, why, now=self.clock.now())


@asynccontextmanager
async def _opened(app: App, settings: Settings, job: Job | ClockJob) -> AsyncIterator[_Topic]:
    name = app.dlq_topic(job.job_code)
    async with open_reader(settings.kafka) as asking:
        partitions = await asking.partitions_of(name)
        if not partitions:
            raise Misconfigured(f"job {job.code!r}: there is no DLQ topic {name!r}, so nothing to import")
        topic_id = await asking.topic_id(name)
    async with open_reader(settings.kafka, partitions) as reader:
        ranges = await reader.ranges(partitions)
        yield _Topic(job, origin_of(app, job, JobId(0), LIVE), topic_id, reader, ranges, SystemClock())


async def _plan(topic: _Topic, database: Connection | Pool) -> ImportPlan:
    """The first pass."""
    misfit_ids: list[UUID] = []
    async for record in topic.read():
        told = read_told(record, topic.origin)
        topic.records += 1
        topic.history.note(_spot(record), told)
        if isinstance(told, Misfit):
            misfit_ids.append(letter_id(topic.origin, topic.id, record))
    name = topic.origin.dlq_topic
    misfits = sorted(topic.history.misfits.items())[:_MISFITS_SHOWN]
    return ImportPlan(
        job=topic.job.code,
        topic=name,
        records=topic.records,
        letters=topic.history.by_state(),
        known=await _count_known(database, [*topic.history.letters, *misfit_ids]),
        misfits=len(topic.history.misfits),
        first_misfits={f"{name}:{spot.partition}:{spot.offset}": why for spot, why in misfits},
        items=len(topic.history.items),
    )


async def _count_known(database: Connection | Pool, letters: Sequence[UUID]) -> int:
    known = 0
    for first in range(0, len(letters), 10_000):
        with translated_errors("look for letters"):
            known += len(await known_letters(database, letters[first : first + 10_000]))
    return known


async def _chunks(topic: _Topic) -> AsyncIterator[list[Restored]]:
    """The second pass: the record of each letter that counts, and the misfits."""
    chunk: list[Restored] = []
    size = 0
    async for record in topic.read():
        restored = _restored(topic, record)
        if restored is None:
            continue
        chunk.append(restored)
        size += len(record.value or b"") + len(record.key or b"")
        if len(chunk) >= _CHUNK_LETTERS or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _restored(topic: _Topic, record: Record) -> Restored | None:
    match read_told(record, topic.origin):
        case ToldLetter() as letter if topic.history.is_newest(letter.id, _spot(record)):
            ending = topic.history.ending(letter.id)
            return Restored(letter, LetterState.DEAD) if ending is None else Restored(letter, ending.state, ending.at)
        case Misfit(why):
            return topic.misfit(record, why)
        case _:
            return None


def _spot(record: Record) -> Spot:
    return Spot(record.partition, record.offset)
