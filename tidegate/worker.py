"""A worker process: the live consumers of some jobs, the outbox relay, upkeep and the HTTP endpoint.

Read top to bottom: what is opened first is closed last.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import structlog

from consumers.loop import Join
from projections.sink import Sink
from tidegate.app import App
from tidegate.assembly import JobParts, assemble
from tidegate.clocking import CONNECTIONS, open_clock, run_clock
from tidegate.console.http import serve
from tidegate.console.sights import Waiters
from tidegate.console.visible_http import visible_route
from tidegate.freshening import Freshening, freshening_of
from tidegate.horizons import keep_horizons
from tidegate.jobs.clockwork.host import ClockHost
from tidegate.jobs.declaration import FoldJob, Job, ProjectionJob, SinkJob
from tidegate.jobs.relay import OutboxRelay
from tidegate.resources import Resources, open_resources
from tidegate.supervision import supervise, until_sink_found
from tidegate.upkeeping import Upkeep, open_upkeep
from tidegate.vitals import Vitals
from tidegate_kernel import logs
from tidegate_kernel.clock import ServerClock, SystemClock
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.event import JobCode
from tidegate_kernel.kafka import join_group, open_reader, open_writer
from tidegate_kernel.settings import Settings
from tidegate_kernel.tracing import exported_traces

_log = structlog.get_logger(__name__)

_RELAY_REST_SECONDS = 3.0

_Work: TypeAlias = Coroutine[Any, Any, None]


async def run_worker(
    app: App, settings: Settings, codes: Sequence[str], *, stop: asyncio.Event, begun: asyncio.Event | None = None
) -> None:
    """Runs the jobs `codes` until `stop` is set, consumers and those by the clock; returns with finished work settled.

    Sets `begun` before anything is consumed. To cancel it earlier leaves nothing undone.

    Raises Misconfigured if something needed is missing, or Postgres or Kafka cannot be reached at the start. A sink
    that does not answer then holds up its own job only; where `stop` is set, which makes the start a check, it is
    refused too. Later outages are waited out.
    """
    async with _open_worker(app, settings, codes, stop=stop) as worker:
        calm_collector()
        if begun is not None:
            begun.set()
        _log.info(logs.WORKER_STARTED, jobs=list(codes), owner=worker.resources.owner, port=worker.port)
        await _until_all_end(_consumers(app, worker, stop=stop), upkeep=_beside(worker))
        # At once: one after the other they would outlast what a stop may take, where several servers are silent.
        await asyncio.gather(_relay_rest(worker.relay), _show_rest(worker.parts, worker.fresh))
        _log.info(logs.WORKER_STOPPED, owner=worker.resources.owner)


@dataclass(frozen=True, slots=True)
class _Worker:
    """All that a worker process has open."""

    resources: Resources
    parts: Sequence[JobParts]
    fresh: Sequence[Freshening]
    relay: OutboxRelay
    vitals: Vitals
    upkeep: Upkeep
    by_clock: ClockHost | None
    port: int


@asynccontextmanager
async def _open_worker(
    app: App, settings: Settings, codes: Sequence[str], *, stop: asyncio.Event
) -> AsyncIterator[_Worker]:
    """Yields a worker that has begun nothing. What is opened first is closed last. Raises as `run_worker`."""
    clock_jobs = [job for job in app.clock_jobs if job.code in codes]
    jobs = [app.job(code) for code in codes if code not in {job.code for job in clock_jobs}]
    clock = SystemClock()
    async with AsyncExitStack() as opened:
        opened.enter_context(exported_traces(settings.otlp_endpoint, service=app.service, version=app.version))
        resources = await opened.enter_async_context(
            open_resources(app, settings, jobs=len(jobs), clock=clock, more=CONNECTIONS if clock_jobs else 0)
        )
        await _require_topics(app, settings, codes)
        parts = [await _open_job(opened, app, job, resources, is_check=stop.is_set()) for job in jobs]
        await keep_horizons(parts, settings.kafka, resources.pool)
        writer = await opened.enter_async_context(open_writer(settings.kafka))
        vitals, more = Vitals(clock), [visible_route(app, Waiters(resources.pool, app.service, clock), clock)]
        port = await opened.enter_async_context(serve(settings, metrics=resources.metrics, health=vitals, more=more))
        # Occurrences are the same for all processes: they go by the clock of the database.
        by_database = replace(resources, clock=ServerClock(clock))
        upkeep = await open_upkeep(app, parts, by_database, stop=stop)
        yield _Worker(
            resources,
            parts,
            fresh=[each for part in parts if (each := freshening_of(app, part, resources)) is not None],
            relay=OutboxRelay(resources.pool, writer, clock, metrics=resources.metrics),
            vitals=vitals,
            upkeep=upkeep,
            by_clock=await open_clock(app, clock_jobs, by_database, stop=stop) if clock_jobs else None,
            port=port,
        )


def _consumers(app: App, worker: _Worker, *, stop: asyncio.Event) -> Mapping[str, _Work]:
    """What ends by itself when `stop` is set."""
    resources, vitals = worker.resources, worker.vitals
    works = {
        part.job.code: _consume(part, _join(app, part.job, resources.settings), resources, vitals=vitals, stop=stop)
        for part in worker.parts
    }
    works["upkeep-by-the-clock"] = run_clock(worker.upkeep.host, vitals, stop=stop)
    if worker.by_clock is not None:
        works["jobs-by-the-clock"] = run_clock(worker.by_clock, vitals, stop=stop)
    return works


def _beside(worker: _Worker) -> Mapping[str, _Work]:
    """What runs for as long as any consumer does."""
    works = {"outbox-relay": worker.relay.run()}
    works |= {"inbox-watch": worker.upkeep.inbox.watch(), "letter-watch": worker.upkeep.letters.watch()}
    works |= {f"render-{part.job.code}": part.renderer.run() for part in worker.parts if part.renderer is not None}
    for each in worker.fresh:
        works |= each.work()
    return works


async def _until_all_end(consumers: Mapping[str, _Work], *, upkeep: Mapping[str, _Work]) -> None:
    """Runs everything side by side, as tasks of these names, until the last of `consumers` ends.

    Raises what the first that failed has raised: it ends the others.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(work, name=name) for name, work in upkeep.items()]
            await asyncio.wait([tasks.create_task(work, name=name) for name, work in consumers.items()])
            for task in beside:
                task.cancel()
    except ExceptionGroup as group:
        raise group.exceptions[0] from group


