"""`tidegate run JOB --backfill`: plan the range, start or resume, run beside the live group, report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import structlog

from consumers.backfill import Backfill, Progress
from consumers.backfill_lease import BackfillLease, Unfinished, start_deed
from consumers.failure import RetryPolicy
from consumers.intents import Intents
from consumers.meter import Tally
from consumers.positions import Positions
from projections.sink import Sink
from tidegate.app import App
from tidegate.assembly import JobParts, assemble, backfill_of
from tidegate.backfill_plan import BackfillOptions, BackfillStart, plan, refuse_fold
from tidegate.jobs.declaration import Job
from tidegate.jobs.selection import part_of
from tidegate.resources import Resources, open_resources
from tidegate.supervision import is_set_within
from tidegate.worker import open_sink
from tidegate_kernel import logs
from tidegate_kernel.audit import refuse_early
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import AlreadyRunning, Misconfigured, Transient, Unreachable
from tidegate_kernel.event import RunId
from tidegate_kernel.kafka import open_reader
from tidegate_kernel.permissions import Action, Actor, Deed
from tidegate_kernel.settings import Settings
from tidegate_kernel.source import ClientDied

# What a backfill is asked for with stands in a module of its own, and is imported from here.
__all__ = ["BackfillOptions", "BackfillReport", "BackfillStart", "run_backfill"]

_log = structlog.get_logger(__name__)

_WAIT_FOR_LEASE_SECONDS = 1.0
_PROGRESS_EVERY_SECONDS = 0.2
# As often as the lease is renewed while it is read.
_RESTART = RetryPolicy(name="restart", first_delay=timedelta(seconds=0.5), longest_delay=timedelta(seconds=5))


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
    that is not accepted, a re-created topic, a ConsumerJob's range that begins before its horizon, or a fold.
    """
    job = app.job(code)
    refuse_fold(job)
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
        _log.info(logs.BACKFILL_STARTED, job=code, run=begun.run, source=options.start.spell())
        is_done, progress = await _Reading(parts, resources, lease, begun.run).to_end(options.on_progress, stop)
        tally = parts.meter.tally
        await _show(job, sink)
        if is_done:
            await lease.finish(begun.run, records=tally.records, dead_letters=tally.dead_letters)
        else:
            await lease.release(begun.run)
        _log.info(logs.BACKFILL_FINISHED, job=code, run=begun.run, done=is_done, records=tally.records)
        return BackfillReport(code, begun.run, is_done, begun.was_resumed, progress, tally, begun.gaps)


async def _show(job: Job, sink: Sink | None) -> None:
    """Readers see what was written; where the store does not take part, a worker's refresher makes up for it."""
    if sink is not None:
        try:
            await sink.refresh()
        except (Transient, Misconfigured) as error:
            _log.warning(logs.REFRESH_FAILED, job=job.code, error=str(error))


class _Reading:
    """One process's reading of a backfill, with one client after the other if need be."""

    def __init__(self, parts: JobParts, resources: Resources, lease: BackfillLease, run: RunId) -> None:
        self._parts, self._resources, self._lease, self._run = parts, resources, lease, run
        self._passed = 0

    async def to_end(self, on_progress: Callable[[Progress], None], stop: asyncio.Event) -> tuple[bool, Progress]:
        """Whether it got there (False after `stop`), and how far. A client that died is replaced, the lease kept.

        Raises Unreachable if Kafka does not answer at the start, and as `Backfill.run`.
        """
        failures, progress = 0, Progress(0, 0)

        def note(latest: Progress) -> None:
            nonlocal progress
            progress = Progress(self._passed + latest.done, self._passed + latest.total)
            on_progress(progress)

        while True:
            try:
                return await self._with_a_client(note, stop), progress
            except (ClientDied, Unreachable) as error:
                if isinstance(error, Unreachable) and failures == 0:
                    raise
                failures += 1
                self._passed = progress.done
                _log.warning(logs.BACKFILL_RESTARTED, run=self._run, failures=failures, error=str(error))
                if await is_set_within(_RESTART.delay(failures, error), stop):
                    return False, progress
                await self._lease.renew(self._run)

    async def _with_a_client(self, on_progress: Callable[[Progress], None], stop: asyncio.Event) -> bool:
        pool, owner = self._resources.pool, self._resources.owner
        positions = await Positions(pool, job=self._parts.id, run=self._run, owner=owner).all()
        async with open_reader(self._resources.settings.kafka, positions) as source:
            backfill = backfill_of(self._parts, source, self._resources.clock)
            async with _watched(backfill, on_progress, stop):
                return await backfill.run(positions, self._lease, self._run)


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
