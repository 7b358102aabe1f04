"""What handles a job's batches: its road to handlers, a fold or a sink, and what stands on it."""

from __future__ import annotations

from typing import Any

from consumers.backlog import EventBacklog
from consumers.fold_road import FoldRoad
from consumers.folding import Folder, FoldRule
from consumers.judging import Judge
from consumers.ledger import Ledger
from consumers.outages import Outages
from consumers.parking import Parking, ParkingLimit
from consumers.pipeline import CommandRoad, ProjectionRoad, Road
from consumers.stable import StableRoad
from projections.folds.codec import StateCodec
from projections.folds.dirty import DirtyKeys
from projections.folds.renderer import Projection, Renderer
from projections.sink import Sink
from projections.stable import StableSink
from tidegate.app import App
from tidegate.jobs.declaration import ConsumerJob, FoldJob, Job, silence_limit_of
from tidegate.jobs.decoding import order_of
from tidegate.jobs.mediator import Mediator
from tidegate.resources import Resources
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import JobId

# Keys rendered at once, with their states in memory.
_LARGEST_CHUNK = 1_000


def parking_of(job: Job, ledger: Ledger) -> Parking:
    """Projections park nothing: the newest version of a document stays, whatever came before it."""
    if isinstance(job, ConsumerJob | FoldJob):
        return Parking(ledger.pool, ledger.origin, order_of(job), job.parking)
    return Parking(ledger.pool, ledger.origin, None, ParkingLimit())


def road_of(
    job: Job,
    ledger: Ledger,
    parking: Parking,
    target: Mediator | Renderer | Sink | None,
    outages: Outages,
    *,
    events: EventBacklog,
) -> Road:
    judge, silence_limit = Judge(job.retry, outages.all_answer), silence_limit_of(job)
    if isinstance(target, Mediator):
        return CommandRoad(ledger, parking, target, judge, silence_limit=silence_limit, note_published=events.note)
    if isinstance(job, FoldJob) and isinstance(target, Renderer):
        folder = folder_of(job, ledger.origin.job)
        return FoldRoad(ledger, parking, folder, judge, silence_limit=silence_limit, notice=target.notice)
    if target is None or isinstance(target, Renderer):
        raise ValueError(f"job {job.code!r} is a projection and needs its sink")
    return StableRoad(ledger, target) if isinstance(target, StableSink) else ProjectionRoad(ledger, target)


def folder_of(job: FoldJob[Any], number: JobId) -> Folder:
    return Folder(number, FoldRule(job.key, StateCodec(job.state), across_tenants=job.across_tenants is not None))


def renderer_of(app: App, job: FoldJob[Any], resources: Resources, number: JobId, sink: Sink | None) -> Renderer:
    if sink is None:
        raise ValueError(f"job {job.code!r} is a fold and needs its sink")
    if isinstance(sink, StableSink):
        raise Misconfigured(
            f"job {job.code!r} is a fold: each change of a state would count once more in what its sink feeds; declare "
            "the table without stable_batches, and no materialized view on it"
        )
    projection = Projection(
        job=job.code,
        codec=StateCodec(job.state),
        render=job.render,
        store=job.sink.store,
        release=app.version,
        chunk=min(job.sink.batch_size, _LARGEST_CHUNK),
    )
    dirty = DirtyKeys(resources.pool, number)
    return Renderer(dirty, sink, projection, resources.clock, metrics=resources.metrics)


def mediator_of(app: App, job: ConsumerJob, resources: Resources) -> Mediator:
    return Mediator(
        job.job_code,
        app.commands,
        deps=resources.deps,
        clock=resources.clock,
        timeout=job.handler_timeout,
        threads=resources.threads,
        dependencies=[d for d in app.dependencies if d.name in job.needs],
    )
