"""From a declaration to running parts. The live worker, backfills and `tidegate.testing` are put together here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from consumers.backfill import Backfill
from consumers.backlog import Backlog, EventBacklog, LetterBacklog
from consumers.caution import Solitude
from consumers.flood import Floods
from consumers.host import LaneSettings
from consumers.intents import Intents
from consumers.judging import Judge
from consumers.ledger import Ledger
from consumers.loop import ConsumerLoop, Join
from consumers.meter import Meter
from consumers.newcomers import Newcomers
from consumers.outages import POSTGRES, Outages, Probe
from consumers.parking import Parking
from consumers.pipeline import Pipeline
from consumers.positions import Positions
from consumers.presence import Presence
from consumers.replay_commands import CommandHands
from consumers.replay_hands import Hands
from consumers.replay_projections import ProjectionHands
from consumers.steward import Steward
from consumers.watch import Watch
from dlq.letters import Origin
from dlq.runs import RunKind
from inbox.store import register_job
from projections.folds.renderer import Renderer
from projections.sink import PacedSink, Sink
from projections.visibility_unseen import Unseen
from tidegate.app import App
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.declaration import ConsumerJob, FoldJob, Job, ProjectionJob, batch_size_of
from tidegate.jobs.decoding import decoder_of, order_of
from tidegate.jobs.mediator import Mediator
from tidegate.resources import Resources
from tidegate.roads import folder_of, mediator_of, parking_of, renderer_of, road_of
from tidegate_kernel.clock import Clock
from tidegate_kernel.event import LIVE, JobId, RunId
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool, is_writable, translated_errors
from tidegate_kernel.settings import Settings
from tidegate_kernel.source import RecordSource


@dataclass(frozen=True, slots=True)
class JobParts:
    """One job, registered, with its road built for one run."""

    job: Job
    id: JobId
    pipeline: Pipeline
    steward: Steward
    meter: Meter
    lanes: LaneSettings
    outages: Outages
    solitude: Solitude
    floods: Floods
    watch: Callable[[], Watch]
    """Makes the watch of a loop."""
    last_progress: Callable[[], float]
    """Monotonic time at which a handler was last called; 0 for jobs without handlers."""
    sink: Sink | None
    renderer: Renderer | None = None
    """Of a fold: brings its states to the sink, beside the consumer."""


async def assemble(app: App, job: Job, resources: Resources, *, sink: Sink | None, run: RunId = LIVE) -> JobParts:
    """Registers the job and builds its parts. A projection or fold needs its open `sink`.

    Raises Misconfigured if the job's claim rule changed, or for a fold into a stable sink; Transient if Postgres does
    not answer.
    """
    number = await _register(app, job, resources.pool)
    ledger = Ledger(resources.pool, origin_of(app, job, number, run), job.claim_rule, resources.clock)
    mediator = mediator_of(app, job, resources) if isinstance(job, ConsumerJob) else None
    renderer = renderer_of(app, job, resources, number, sink) if isinstance(job, FoldJob) else None
    if isinstance(job, ProjectionJob | FoldJob):
        resources.metrics.freshness_sla.labels(job.code).set(job.freshness_sla.total_seconds())
    _show_request_limit(job, sink, resources.metrics)
    outages = _outages(job, resources, _probes(app, job, resources.settings, sink))
    decoder = decoder_of(job)
    parking, events = parking_of(job, ledger), _event_backlog(job, resources)
    road = road_of(job, ledger, parking, mediator or renderer or sink, outages, events=events)
    pipeline = Pipeline(decoder, road, ledger, parking)
    return JobParts(
        job=job,
        id=number,
        pipeline=pipeline,
        steward=_steward(job, resources, number, run),
        meter=Meter(job.job_code, resources.metrics, resources.clock, _unseen(job, run)),
        lanes=_lane_settings(job, resources.settings),
        outages=outages,
        solitude=resources.solitude,
        floods=_floods(job, resources, number),
        watch=partial(
            _watch,
            resources,
            number,
            pipeline,
            mediator,
            parking,
            backlogs=[_letter_backlog(app, job, resources), events],
        ),
        last_progress=lambda: mediator.last_progress if mediator is not None else 0.0,
        sink=sink,
        renderer=renderer,
    )


def live_loop(parts: JobParts, join: Join, clock: Clock) -> ConsumerLoop:
    """The job's live consumer over the given way of joining its group."""
    return ConsumerLoop(
        join,
        parts.pipeline,
        parts.steward,
        settings=parts.lanes,
        clock=clock,
        meter=parts.meter,
        outages=parts.outages,
        solitude=parts.solitude,
        floods=parts.floods,
        watch=parts.watch(),
    )


def backfill_of(parts: JobParts, source: RecordSource, clock: Clock) -> Backfill:
    """The job's work on a range of its topics, read from `source`; `parts` are of the backfill's own run."""
    return Backfill(
        source,
        parts.pipeline,
        parts.steward,
        settings=parts.lanes,
        clock=clock,
        meter=parts.meter,
        outages=parts.outages,
        solitude=parts.solitude,
    )


