"""From a declaration to running parts. The live worker, backfills and `tidegate.testing` are put together here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from consumers.decoding import Decoder
from consumers.lane import LaneSettings
from consumers.loop import ConsumerLoop, Join
from consumers.meter import Meter
from consumers.pipeline import CommandRoad, Ledger, Pipeline, ProjectionRoad, Road
from consumers.positions import Positions
from consumers.steward import Steward
from dlq.letters import Origin
from inbox.store import register_job
from projections.sink import Sink
from tidegate.app import App
from tidegate.jobs.declaration import ConsumerJob, Job, ProjectionJob
from tidegate.jobs.mediator import Mediator
from tidegate_kernel.clock import Clock
from tidegate_kernel.event import LIVE, JobId, RunId
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool, is_writable, translated_errors
from tidegate_kernel.settings import Settings

# Events of a batch handled one by one in a transaction: the knee of the claim statement lies at 500 to 1,000 rows.
_CONSUMER_BATCH = 500


@dataclass(frozen=True, slots=True)
class Resources:
    """What all jobs of a process share. `owner` names this process on the positions it takes."""

    settings: Settings
    pool: Pool
    clock: Clock
    metrics: Metrics
    threads: ThreadPoolExecutor
    owner: str
    deps: Any = None


@dataclass(frozen=True, slots=True)
class JobParts:
    """One job, registered, with its road built for one run."""

    job: Job
    id: JobId
    pipeline: Pipeline
    steward: Steward
    meter: Meter
    lanes: LaneSettings
    last_progress: Callable[[], float]
    """Monotonic time at which a handler was last called; 0 for jobs without handlers."""


async def assemble(app: App, job: Job, resources: Resources, *, sink: Sink | None, run: RunId = LIVE) -> JobParts:
    """Registers the job and builds its parts. A projection needs its open `sink`.

    Raises Misconfigured if the job's claim rule changed, Transient if Postgres does not answer.
    """
    with translated_errors("register job"):
        async with resources.pool.acquire(timeout=10) as connection:
            rule = job.claim_rule
            number = await register_job(connection, service=app.service, code=job.job_code, claim_rule=rule.spell())
    ledger = Ledger(resources.pool, _origin(app, job, number, run), rule, resources.clock)
    mediator = _mediator(app, job, resources) if isinstance(job, ConsumerJob) else None
    if isinstance(job, ProjectionJob):
        resources.metrics.freshness_sla.labels(job.code).set(job.freshness_sla.total_seconds())
    decoder = Decoder({topic.name: topic for topic in job.topics}, job.events, job.unlisted)
    return JobParts(
        job=job,
        id=number,
        pipeline=Pipeline(decoder, _road(app, job, resources, ledger, mediator or sink), ledger),
        steward=Steward(Positions(resources.pool, job=number, run=run, owner=resources.owner)),
        meter=Meter(job.job_code, resources.metrics, resources.clock),
        lanes=_lane_settings(job, resources.settings),
        last_progress=lambda: mediator.last_progress if mediator is not None else 0.0,
    )


def live_loop(parts: JobParts, join: Join, clock: Clock) -> ConsumerLoop:
    """The job's live consumer over the given way of joining its group."""
    return ConsumerLoop(join, parts.pipeline, parts.steward, settings=parts.lanes, clock=clock, meter=parts.meter)


def _road(app: App, job: Job, resources: Resources, ledger: Ledger, target: Mediator | Sink | None) -> Road:
    if isinstance(job, ConsumerJob) and isinstance(target, Mediator):
        probe = _probe(app, job, resources.settings)
        return CommandRoad(ledger, target, job.retry, probe=probe, silence_limit=job.silence_limit)
    if target is None or isinstance(target, Mediator):
        raise ValueError(f"job {job.code!r} is a projection and needs its sink")
    return ProjectionRoad(ledger, target)


def _mediator(app: App, job: ConsumerJob, resources: Resources) -> Mediator:
    return Mediator(
        job.job_code,
        app.commands,
        deps=resources.deps,
        clock=resources.clock,
        timeout=job.handler_timeout,
        threads=resources.threads,
        dependencies=[d for d in app.dependencies if d.name in job.needs],
    )


def _probe(app: App, job: ConsumerJob, settings: Settings) -> Callable[[], Awaitable[bool]]:
    """Whether everything the job needs answers on fresh connections: an outage burns no attempts."""
    probes = [d.probe for d in app.dependencies if d.name in job.needs]
    dsn = settings.postgres_dsn.get_secret_value()

    async def all_there() -> bool:
        if not await is_writable(dsn):
            return False
        for probe in probes:
            if not await probe():
                return False
        return True

    return all_there


def _origin(app: App, job: Job, number: JobId, run: RunId) -> Origin:
    return Origin(
        job=number,
        job_code=job.code,
        service=app.service,
        group=app.group(job.job_code),
        service_version=app.version,
        dlq_topic=app.dlq_topic(job.job_code),
        backfill=run != LIVE,
    )


def _lane_settings(job: Job, settings: Settings) -> LaneSettings:
    default = job.sink.batch_size if isinstance(job, ProjectionJob) else _CONSUMER_BATCH
    return LaneSettings(
        lanes=settings.lanes,
        batch_size=job.batch_size or default,
        drain_timeout=settings.drain_timeout,
        retry=job.retry,
    )
