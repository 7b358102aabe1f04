"""What an operator asks first: how far behind is each job, is that too far, what failed, what waits to go out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from consumers.intents import Intent, IntentKind
from consumers.presence import State
from inbox.upkeep import upkeep_trouble
from projections.freshness import Freshness, freshness_of
from tidegate.app import App
from tidegate.console.clock_status import ClockStatus, clock_statuses
from tidegate.console.facts import UNSEEN_SECONDS, Said
from tidegate.console.lag import LivePosition, Log, PartitionStatus, partition_statuses, read_logs
from tidegate.console.rendering import RenderingStatus, rendering_status
from tidegate.console.views import View, views_of_job
from tidegate.jobs.declaration import FoldJob, Job, ProjectionJob
from tidegate.jobs.intents import standing_intents
from tidegate.jobs.relay import Backlog
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import open_reader
from tidegate_kernel.postgres import Connection, connect, translated_errors
from tidegate_kernel.queries import load_queries
from tidegate_kernel.settings import Settings

_QUERIES = load_queries("tidegate.console")
_JOB_QUERIES = load_queries("tidegate.jobs")


class Verdict(StrEnum):
    """What to make of a job's lag. PAUSED: nothing is wrong but that somebody wants all or part of it to rest; REWOUND:
    but that somebody has moved it back, and it is on its way to where it was."""

    OK = "OK"
    LATE = "LATE"
    STALLED = "STALLED"
    REWOUND = "REWOUND"
    PAUSED = "PAUSED"
    BLOCKED = "BLOCKED"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job. `sla_seconds` is None for jobs that declare no freshness: they are never late.

    `intents` is what stands for it; `resting` are the partitions (as topic:number) that an operator makes rest by it.
    `backlog` says why it rests for its dead letters, if it does. `parked` events wait behind letters of their keys.
    """

    code: str
    kind: str
    sla_seconds: float | None
    partitions: Sequence[PartitionStatus]
    dead_letters: Mapping[str, int]
    intents: Sequence[Intent] = ()
    resting: Sequence[str] = ()
    backlog: str | None = None
    parked: int = 0
    rendering: RenderingStatus | None = None

    @property
    def records_behind(self) -> int:
        return sum(partition.records_behind for partition in self.partitions)

    @property
    def seconds_behind(self) -> float | None:
        """Of the partition that is furthest behind; None if the age of one is unknown."""
        return _furthest([each.seconds_behind for each in self.partitions])

    @property
    def reader_seconds(self) -> float | None:
        """How far readers are behind, likewise; None for a job without any, too."""
        ages = [each.reader_seconds for each in self.partitions if each.view is not None]
        return _furthest(ages) if ages else None

    @property
    def verdict(self) -> Verdict:
        """An unknown age counts as late: nobody could say that readers see fresh data. What rests on purpose does not:
        the alert for it would be the operator's own doing."""
        flooded = any(intent.kind is IntentKind.FLOOD for intent in self.intents)
        if flooded or self.backlog or any(partition.obstacle is not None for partition in self.partitions):
            return Verdict.BLOCKED
        active = [p for p in self.partitions if f"{p.topic}:{p.partition}" not in self.resting]
        states = {p.state for p in active}
        if Freshness.STALLED in states:
            return Verdict.STALLED
        seconds = _furthest([p.age for p in active if p.state is not Freshness.REWOUND])
        if self.sla_seconds is not None and (seconds is None or seconds > self.sla_seconds):
            return Verdict.LATE
        if Freshness.REWOUND in states:
            return Verdict.REWOUND
        return Verdict.PAUSED if self.intents else Verdict.OK


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """All jobs of a service at one moment. `upkeep_trouble`: why the inbox is not kept, if it is not."""

    service: str
    asked_at: datetime
    jobs: Sequence[JobStatus]
    outbox: Backlog
    upkeep_trouble: str | None = None
    clock_jobs: Sequence[ClockStatus] = ()


async def read_status(app: App, settings: Settings, clock: Clock) -> ServiceStatus:
    """Returns the state of every job, from Postgres and Kafka alone. Raises Misconfigured if either cannot be asked."""
    try:
        async with connect(settings.postgres_dsn.get_secret_value()) as connection:
            with translated_errors("read status"):
                # Positions first: an end read later can only be further on, so no lag is negative.
                positions = {job.code: await live_positions(connection, app.service, job) for job in app.jobs}
                letters = await _letters(connection, app.service)
                wanted = await standing_intents(connection, app.service)
                parked = {job.code: await parked_of_job(connection, app.service, job) for job in app.jobs}
                said = {job.code: await said_of_job(connection, app.service, job) for job in app.jobs}
                rendering = {job.code: await rendering_status(connection, app.service, job) for job in app.jobs}
                views = {job.code: await views_of_job(connection, app.service, job) for job in app.jobs}
                outbox = await _outbox(connection)
                trouble = await upkeep_trouble(connection)
                clocked = await clock_statuses(connection, app)
        async with open_reader(settings.kafka) as reader:
            logs = await read_logs(reader, app.topics)
        jobs = []
        for job in app.jobs:
            partitions = await _partitions(settings, job, positions[job.code], logs, clock, views=views[job.code])
            intents = wanted.get(job.code, [])
            resting = _resting(partitions, intents, said[job.code])
            found = _job(job, partitions, letters.get(job.code, {}), intents=intents, resting=resting)
            found = replace(found, backlog=_backlog(said[job.code]), rendering=rendering[job.code])
            jobs.append(replace(found, parked=sum(parked[job.code].values())))
    except Transient as error:
        raise Misconfigured(f"the status cannot be read: {error}") from error
    return ServiceStatus(app.service, clock.now(), jobs, outbox, trouble, clocked)