async def replay_hands(
    app: App, job: Job, resources: Resources, *, sink: Sink | None, kind: RunKind
) -> tuple[Ledger, Hands]:
    """Registers the job and builds what its dead letters are handled with. A projection needs its open `sink`.

    Raises as `assemble`.
    """
    number = await _register(app, job, resources.pool)
    ledger = Ledger(resources.pool, origin_of(app, job, number, LIVE), job.claim_rule, resources.clock)
    if isinstance(job, ProjectionJob):
        if sink is None:
            raise ValueError(f"job {job.code!r} is a projection and needs its sink")
        return ledger, ProjectionHands(ledger, decoder_of(job), sink, kind=kind)
    outages = _outages(job, resources, _probes(app, job, resources.settings, sink))
    judge = Judge(job.retry, outages.all_answer)
    dispatcher = folder_of(job, number) if isinstance(job, FoldJob) else mediator_of(app, job, resources)
    return ledger, CommandHands(ledger, decoder_of(job), dispatcher, judge, order=order_of(job), kind=kind)


async def _register(app: App, job: Job, pool: Pool) -> JobId:
    with translated_errors("register job"):
        async with pool.acquire(timeout=10) as connection:
            return await register_job(
                connection, service=app.service, code=job.job_code, claim_rule=job.claim_rule.spell()
            )


def _unseen(job: Job, run: RunId) -> Unseen | None:
    """A backfill's writes are refreshed, too, and are nobody's freshness."""
    return Unseen() if isinstance(job, ProjectionJob | FoldJob) and run == LIVE else None


def _show_request_limit(job: Job, sink: object, metrics: Metrics) -> None:
    if isinstance(sink, PacedSink):
        metrics.sink_request_limit.labels(job.code).set_function(lambda: sink.request_limit)


def _steward(job: Job, resources: Resources, number: JobId, run: RunId) -> Steward:
    positions = Positions(resources.pool, job=number, run=run, owner=resources.owner)
    if run != LIVE:
        return Steward(positions)
    # What nobody parks may pass other records of its key anyway.
    newcomers = Newcomers(positions) if order_of(job) is not None else None
    return Steward(positions, job=job.job_code, newcomers=newcomers)


def _outages(job: Job, resources: Resources, probes: Mapping[str, Probe]) -> Outages:
    return Outages(
        job.code, probes, clock=resources.clock, metrics=resources.metrics, connections=resources.connections
    )


def _letter_backlog(app: App, job: Job, resources: Resources) -> LetterBacklog:
    is_full = resources.metrics.backlog_full.labels(job.code)
    most = resources.settings.letter_backlog
    return LetterBacklog(resources.pool, topic=app.dlq_topic(job.job_code), most=most, is_full=is_full)


def _event_backlog(job: Job, resources: Resources) -> EventBacklog:
    is_full = resources.metrics.events_backlog_full.labels(job.code)
    return EventBacklog(resources.pool, resources.clock, most=resources.settings.outbox_limit, is_full=is_full)


def _floods(job: Job, resources: Resources, number: JobId) -> Floods:
    limits = {topic.name: job.flood_limit(topic.name) for topic in job.topics}
    return Floods(job.code, resources.pool, number, limits=limits, metrics=resources.metrics)


def _watch(
    resources: Resources,
    number: JobId,
    pipeline: Pipeline,
    mediator: Mediator | None,
    parking: Parking,
    *,
    backlogs: Sequence[Backlog],
) -> Watch:
    return Watch(
        Intents(resources.pool, resources.clock, job=number, backlogs=backlogs),
        Presence(resources.pool, job=number, owner=resources.owner),
        pipeline,
        resources.clock,
        at_work=lambda partition: mediator.at_work(partition) if mediator is not None else None,
        has_room=parking.has_room,
    )


def _probes(app: App, job: Job, settings: Settings, sink: Sink | None) -> dict[str, Probe]:
    """How each thing that the job cannot do without is asked, by name."""
    probes: dict[str, Probe] = {POSTGRES: partial(is_writable, settings.postgres_dsn.get_secret_value())}
    if isinstance(job, ProjectionJob) and sink is not None:
        probes[job.sink.store] = sink.probe
    if isinstance(job, ConsumerJob):
        probes |= {needed.name: needed.probe for needed in app.dependencies if needed.name in job.needs}
    return probes


def origin_of(app: App, job: Job | ClockJob, number: JobId, run: RunId) -> Origin:
    """What all dead letters of one run of the job have in common."""
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
    return LaneSettings(
        lanes=settings.lanes,
        batch_size=batch_size_of(job),
        drain_timeout=settings.drain_timeout,
        retry=job.retry,
        linger=getattr(job.sink, "linger", timedelta(0)) if isinstance(job, ProjectionJob) else timedelta(0),
    )
