"""What an operator asks first: how far behind is each job, is that too far, what failed, what waits to go out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from tidegate.app import App
from tidegate.console.lag import LivePosition, Log, PartitionStatus, partition_statuses, read_logs
from tidegate.jobs.declaration import Job, ProjectionJob
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
    """What to make of a job's lag."""

    OK = "OK"
    LATE = "LATE"
    BLOCKED = "BLOCKED"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job. `sla_seconds` is None for jobs that declare no freshness: they are never late."""

    code: str
    kind: str
    sla_seconds: float | None
    partitions: Sequence[PartitionStatus]
    dead_letters: Mapping[str, int]

    @property
    def records_behind(self) -> int:
        return sum(partition.records_behind for partition in self.partitions)

    @property
    def seconds_behind(self) -> float | None:
        """Of the partition that is furthest behind; None if the age of one is unknown."""
        ages = [partition.seconds_behind for partition in self.partitions]
        known = [age for age in ages if age is not None]
        return None if len(known) < len(ages) else max(known, default=0.0)

    @property
    def verdict(self) -> Verdict:
        """An unknown age counts as late: nobody could say that readers see fresh data."""
        if any(partition.obstacle is not None for partition in self.partitions):
            return Verdict.BLOCKED
        seconds = self.seconds_behind
        is_late = self.sla_seconds is not None and (seconds is None or seconds > self.sla_seconds)
        return Verdict.LATE if is_late else Verdict.OK


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """All jobs of a service at one moment."""

    service: str
    asked_at: datetime
    jobs: Sequence[JobStatus]
    outbox: Backlog


async def read_status(app: App, settings: Settings, clock: Clock) -> ServiceStatus:
    """Returns the state of every job, from Postgres and Kafka alone. Raises Misconfigured if either cannot be asked."""
    try:
        async with connect(settings.postgres_dsn.get_secret_value()) as connection:
            with translated_errors("read status"):
                # Positions first: an end read later can only be further on, so no lag is negative.
                positions = {job.code: await live_positions(connection, app.service, job) for job in app.jobs}
                letters = await _letters(connection, app.service)
                outbox = await _outbox(connection)
        async with open_reader(settings.kafka) as reader:
            logs = await read_logs(reader, app.topics)
        jobs = [
            _job(job, await _partitions(settings, job, positions[job.code], logs, clock), letters.get(job.code, {}))
            for job in app.jobs
        ]
    except Transient as error:
        raise Misconfigured(f"the status cannot be read: {error}") from error
    return ServiceStatus(app.service, clock.now(), jobs, outbox)


def _job(job: Job, partitions: Sequence[PartitionStatus], letters: Mapping[str, int]) -> JobStatus:
    sla = job.freshness_sla.total_seconds() if isinstance(job, ProjectionJob) else None
    return JobStatus(job.code, type(job).__name__, sla, partitions, letters)


async def _partitions(
    settings: Settings,
    job: Job,
    positions: Mapping[TopicPartition, LivePosition],
    logs: Mapping[TopicPartition, Log],
    clock: Clock,
) -> list[PartitionStatus]:
    """Of the topics that the job reads today: a position in one that it no longer reads is no lag."""
    names = {topic.name for topic in job.topics}
    own_logs = {partition: log for partition, log in logs.items() if partition.topic in names}
    own = {partition: live for partition, live in positions.items() if partition.topic in names}
    return await partition_statuses(settings.kafka, own, own_logs, clock, job=job.job_code)


async def live_positions(connection: Connection, service: str, job: Job) -> dict[TopicPartition, LivePosition]:
    """Where the live consumer of the job stands, by partition; none before its first start."""
    rows = await connection.fetch(_JOB_QUERIES["live_positions"], service, job.code)
    return {
        TopicPartition(r["topic"], r["partition"]): LivePosition(
            r["next_offset"], r["topic_id"], r["owner"], r["moved_at"]
        )
        for r in rows
    }


async def _letters(connection: Connection, service: str) -> dict[str, dict[str, int]]:
    letters: dict[str, dict[str, int]] = {}
    for row in await connection.fetch(_QUERIES["dead_letters_by_state"], service):
        letters.setdefault(row["code"], {})[row["state"]] = row["letters"]
    return letters


async def _outbox(connection: Connection) -> Backlog:
    row = await connection.fetchrow(_JOB_QUERIES["outbox_backlog"])
    assert row is not None
    return Backlog(row["records"], row["oldest_age_seconds"], row["set_aside"])
