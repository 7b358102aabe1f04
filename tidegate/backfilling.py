"""`tidegate run JOB --backfill`: plan the range, start or resume, run beside the live group, report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from consumers.backfill import Backfill, Progress
from consumers.backfill_lease import BackfillLease, Unfinished, start_deed
from consumers.intents import Intents
from consumers.meter import Tally
from consumers.positions import Positions
from tidegate.app import App
from tidegate.assembly import JobParts, Resources, assemble, backfill_of
from tidegate.backfill_plan import BackfillOptions, BackfillStart, plan
from tidegate.jobs.declaration import Job
from tidegate.jobs.selection import part_of
from tidegate.supervision import is_set_within
from tidegate.worker import open_resources, open_sink
from tidegate_kernel import logs
from tidegate_kernel.audit import refuse_early
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import AlreadyRunning
from tidegate_kernel.event import RunId
from tidegate_kernel.kafka import open_reader
from tidegate_kernel.permissions import Action, Actor, Deed
from tidegate_kernel.settings import Settings

# What a backfill is asked for with stands in a module of its own, and is imported from here.
__all__ = ["BackfillOptions", "BackfillReport", "BackfillStart", "run_backfill"]

_log = structlog.get_logger(__name__)

_WAIT_FOR_LEASE_SECONDS = 1.0
_PROGRESS_EVERY_SECONDS = 0.2


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
        begun = await _start_or_resume(live, resources, lease, options, stop)
        if begun is None:
            raise AlreadyRunning(f"backfill of {code!r}: stopped while waiting for another process")
        parts = await assemble(app, job, resources, sink=sink, run=begun.run)
        positions = await Positions(resources.pool, job=live.id, run=begun.run, owner=resources.owner).all()
        source = await opened.enter_async_context(open_reader(settings.kafka, positions))
        backfill = backfill_of(parts, source, clock)
        _log.info(logs.BACKFILL_STARTED, job=code, run=begun.run, source=options.start.spell())
        async with _watched(backfill, options.on_progress, stop):
            is_done = await backfill.run(positions, lease, begun.run)
        tally = parts.meter.tally
        if is_done:
            await lease.finish(begun.run, records=tally.records, dead_letters=tally.dead_letters)
        else:
            await lease.release(begun.run)
        _log.info(logs.BACKFILL_FINISHED, job=code, run=begun.run, done=is_done, records=tally.records)
        return BackfillReport(code, begun.run, is_done, begun.was_resumed, backfill.progress(), tally, begun.gaps)


def _first_deed(code: str, options: BackfillOptions) -> Deed:
    """Whoever may not do it is told before anything is opened."""
    return Deed(Action.BACKFILL_ABANDON, code) if options.abandon else start_deed(code, options.start.spell())


class _Begun(NamedTuple):
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
) -> _Begun | None:
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
            return _Begun(unfinished.run, was_resumed=True, gaps={})
    planned = await plan(live, resources, options)
    run = await lease.start(options.start.spell(), planned.starts, gaps=planned.gaps)
    return _Begun(run, was_resumed=False, gaps=planned.gaps)


def _refuse_other_start(job: Job, unfinished: Unfinished, options: BackfillOptions) -> None:
    if unfinished.source != options.start.spell() and not options.abandon:
        raise AlreadyRunning(
            f"job {job.code!r} has an unfinished backfill from {unfinished.source} (run {unfinished.run}); "
            "resume it with the same flags, or give it up with --abandon"
        )


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
