"""Takes and keeps ownership of partitions for one run of a job, and tells what its row means."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from uuid import UUID

import structlog

from consumers.batch import Batch
from consumers.newcomers import Newcomers
from consumers.obstacle import Obstacle, ObstacleKind, find_obstacle
from consumers.ownership import Holding
from consumers.positions import Position, Positions
from dlq.corrections import Correction
from tidegate_kernel import logs
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import Fence, JobCode, TopicPartition
from tidegate_kernel.source import LogRange, RecordSource, SourceFailure

_log = structlog.get_logger(__name__)

_RELEASE_SECONDS = 2.0


class Standing(Enum):
    """What the position row says after a settle whose outcome is in doubt."""

    COMMITTED = auto()
    """Mine and at the batch's end: it had committed."""
    MOVED = auto()
    """Mine, elsewhere: resume there."""
    FOREIGN = auto()
    """Another epoch: another owner."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Ranges and topic ids of some partitions at one moment. `job`: whose live consumer asked; None for a backfill."""

    ranges: Mapping[TopicPartition, LogRange]
    topic_ids: Mapping[str, UUID]
    job: JobCode | None = None

    def beginning(self, partition: TopicPartition) -> Position:
        """The log's start, under the topic's id of now."""
        return Position(0, self.ranges[partition].start, self.topic_ids[partition.topic])

    def obstacle(self, partition: TopicPartition, position: Position) -> str | None:
        """Why the partition must not be read from `position`, and what resolves it; None where it may be."""
        found = find_obstacle(partition, position, self.ranges[partition], self.topic_ids[partition.topic])
        return None if found is None else found.told(self.job)


class Steward:
    """Ownership of one run's positions. `job` names the job whose live consumer it serves, for what it tells people.

    `newcomers`: given where a key's order has to outlive a change of the number of partitions.
    """

    def __init__(self, positions: Positions, *, job: JobCode | None = None, newcomers: Newcomers | None = None) -> None:
        self._positions, self._newcomers = positions, newcomers
        self.job = job

    async def survey(self, source: RecordSource, partitions: Sequence[TopicPartition]) -> Survey:
        """What Kafka says of `partitions` now, asked once for all of them. Raises Transient."""
        ranges, ids = await asyncio.gather(
            source.ranges(partitions), topic_ids(source, (partition.topic for partition in partitions))
        )
        return Survey(ranges, ids, self.job)

    async def explain(
        self, source: RecordSource, partition: TopicPartition, position: Position, failure: SourceFailure
    ) -> str:
        """Why `partition` cannot be read on after `failure`, and what resolves it."""
        try:
            survey = await self.survey(source, [partition])
        except Transient:
            return str(failure)
        found = survey.obstacle(partition, position)
        what = f"what stands at offset {position.next_offset} cannot be read: {failure}"
        return Obstacle(ObstacleKind.UNREADABLE, partition, what).told(self.job) if found is None else found

    async def not_yet(
        self, source: RecordSource, partitions: Collection[TopicPartition], survey: Survey
    ) -> Mapping[TopicPartition, str]:
        """Those of `partitions` that must not be taken before others are further, and why. Raises Transient."""
        if self._newcomers is None:
            return {}
        waiting = await self._newcomers.waiting(source, partitions, survey.topic_ids)
        return {partition: waiting[partition] for partition in partitions if partition in waiting}

    async def take(self, partition: TopicPartition, survey: Survey) -> Position:
        """This process owns `partition`. Its first owner ever begins at the log's start.

        Raises Transient if Postgres cannot answer now.
        """
        taken = await self._positions.take_over(partition)
        if taken is None:
            await self._positions.begin({partition: survey.beginning(partition)})
            taken = await self._positions.take_over(partition)
        if taken is None:
            raise Transient(f"{partition}: its position vanished while it was taken over")
        return taken

    async def corrections(self, partition: TopicPartition, position: Position) -> Mapping[int, Correction]:
        """What has been decided about records of the partition, which was just taken. Raises Transient.

        Asked after the takeover: whoever moves a position back, so that records are read anew, has it taken anew.
        """
        return await self._positions.corrections(partition, position)

    async def release(self, held: Collection[Holding]) -> None:
        """Whoever owns them next knows that nothing here ended this process. Not worth waiting for: never raises."""
        attempting = {one.partition for one in held if one.is_attempting}
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._positions.release({one.partition: one.position for one in held}, attempting)
        except (Transient, TimeoutError) as error:
            _log.warning(logs.RELEASE_FAILED, error=str(error))

    async def note_attempt(self, partition: TopicPartition, position: Position) -> int:
        """As `Positions.note_attempt`. Raises StaleOwner, Transient."""
        return await self._positions.note_attempt(partition, position)

    async def note_group(self, partition: TopicPartition, position: Position, *, until: int) -> None:
        """As `Positions.note_group`. Raises StaleOwner, Transient."""
        await self._positions.note_group(partition, position, until=until)

    async def withdraw_attempt(self, partition: TopicPartition, position: Position) -> None:
        """As `Positions.withdraw_attempt`. Raises Transient."""
        await self._positions.withdraw_attempt(partition, position)

    async def pass_hidden(self, partition: TopicPartition, position: Position, *, next_offset: int) -> Position:
        """The position stands behind offsets that hold no record for anybody. Raises StaleOwner, Transient."""
        return await self._positions.move(partition, position, next_offset=next_offset)

    async def epochs(self) -> Mapping[TopicPartition, int]:
        """The epoch under which each position of the run is now. Raises Transient."""
        return {partition: position.epoch for partition, position in (await self._positions.all()).items()}

    async def standing(
        self, partition: TopicPartition, believed: Position, batch: Batch
    ) -> tuple[Standing, Position | None]:
        """Reads the row and says what it means for `batch`. Raises Transient."""
        row = await self._positions.read(partition)
        if row is None or row.epoch != believed.epoch:
            return Standing.FOREIGN, row
        if row.next_offset == batch.next_offset:
            return Standing.COMMITTED, row
        return Standing.MOVED, row

    def fence(self, partition: TopicPartition, position: Position) -> Fence:
        """What a settle of `partition` at `position` has to name."""
        return self._positions.fence(partition, position)


async def topic_ids(source: RecordSource, topics: Iterable[str]) -> dict[str, UUID]:
    """Kafka's id of each topic now, all asked at once. Raises SourceFailure."""
    distinct = sorted(set(topics))
    return dict(zip(distinct, await asyncio.gather(*map(source.topic_id, distinct)), strict=True))
