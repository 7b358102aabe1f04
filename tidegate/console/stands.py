"""Where a job stands in each of its partitions, beside what the logs hold: read, never changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

import asyncpg

from consumers.obstacle import Obstacle, ObstacleKind
from tidegate.app import App
from tidegate.console.fate import SkippedRange
from tidegate.console.lag import Log, read_logs
from tidegate.console.moves import Stand
from tidegate.jobs.declaration import Job
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import open_reader
from tidegate_kernel.postgres import Connection, connect, translated_errors
from tidegate_kernel.queries import load_queries
from tidegate_kernel.settings import Settings

_QUERIES = load_queries("tidegate.console")
_JOB_QUERIES = load_queries("tidegate.jobs")


class LivePlace(NamedTuple):
    """A live position, as far as it can be moved."""

    next_offset: int
    topic_id: UUID


class PartitionOffsets(NamedTuple):
    """A partition of a job. `position` is None where the job has not begun; the log's ends where there is no log."""

    partition: TopicPartition
    position: int | None
    log_start: int | None
    log_end: int | None
    obstacle: Obstacle | None
    skipped: Sequence[SkippedRange]


async def show_offsets(app: App, settings: Settings, job: Job) -> list[PartitionOffsets]:
    """Returns every partition that the job has or could have a position in. Raises Misconfigured if it cannot ask."""
    try:
        async with connect(settings.postgres_dsn.get_secret_value()) as connection:
            with translated_errors("read offsets"):
                positions = await live_places(connection, app, job)
                ranges = await connection.fetch(_QUERIES["skipped_ranges"], app.service, job.code)
        logs = await logs_of(settings, job)
    except Transient as error:
        raise Misconfigured(f"the offsets cannot be read: {error}") from error
    own = sorted(positions.keys() | logs.keys())
    return [_shown(each, positions.get(each), logs.get(each), ranges) for each in own]


async def logs_of(settings: Settings, job: Job) -> dict[TopicPartition, Log]:
    """Every partition of the job's topics that Kafka has now. Raises SourceFailure."""
    async with open_reader(settings.kafka) as reader:
        return await read_logs(reader, [topic.name for topic in job.topics])


async def live_places(connection: Connection, app: App, job: Job) -> dict[TopicPartition, LivePlace]:
    """The live positions in the topics that the job reads today."""
    read = {topic.name for topic in job.topics}
    rows = await connection.fetch(_JOB_QUERIES["live_positions"], app.service, job.code)
    return {
        TopicPartition(row["topic"], row["partition"]): LivePlace(row["next_offset"], row["topic_id"])
        for row in rows
        if row["topic"] in read
    }


def stands_of(positions: Mapping[TopicPartition, LivePlace], logs: Mapping[TopicPartition, Log]) -> list[Stand]:
    """Positions beside their logs, in order. One whose topic is deleted has no log: it cannot be moved anywhere."""
    return [
        Stand(partition, *positions[partition], logs[partition].range, logs[partition].topic_id)
        for partition in sorted(positions)
        if partition in logs
    ]


def _shown(
    partition: TopicPartition, position: LivePlace | None, log: Log | None, ranges: Sequence[asyncpg.Record]
) -> PartitionOffsets:
    here = [row for row in ranges if (row["topic"], row["partition"]) == partition]
    obstacle = None
    if log is None:
        obstacle = Obstacle(ObstacleKind.MISSING, partition, "the topic or partition does not exist")
    elif position is not None:
        obstacle = Stand(partition, *position, log.range, log.topic_id).obstacle
    return PartitionOffsets(
        partition,
        None if position is None else position.next_offset,
        None if log is None else log.range.start,
        None if log is None else log.range.end,
        obstacle,
        [SkippedRange(*(row[name] for name in SkippedRange._fields)) for row in here],
    )
