"""Tidegate's own upkeep in a worker: rounds by the clock, by one worker at a time, and what each worker watches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from dlq.forgetting.upkeep import LetterUpkeep
from inbox.upkeep import InboxUpkeep
from tidegate.app import App
from tidegate.assembly import JobParts
from tidegate.clocking import hands_of
from tidegate.jobs.clockwork.history import History
from tidegate.jobs.clockwork.host import ClockHost, Pace
from tidegate.jobs.clockwork.maintenance_round import Round, UpkeepRoad
from tidegate.jobs.clockwork.maintenance_upkeep import AUDIT, INBOX, LETTERS, RUNS, UPKEEP_HEARTBEAT, tombstones_of
from tidegate.jobs.clockwork.scheduler import Scheduler, register_clock_jobs
from tidegate.jobs.declaration import FoldJob, ProjectionJob
from tidegate.jobs.tombstones import KeptSink, TombstoneUpkeep
from tidegate.resources import Resources
from tidegate_kernel.audit_upkeep import AuditUpkeep
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.kafka_retention import read_retention

# One round at a time takes no connection from those that do what the service is there for. A round notices a stop at
# its next chunk; a search that takes longer than the grace period is broken off, and begun again by another worker.
UPKEEP_PACE = Pace(heartbeat=UPKEEP_HEARTBEAT, runs_at_once=1, grace=timedelta(seconds=3))


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What runs the rounds, and what beside them watches for this process alone."""

    host: ClockHost
    inbox: InboxUpkeep
    letters: LetterUpkeep


async def open_upkeep(app: App, parts: Sequence[JobParts], resources: Resources, *, stop: asyncio.Event) -> Upkeep:
    """The coming days of the inbox have their partitions, and the jobs of upkeep are registered.

    Raises Misconfigured where they cannot start.
    """
    pool, clock, metrics, settings = resources.pool, resources.clock, resources.metrics, resources.settings
    # Before the first claim: a day whose claims have gone to the default partition stays there.
    inbox = InboxUpkeep(pool, clock, metrics=metrics, holder=resources.owner)
    await inbox.begin()
    letters = LetterUpkeep(pool, clock, service=app.service, kept=settings.letter_retention, metrics=metrics)
    scheduler = Scheduler(pool, clock, service=app.service, holder=resources.owner, ttl=UPKEEP_PACE.lease_ttl)
    try:
        known = await register_clock_jobs(pool, app.service, [*app.clock_jobs, *app.upkeep_jobs])
        rounds: dict[str, Round] = {INBOX: inbox.round, LETTERS: letters.round}
        audit = AuditUpkeep(pool, target=f"{app.service}.{AUDIT}", kept=settings.audit_retention)
        rounds |= {RUNS: History(pool, clock, known).forget, AUDIT: audit.round} | _of_sinks(parts, resources)
        await scheduler.begin([job for job in app.upkeep_jobs if job.code in rounds])
    except Transient as error:
        raise Misconfigured(f"upkeep cannot start: {error}") from error
    hands = {
        number: replace(hands_of(app, job, resources, stop=stop), road=partial(UpkeepRoad, rounds[job.code]))
        for number, job in scheduler.jobs.items()
    }
    return Upkeep(ClockHost(scheduler, hands, clock=clock, metrics=metrics, pace=UPKEEP_PACE), inbox, letters)


def _of_sinks(parts: Sequence[JobParts], resources: Resources) -> dict[str, Round]:
    return {
        tombstones_of(kept.code): TombstoneUpkeep(
            resources.pool,
            resources.clock,
            kept,
            read_retention=partial(read_retention, resources.settings.kafka),
            holder=resources.owner,
            metrics=resources.metrics,
        ).round
        for part in parts
        for kept in _kept_sinks(part)
    }


def _kept_sinks(part: JobParts) -> Iterator[KeptSink]:
    if part.sink is not None and isinstance(part.job, ProjectionJob | FoldJob):
        topics = [topic.name for topic in part.job.topics]
        yield KeptSink(part.id, part.job.code, part.job.sink.name, topics, part.sink)
