"""How far each partition of a job is behind, asked of Kafka and Postgres: no worker needs to be alive for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from consumers.obstacle import Obstacle, ObstacleKind, find_obstacle
from projections.freshness import Freshness
from tidegate.console.views import View
from tidegate_kernel.clock import Clock
from tidegate_kernel.event import JobCode, TopicPartition
from tidegate_kernel.kafka import open_reader
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import LogRange, RecordSource, SourceFailure

_FETCH_SECONDS = 0.5
# For all partitions together: a status that takes longer is none.
_READ_SECONDS = 10.0
# Instead of a timestamp: only control records stand before the end.
_NOTHING_LEFT = -1


class LivePosition(NamedTuple):
    """A row of the live positions."""

    next_offset: int
    topic_id: UUID
    owner: str | None
    moved_at: datetime


class Log(NamedTuple):
    """A partition as Kafka has it now."""

    range: LogRange
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition of a job. `position` is None before the job's first start.

    `records_behind` counts offsets, so control records and what compaction removed may be among them; it is 0 as soon
    as no record is left to read. `seconds_behind` is the age of the first record not handled; 0.0 when caught up; None
    where it cannot be read. `obstacle` says why nothing moves. Of a job with readers `view` is what they see,
    `reader_seconds` the age of the first record that they do not see, and `state` what to make of that.
    """

    topic: str
    partition: int
    position: int | None
    end: int | None
    records_behind: int
    seconds_behind: float | None
    owner: str | None = None
    moved_at: datetime | None = None
    obstacle: str | None = None
    view: View | None = None
    reader_seconds: float | None = None
    state: Freshness | None = None

    @property
    def age(self) -> float | None:
        """How far whoever relies on the job is behind: its readers, where it has any; None if it is unknown."""
        return self.seconds_behind if self.view is None else self.reader_seconds


async def read_logs(reader: RecordSource, topics: Iterable[str]) -> dict[TopicPartition, Log]:
    """Returns every partition that the topics have now; none for a topic that does not exist. Raises SourceFailure."""
    logs: dict[TopicPartition, Log] = {}
    for topic in sorted(topics):
        partitions = await reader.partitions_of(topic)
        if partitions:
            topic_id = await reader.topic_id(topic)
            ranges = await reader.ranges(partitions)
            logs |= {partition: Log(held, topic_id) for partition, held in ranges.items()}
    return logs


async def partition_statuses(
    settings: KafkaSettings,
    positions: Mapping[TopicPartition, LivePosition],
    logs: Mapping[TopicPartition, Log],
    clock: Clock,
    *,
    job: JobCode,
    views: Mapping[TopicPartition, View] = MappingProxyType({}),
) -> list[PartitionStatus]:
    """Returns the status of every partition that has a position or a log, in order; `views` are what readers see."""
    obstacles = {p: _obstacle(p, positions[p], logs.get(p)) for p in positions}
    unhandled = {
        p: first
        for p, log in logs.items()
        if (first := _first_unhandled(positions.get(p), log)) < log.range.end and not _is_other_log(obstacles.get(p))
    }
    written = await _written_at(settings, {p: (first, logs[p].range.end) for p, first in unhandled.items()}, clock)
    unseen = await _unseen_since(settings, positions, logs, views, clock)
    statuses = []
    for partition in sorted(positions.keys() | logs.keys()):
        live, log, obstacle = positions.get(partition), logs.get(partition), obstacles.get(partition)
        is_behind = partition in unhandled and written.get(partition) != _NOTHING_LEFT
        seconds = _age(written.get(partition), clock) if is_behind else 0.0
        statuses.append(
            PartitionStatus(
                *partition,
                position=None if live is None else live.next_offset,
                end=None if log is None else log.range.end,
                records_behind=log.range.end - unhandled[partition] if is_behind and log is not None else 0,
                seconds_behind=seconds,
                owner=None if live is None else live.owner,
                moved_at=None if live is None else live.moved_at,
                obstacle=None if obstacle is None else obstacle.told(job),
                view=views.get(partition),
                reader_seconds=_age(unseen[partition], clock) if partition in unseen else seconds,
            )
        )
    return statuses


async def _unseen_since(
    settings: KafkaSettings,
    positions: Mapping[TopicPartition, LivePosition],
    logs: Mapping[TopicPartition, Log],
    views: Mapping[TopicPartition, View],
    clock: Clock,
) -> dict[TopicPartition, int | None]:
    """When the first record was written that was settled and that readers do not see; nothing where there is none."""
    wanted = {
        partition: (first, positions[partition].next_offset)
        for partition, view in views.items()
        if partition in logs
        and partition in positions
        and view.visible is not None
        # What retention has removed meanwhile, no reader waits for.
        and (first := max(view.visible, logs[partition].range.start)) < positions[partition].next_offset
    }
    written = await _written_at(settings, wanted, clock)
    return {place: written.get(place) for place in wanted if written.get(place) != _NOTHING_LEFT}


def _first_unhandled(live: LivePosition | None, log: Log) -> int:
    """What retention removed is not waited for any more: it is the obstacle's matter, not the lag's."""
    return log.range.start if live is None else max(log.range.start, live.next_offset)


def _obstacle(partition: TopicPartition, live: LivePosition, log: Log | None) -> Obstacle | None:
    if log is None:
        return Obstacle(ObstacleKind.MISSING, partition, "the topic or partition does not exist")
    return find_obstacle(partition, live, log.range, log.topic_id)


def _is_other_log(obstacle: Obstacle | None) -> bool:
    return obstacle is not None and obstacle.kind in (ObstacleKind.RECREATED, ObstacleKind.BEYOND_END)


async def _written_at(
    settings: KafkaSettings, wanted: Mapping[TopicPartition, tuple[int, int]], clock: Clock
) -> dict[TopicPartition, int]:
    """Timestamps (ms) of the first records at or after the offsets wanted, or _NOTHING_LEFT before the ends wanted."""
    if not wanted:
        return {}
    found: dict[TopicPartition, int] = {}
    give_up_at = clock.monotonic() + _READ_SECONDS
    async with open_reader(settings, wanted) as reader:
        for partition, (first, _) in wanted.items():
            reader.seek(partition, first)
        for partition, (_, end) in wanted.items():
            while partition not in found and clock.monotonic() < give_up_at:
                timestamp = await _first_timestamp(reader, partition, end)
                if timestamp is not None:
                    found[partition] = timestamp
    return found


async def _first_timestamp(reader: RecordSource, partition: TopicPartition, end: int) -> int | None:
    try:
        records = await reader.fetch([partition], max_records=1, timeout=_FETCH_SECONDS)
    except SourceFailure:
        return 0  # the client cannot read what stands there; its age stays unknown
    if records.get(partition):
        first = records[partition][0]
        return first.timestamp if first.offset < end else _NOTHING_LEFT
    drained = reader.drained_to(partition)
    return _NOTHING_LEFT if drained is not None and drained >= end else None


def _age(timestamp: int | None, clock: Clock) -> float | None:
    if timestamp is None or timestamp <= 0:
        return None
    return max(0.0, clock.now().timestamp() - timestamp / 1000)
