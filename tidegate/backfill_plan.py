"""Which offsets a backfill reads: from a checkpoint, a time or the beginning, to the ends of now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from consumers.backfill import Progress
from consumers.obstacle import is_same_topic
from consumers.positions import Position, Positions
from inbox.store import claims_since
from tidegate.assembly import JobParts
from tidegate.jobs.checkpoints import read_checkpoint
from tidegate.jobs.declaration import FoldJob, Job, acts_once
from tidegate.resources import Resources
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import LIVE, TopicPartition
from tidegate_kernel.kafka import open_reader
from tidegate_kernel.postgres import translated_errors
from tidegate_kernel.source import RecordSource


@dataclass(frozen=True, slots=True)
class BackfillStart:
    """Where a backfill begins; exactly one of the three."""

    checkpoint: str | None = None
    time: datetime | None = None
    is_beginning: bool = False

    def spell(self) -> str:
        """The start as it is stored: the same flags resume the same backfill."""
        if self.checkpoint is not None:
            return f"checkpoint {self.checkpoint}"
        if self.time is not None:
            return f"time {self.time.isoformat()}"
        return "beginning"


@dataclass(slots=True)
class BackfillOptions:
    """How to go about it. `on_progress` is called several times a second; `on_wait` with what is waited for.

    `beyond_horizon`: a job that acts once acts again on events whose claims are forgotten.
    """

    start: BackfillStart
    accept_gap: bool = False
    abandon: bool = False
    beyond_horizon: bool = False
    on_progress: Callable[[Progress], None] = lambda _: None
    on_wait: Callable[[str], None] = lambda _: None


class Plan(NamedTuple):
    """Where each partition starts and ends, and how many records of each are gone already."""

    starts: Mapping[TopicPartition, Position]
    gaps: Mapping[str, int]


def refuse_fold(job: Job) -> None:
    """Raises Misconfigured, with the remedies, for a fold: nothing of its own says which events its states hold."""
    if isinstance(job, FoldJob):
        raise Misconfigured(
            f"job {job.code!r} is a fold and cannot be backfilled: its states hold the events already. If its sink "
            f"lost documents, 'tidegate projections rerender {job.code}' writes them again from the states; to fold "
            "all events anew, give the job a new code, which begins where its topics begin"
        )


async def plan(live: JobParts, resources: Resources, options: BackfillOptions) -> Plan:
    """What is to be read. Nothing is written yet.

    Raises Misconfigured for an unknown checkpoint, a re-created topic, a gap that is not accepted, or a range of a job
    that acts once and that begins before its horizon.
    """
    planned = await _ranges(live, resources, options.start)
    if planned.gaps and not options.accept_gap:
        told = ", ".join(f"{where} lacks {count} records" for where, count in planned.gaps.items())
        raise Misconfigured(
            f"gap: retention removed records after {options.start.spell()!r}: {told}; --accept-gap goes on"
        )
    if acts_once(live.job) and not options.beyond_horizon:
        await _refuse_forgotten(live, resources, planned.starts)
    return planned


async def _ranges(live: JobParts, resources: Resources, start: BackfillStart) -> Plan:
    positions = await Positions(resources.pool, job=live.id, run=LIVE, owner=resources.owner).all()
    async with open_reader(resources.settings.kafka) as reader:
        partitions = sorted({p for topic in live.job.topics for p in await reader.partitions_of(topic.name)})
        ids = {p: _topic_id(positions.get(p), await reader.topic_id(p.topic)) for p in partitions}
        ranges = await reader.ranges(partitions)
        wanted = await _wanted(reader, resources, start, ids)
    starts: dict[TopicPartition, Position] = {}
    gaps: dict[str, int] = {}
    for partition in partitions:
        first, topic_id = wanted.get(partition, (ranges[partition].start, ids[partition]))
        where = str(partition)
        if topic_id != ids[partition] or first > ranges[partition].end:
            raise Misconfigured(f"{where}: the topic was re-created since {start.spell()!r}; its offsets mean others")
        if first < ranges[partition].start:
            gaps[where] = ranges[partition].start - first
            first = ranges[partition].start
        starts[partition] = Position(0, first, topic_id, end_offset=ranges[partition].end)
    return Plan(starts, gaps)


def _topic_id(live: Position | None, now: UUID) -> UUID:
    """Under which id the job knows the topic: the live consumer's number where the broker has no ids, so that events
    known by their place have the same claims here and there."""
    return live.topic_id if live is not None and is_same_topic(live.topic_id, now) else now


async def _refuse_forgotten(live: JobParts, resources: Resources, starts: Mapping[TopicPartition, Position]) -> None:
    """Raises Misconfigured if the claims of some records to be read may be forgotten: their effects would double."""
    with translated_errors("read horizon"):
        async with resources.pool.acquire(timeout=10) as connection:
            since = await claims_since(connection, live.id)
    if since is None:
        return
    async with open_reader(resources.settings.kafka) as reader:
        # A record is claimed after it was written, so what is as late as this has its claim.
        remembered = await reader.offsets_at(starts, int(since.timestamp() * 1000))
    early = [p for p, start in sorted(starts.items()) if start.next_offset < min(remembered[p], start.end_offset or 0)]
    if early:
        raise Misconfigured(
            f"job {live.job.code!r}: {early[0].topic}:{early[0].partition} begins with records from before "
            f"{since:%Y-%m-%d}, whose claims are past the horizon and may be forgotten: what they did would be done "
            f"again. Start with --from-time {since:%Y-%m-%d}, or say --beyond-horizon"
        )


async def _wanted(
    reader: RecordSource, resources: Resources, start: BackfillStart, ids: Mapping[TopicPartition, UUID]
) -> Mapping[TopicPartition, tuple[int, UUID]]:
    """Start offset and topic id per partition; a partition that is not named starts at its log's start."""
    if start.checkpoint is not None:
        return await read_checkpoint(resources.pool, start.checkpoint)
    if start.time is not None:
        offsets = await reader.offsets_at(ids, int(start.time.timestamp() * 1000))
        return {p: (offset, ids[p]) for p, offset in offsets.items()}
    return {}