def _job(
    job: Job,
    partitions: Sequence[PartitionStatus],
    letters: Mapping[str, int],
    *,
    intents: Sequence[Intent],
    resting: Sequence[str],
) -> JobStatus:
    sla = job.freshness_sla.total_seconds() if isinstance(job, ProjectionJob | FoldJob) else None
    judged = [replace(each, state=_state(each, sla, resting)) for each in partitions]
    return JobStatus(job.code, type(job).__name__, sla, judged, letters, intents, resting)


def _state(each: PartitionStatus, sla: float | None, resting: Sequence[str]) -> Freshness | None:
    """None for a job without readers, and before its first start."""
    if sla is None or each.view is None:
        return None
    return freshness_of(
        each.reader_seconds,
        sla=sla,
        still_seconds=each.view.still_seconds,
        is_paused=f"{each.topic}:{each.partition}" in resting,
        is_rewound=each.view.rewound_from is not None,
    )


def _backlog(said: Mapping[TopicPartition, Said]) -> str | None:
    """What a living owner says of the letters that wait, or of the events that wait behind them."""
    told = (State.BACKLOG, State.PARKING)
    resting = (each for each in said.values() if each.state in told and each.seen_seconds <= UNSEEN_SECONDS)
    return next((each.detail for each in resting), None)


def _furthest(ages: Sequence[float | None]) -> float | None:
    known = [age for age in ages if age is not None]
    return None if len(known) < len(ages) else max(known, default=0.0)


def _resting(
    partitions: Sequence[PartitionStatus], intents: Sequence[Intent], said: Mapping[TopicPartition, Said]
) -> list[str]:
    """Partitions that a pause covers; and, while a tenant is paused, those whose owners wait before its record."""
    waiting = {p for p, each in said.items() if each.state is State.PAUSED} if any(i.tenant for i in intents) else set()
    places = [TopicPartition(each.topic, each.partition) for each in partitions]
    covered = {p for p in places if any(intent.covers(p) for intent in intents)}
    return [f"{topic}:{number}" for topic, number in places if (topic, number) in covered | waiting]


async def _partitions(
    settings: Settings,
    job: Job,
    positions: Mapping[TopicPartition, LivePosition],
    logs: Mapping[TopicPartition, Log],
    clock: Clock,
    *,
    views: Mapping[TopicPartition, View],
) -> list[PartitionStatus]:
    """Of the topics that the job reads today: a position in one that it no longer reads is no lag."""
    names = {topic.name for topic in job.topics}
    own_logs = {partition: log for partition, log in logs.items() if partition.topic in names}
    own = {partition: live for partition, live in positions.items() if partition.topic in names}
    return await partition_statuses(settings.kafka, own, own_logs, clock, job=job.job_code, views=views)


async def live_positions(connection: Connection, service: str, job: Job) -> dict[TopicPartition, LivePosition]:
    """Where the live consumer of the job stands, by partition; none before its first start."""
    rows = await connection.fetch(_JOB_QUERIES["live_positions"], service, job.code)
    return {
        TopicPartition(r["topic"], r["partition"]): LivePosition(
            r["next_offset"], r["topic_id"], r["owner"], r["moved_at"]
        )
        for r in rows
    }


async def said_of_job(connection: Connection, service: str, job: Job) -> dict[TopicPartition, Said]:
    """What the owners of the job's partitions last said, however long ago."""
    rows = await connection.fetch(_QUERIES["presence_of_job"], service, job.code)
    return {
        TopicPartition(row["topic"], row["partition"]): Said(
            row["owner"], State(row["state"]), row["detail"], row["since_seconds"], row["seen_seconds"]
        )
        for row in rows
    }


async def parked_of_job(connection: Connection, service: str, job: Job) -> dict[TopicPartition, int]:
    """How many events wait behind dead letters of their keys, by the partitions that they stand in."""
    rows = await connection.fetch(_QUERIES["parked_of_job"], service, job.code)
    return {TopicPartition(row["topic"], row["partition"]): row["events"] for row in rows}


async def _letters(connection: Connection, service: str) -> dict[str, dict[str, int]]:
    letters: dict[str, dict[str, int]] = {}
    for row in await connection.fetch(_QUERIES["dead_letters_by_state"], service):
        letters.setdefault(row["code"], {})[row["state"]] = row["letters"]
    return letters


async def _outbox(connection: Connection) -> Backlog:
    row = await connection.fetchrow(_JOB_QUERIES["outbox_backlog"])
    assert row is not None
    return Backlog(row["records"], row["oldest_age_seconds"], row["set_aside"])