def calm_collector() -> None:
    """The garbage collector looks at what is new, seldom. What is alive now lives as long as the process.

    The records and events of the batches in hand are tens of thousands of objects and none of them garbage: at Python's
    default of 700 new objects a round, looking through them takes a fifth of all CPU (docs/performance.md).
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@asynccontextmanager
async def open_sink(job: Job, settings: Settings) -> AsyncIterator[Sink | None]:
    """Yields the job's sink, found as it is declared; None for a job that has none.

    Raises Misconfigured where it is not, or cannot be asked.
    """
    if not isinstance(job, ProjectionJob):
        yield None
        return
    async with job.sink.open(settings) as sink:
        try:
            await sink.check()
        except Transient as error:
            raise _unusable(job, settings, error) from error
        yield sink


def _unusable(job: SinkJob, settings: Settings, error: Transient) -> Misconfigured:
    return Misconfigured(f"job {job.code!r}: {job.sink.where(settings)} cannot be used: {error}")


async def _open_job(opened: AsyncExitStack, app: App, job: Job, resources: Resources, *, is_check: bool) -> JobParts:
    sink = None
    if isinstance(job, ProjectionJob | FoldJob):
        sink = await opened.enter_async_context(job.sink.open(resources.settings))
        try:
            await sink.check()
        except Transient as error:
            # An outage of one sink is no reason to leave the other jobs alone: `_consume`, or the renderer, waits.
            if is_check:
                raise _unusable(job, resources.settings, error) from error
    try:
        return await assemble(app, job, resources, sink=sink)
    except Transient as error:
        raise Misconfigured(f"job {job.code!r} cannot start: {error}") from error


async def _consume(parts: JobParts, join: Join, resources: Resources, *, vitals: Vitals, stop: asyncio.Event) -> None:
    """Runs the job's live consumer until `stop`, from when its sink is found as declared. Raises as `supervise`."""
    if parts.sink is not None and isinstance(parts.job, ProjectionJob):
        where = parts.job.sink.where(resources.settings)
        await until_sink_found(parts, where, vitals=vitals, stop=stop)
    await supervise(parts, join, clock=resources.clock, vitals=vitals, stop=stop)


async def _require_topics(app: App, settings: Settings, codes: Sequence[str]) -> None:
    """A missing topic is found before anything is consumed, not when the first dead letter has nowhere to go."""
    wanted = {topic.name for job in app.jobs if job.code in codes for topic in job.topics}
    wanted |= {app.dlq_topic(JobCode(code)) for code in codes} & set(app.dlq_topics)
    async with open_reader(settings.kafka) as reader:
        try:
            missing = [name for name in sorted(wanted) if not await reader.partitions_of(name)]
        except Transient as error:
            raise Misconfigured(f"kafka at {settings.kafka.bootstrap} does not tell its topics: {error}") from error
    if missing:
        raise Misconfigured(f"kafka has no topic {', '.join(map(repr, missing))}; run 'tidegate topics create'")


def _join(app: App, job: Job, settings: Settings) -> Join:
    topics = [topic.name for topic in job.topics]
    return lambda on_assigned, on_revoked: join_group(
        settings.kafka, group=app.group(job.job_code), topics=topics, on_assigned=on_assigned, on_revoked=on_revoked
    )


async def _show_rest(parts: Sequence[JobParts], fresh: Sequence[Freshening]) -> None:
    """What was folded last is rendered, and what was settled last visible: perhaps no other worker is there for it."""
    await asyncio.gather(*(part.renderer.rest() for part in parts if part.renderer is not None))
    await asyncio.gather(*(each.refresher.last_word() for each in fresh))


async def _relay_rest(relay: OutboxRelay) -> None:
    """What this process decided to publish is on its way before it ends, if Kafka and Postgres answer in time."""
    try:
        async with asyncio.timeout(_RELAY_REST_SECONDS):
            while await relay.relay_once():
                pass
    except (Transient, TimeoutError):
        return  # it stands in Postgres: any other worker's relay publishes it
