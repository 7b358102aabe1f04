"""`tidegate run JOB --backfill`: plan the range, start or resume, run beside the live group, report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import structlog

from consumers.backfill import Backfill, Progress
from consumers.backfill_lease import BackfillLease, Unfinished, start_deed
from consumers.intents import Intents
from consumers.meter import Tally
from consumers.obstacle import is_same_topic
from consumers.positions import Position, Positions
from inbox.store import claims_since
from tidegate.app import App
from tidegate.assembly import JobParts, Resources, assemble
from tidegate.jobs.checkpoints import read_checkpoint
from tidegate.jobs.declaration import ConsumerJob, Job
from tidegate.jobs.selection import part_of
from tidegate.supervision import is_set_within
from tidegate.worker import open_resources, open_sink
from tidegate_kernel import logs
from tidegate_kernel.audit import refuse_early
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import AlreadyRunning, Misconfigured
from tidegate_kernel.event import LIVE, RunId, TopicPartition
from tidegate_kernel.kafka import open_reader
from tidegate_kernel.permissions import Action, Actor, Deed
from tidegate_kernel.postgres import translated_errors
from tidegate_kernel.settings import Settings
from tidegate_kernel.source import RecordSource

_log = structlog.get_logger(__name__)

_WAIT_FOR_LEASE_SECONDS = 1.0
_PROGRESS_EVERY_SECONDS = 0.2


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


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """What a backfill came to in this process. `is_done` is False when it was stopped and can be resumed."""

    job: str
    run: int
    is_done: bool
    was_resumed: bool
    progress: Progress
    tally: Tally
    gaps: Mapping[str, int]


@dataclass(slots=True)
class BackfillOptions:
    """How to go about it. `on_progress` is called several times a second; `on_wait` with what is waited for.

    `beyond_horizon`: a ConsumerJob acts again on events whose claims are forgotten.
    """

    start: BackfillStart
    accept_gap: bool = False
    abandon: bool = False
    beyond_horizon: bool = False
    on_progress: Callable[[Progress], None] = lambda _: None
    on_wait: Callable[[str], None] = lambda _: None


async def run_backfill(
    app: App, settings: Settings, code: str, options: BackfillOptions, *, actor: Actor, stop: asyncio.Event
) -> BackfillReport:
    """Re-reads the job's topics from the start to the ends of now, or resumes the one that was interrupted.

    Raises Denied, AlreadyRunning while another process works on one, Misconfigured for an unknown checkpoint, a gap
    that is not accepted, a re-created topic, or a ConsumerJob's range that begins before its horizon.
    """
    job = app.job(code)
    async with AsyncExitStack() as opened:
        clock = SystemClock()
        resources = await opened.enter_async_context(open_resources(app, settings, jobs=1, clock=clock))
        await refuse_early(resources.pool, actor, _first_deed(code, options))
        sink = await opened.enter_async_context(open_sink(job, settings))
        live = await assemble(app, job, resources, sink=sink)
        await _tell_pauses(live, resources, options)
        lease = BackfillLease(resources.pool, job=live.id, code=code, holder=resources.owner, actor=actor)
        planned = await _start_or_resume(live, resources, lease, options, stop)
        if planned is None:
            raise AlreadyRunning(f"backfill of {code!r}: stopped while waiting for another process")
        parts = await assemble(app, job, resources, sink=sink, run=planned.run)
        positions = await Positions(resources.pool, job=live.id, run=planned.run, owner=resources.owner).all()
        source = await opened.enter_async_context(open_reader(settings.kafka, positions))
        backfill = Backfill(
            source,
            parts.pipeline,
            parts.steward,
            settings=parts.lanes,
            clock=clock,
            meter=parts.meter,
            outages=parts.outages,
            solitude=parts.solitude,
        )
        _log.info(logs.BACKFILL_STARTED, job=code, run=planned.run, source=options.start.spell())
        async with _watched(backfill, options.on_progress, stop):
            is_done = await backfill.run(positions, lease, planned.run)
        tally = parts.meter.tally
        if is_done:
            await lease.finish(planned.run, records=tally.records, dead_letters=tally.dead_letters)
        else:
            await lease.release(planned.run)
        _log.info(logs.BACKFILL_FINISHED, job=code, run=planned.run, done=is_done, records=tally.records)
        return BackfillReport(code, planned.run, is_done, planned.was_resumed, backfill.progress(), tally, planned.gaps)


def _first_deed(code: str, options: BackfillOptions) -> Deed:
    """Whoever may not do it is told before anything is opened."""
    return Deed(Action.BACKFILL_ABANDON, code) if options.abandon else start_deed(code, options.start.spell())


@dataclass(frozen=True, slots=True)
class _Planned:
    run: RunId
    was_resumed: bool
    gaps: Mapping[str, int]


async def _tell_pauses(live: JobParts, resources: Resources, options: BackfillOptions) -> None:
    """A backfill of a paused job is a decision of its own; whoever made it is told what it passes by."""
    intents = Intents(resources.pool, resources.clock, job=live.id)
    await intents.read()
    for intent in intents.standing():
        options.on_wait(
            f"job {live.job.code!r}: {part_of(intent)} is {intent.sentence()}. "
            "That holds back the live consumer alone: this backfill runs"
        )


async def _start_or_resume(
    live: JobParts, resources: Resources, lease: BackfillLease, options: BackfillOptions, stop: asyncio.Event
) -> _Planned | None:
    job = live.job
    while (unfinished := await lease.unfinished()) is not None:
        _refuse_other_start(job, unfinished, options)
        if unfinished.lease_seconds > 0:
            options.on_wait(
                f"backfill {unfinished.run} of {job.code!r} is held by {unfinished.holder}; "
                f"its lease ends in {unfinished.lease_seconds:.0f} s unless it is renewed"
            )
            if await is_set_within(_WAIT_FOR_LEASE_SECONDS, stop):
                return None
        elif options.abandon:
            await lease.abandon(unfinished)
        elif await lease.resume(unfinished):
            return _Planned(unfinished.run, was_resumed=True, gaps={})
    starts, gaps = await _plan(live, resources, options)
    if isinstance(job, ConsumerJob) and not options.beyond_horizon:
        await _refuse_forgotten(live, resources, starts)
    run = await lease.start(options.start.spell(), starts, gaps=gaps)
    return _Planned(run, was_resumed=False, gaps=gaps)


def _refuse_other_start(job: Job, unfinished: Unfinished, options: BackfillOptions) -> None:
    if unfinished.source != options.start.spell() and not options.abandon:
        raise AlreadyRunning(
            f"job {job.code!r} has an unfinished backfill from {unfinished.source} (run {unfinished.run}); "
            "resume it with the same flags, or give it up with --abandon"
        )


async def _plan(
    live: JobParts, resources: Resources, options: BackfillOptions
) -> tuple[dict[TopicPartition, Position], dict[str, int]]:
    """Where each partition starts and ends, and how many records of each are gone already."""
    positions = await Positions(resources.pool, job=live.id, run=LIVE, owner=resources.owner).all()
    async with open_reader(resources.settings.kafka) as reader:
        partitions = sorted({p for topic in live.job.topics for p in await reader.partitions_of(topic.name)})
        ids = {p: _topic_id(positions.get(p), await reader.topic_id(p.topic)) for p in partitions}
        ranges = await reader.ranges(partitions)
        wanted = await _wanted(reader, resources, options.start, ids)
    starts: dict[TopicPartition, Position] = {}
    gaps: dict[str, int] = {}
    for partition in partitions:
        first, topic_id = wanted.get(partition, (ranges[partition].start, ids[partition]))
        where = f"{partition.topic}:{partition.partition}"
        if topic_id != ids[partition] or first > ranges[partition].end:
            raise Misconfigured(
                f"{where}: the topic was re-created since {options.start.spell()!r}; its offsets mean others"
            )
        if first < ranges[partition].start:
            gaps[where] = ranges[partition].start - first
            first = ranges[partition].start
        starts[partition] = Position(0, first, topic_id, end_offset=ranges[partition].end)
    if gaps and not options.accept_gap:
        told = ", ".join(f"{where} lacks {count} records" for where, count in gaps.items())
        raise Misconfigured(
            f"gap: retention removed records after {options.start.spell()!r}: {told}; --accept-gap goes on"
        )
    return starts, gaps


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


@asynccontextmanager
async def _watched(
    backfill: Backfill, on_progress: Callable[[Progress], None], stop: asyncio.Event
) -> AsyncIterator[None]:
    """Inside, progress is told and a stop passed on; the last word is told at the end."""
    watcher = asyncio.create_task(_watch(backfill, on_progress, stop), name="backfill-progress")
    try:
        yield
    finally:
        watcher.cancel()
        on_progress(backfill.progress())


async def _watch(backfill: Backfill, on_progress: Callable[[Progress], None], stop: asyncio.Event) -> None:
    while not await is_set_within(_PROGRESS_EVERY_SECONDS, stop):
        on_progress(backfill.progress())
    backfill.stop()
