"""Positions: the next offset of a job in a partition, and who may move it.

The row decides where we resume; what Kafka's group knows is a hint. Each takeover raises the epoch, and every later
statement of an owner names its epoch and the offset it expects, so that a stale owner changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

import asyncpg

from dlq.corrections import Correction, corrections_from
from tidegate_kernel.errors import StaleOwner
from tidegate_kernel.event import Fence, JobId, RunId, TopicPartition
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)

# A live owner's transaction takes milliseconds; one that holds its position this long belongs to a paused process.
_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Position:
    """Where a job stands in a partition. `end_offset` is set for backfills: the first offset they leave alone.

    `is_suspect`: its last owners ended there, one after the other, without a release and without having moved it;
    among the records before `grouped_until`, if the last of them had begun these together. `range_end`: the records
    before it were begun as one, and nobody knows how far they came: they are applied again, all of them at once.
    """

    epoch: int
    next_offset: int
    topic_id: UUID
    end_offset: int | None = None
    is_suspect: bool = False
    grouped_until: int | None = None
    range_end: int | None = None


class Positions:
    """The positions of one run of one job."""

    def __init__(self, pool: Pool, *, job: JobId, run: RunId, owner: str) -> None:
        self._pool, self._job, self._run, self._owner = pool, job, run, owner
        # The owner's name alone does not tell: a pod that is started again has the name and the pid of the dead one.
        self._epochs: dict[TopicPartition, int] = {}

    async def begin(self, starts: Mapping[TopicPartition, Position]) -> None:
        """Writes the given starts where no row exists. Raises Transient."""
        with translated_errors("begin positions"):
            async with self._pool.acquire(timeout=10) as connection:
                await write_positions(connection, self._job, self._run, starts)

    async def begin_newcomers(
        self,
        starts: Mapping[TopicPartition, Position],
        *,
        behind: Mapping[TopicPartition, int],
    ) -> None:
        """As `begin`, for partitions of one topic; none is to be read before the positions of `behind` reach there."""
        items, older = sorted(starts.items()), sorted(behind.items())
        with translated_errors("begin positions"):
            async with self._pool.acquire(timeout=10) as connection:
                await connection.execute(
                    _QUERIES["begin_newcomers"],
                    self._job,
                    self._run,
                    items[0][0].topic,
                    items[0][1].topic_id,
                    [partition.partition for partition, _ in items],
                    [start.next_offset for _, start in items],
                    [partition.partition for partition, _ in older],
                    [end for _, end in older],
                )

    async def waiting_newcomers(self) -> Mapping[TopicPartition, str]:
        """The partitions that must not be read yet, and what each waits for first. Raises Transient."""
        with translated_errors("read positions"):
            async with self._pool.acquire(timeout=10) as connection:
                rows = await connection.fetch(_QUERIES["waiting_newcomers"], self._job, self._run)
        return {
            TopicPartition(row["topic"], row["partition"]): (
                f"it was added to the topic: it begins once partition {row['older']}, now at {row['next_offset']}, has "
                f"reached {row['until']}, as earlier records of its keys stand there"
            )
            for row in rows
        }

    async def take_over(self, partition: TopicPartition) -> Position | None:
        """Makes this process the owner; None if the position was never begun. Raises Transient.

        Waits for the owner's open transaction, but not for ever: whoever blocks for longer than a live owner could is
        ended.
        """
        with translated_errors(f"take over {partition}"):
            async with self._pool.acquire(timeout=10) as connection, connection.transaction():
                pid = await connection.fetchval("SELECT pg_backend_pid()")
                asked = (self._job, self._run, *partition, self._owner, self._epochs.get(partition))
                update = asyncio.ensure_future(connection.fetchrow(_QUERIES["take_over"], *asked))
                row = await self._impatiently(update, pid)
        if row is None:
            return None
        self._epochs[partition] = row["epoch"]
        return replace(_position(row), is_suspect=row["is_suspect"], grouped_until=row["grouped_until"])

    async def release(self, held: Mapping[TopicPartition, Position], attempting: Collection[TopicPartition]) -> None:
        """The owned positions are given up alive. Those of another owner stay as they are. Raises Transient."""
        items = sorted(held.items())
        with translated_errors("release positions"):
            async with self._pool.acquire(timeout=10) as connection:
                await connection.execute(
                    _QUERIES["release_positions"],
                    self._job,
                    self._run,
                    [partition.topic for partition, _ in items],
                    [partition.partition for partition, _ in items],
                    [position.epoch for _, position in items],
                    [partition in attempting for partition, _ in items],
                )

    async def note_attempt(self, partition: TopicPartition, position: Position) -> int:
        """The record at the owned position is about to be handled alone; returns how often that was begun in a row.

        Raises StaleOwner, Transient.
        """
        return await self._begin(_QUERIES["note_attempt"], partition, position)

    async def note_group(self, partition: TopicPartition, position: Position, *, until: int) -> None:
        """The records from the owned position up to `until` are about to be handled together, nothing beside them.

        Raises StaleOwner, Transient.
        """
        await self._begin(_QUERIES["note_group"], partition, position, until)

    async def withdraw_attempt(self, partition: TopicPartition, position: Position) -> None:
        """The attempt noted last has ended and this process goes on: it does not count. Raises Transient."""
        await self._attempt(_QUERIES["withdraw_attempt"], partition, position)

    async def _begin(self, query: str, partition: TopicPartition, position: Position, *more: int) -> int:
        count = await self._attempt(query, partition, position, *more)
        if count is None:
            raise StaleOwner(f"{partition} left epoch {position.epoch}")
        return count

    async def _attempt(self, query: str, partition: TopicPartition, position: Position, *more: int) -> int | None:
        with translated_errors(f"attempt at {partition}"):
            async with self._pool.acquire(timeout=10) as connection:
                attempts: int | None = await connection.fetchval(query, *self.fence(partition, position), *more)
        return attempts

    async def _impatiently(self, update: asyncio.Future[asyncpg.Record | None], pid: int) -> asyncpg.Record | None:
        try:
            while not (await asyncio.wait([update], timeout=_PATIENCE_SECONDS))[0]:
                async with self._pool.acquire(timeout=10) as other:
                    await other.execute(_QUERIES["blocking_backends"], pid)
            return update.result()
        finally:
            # No effect once done; else the connection stays busy behind a cancelled takeover and refuses its rollback.
            update.cancel()
            await asyncio.wait([update])

    async def all(self) -> dict[TopicPartition, Position]:
        """Every position of the run. Raises Transient."""
        with translated_errors("read positions"):
            async with self._pool.acquire(timeout=10) as connection:
                rows = await connection.fetch(_QUERIES["read_positions"], self._job, self._run)
        return {TopicPartition(row["topic"], row["partition"]): _position(row) for row in rows}

    async def move(self, partition: TopicPartition, position: Position, *, next_offset: int) -> Position:
        """The owned position stands at `next_offset`; nothing lay in between. Raises StaleOwner, Transient."""
        with translated_errors(f"move position of {partition}"):
            async with self._pool.acquire(timeout=10) as connection:
                await advance(connection, self.fence(partition, position), next_offset=next_offset)
        return replace(position, next_offset=next_offset, range_end=None)

    async def corrections(self, partition: TopicPartition, position: Position) -> Mapping[int, Correction]:
        """Returns what has been decided about records from the position on, by offset. Raises Transient."""
        with translated_errors(f"read corrections of {partition}"):
            async with self._pool.acquire(timeout=10) as connection:
                topic, number = partition
                return await corrections_from(
                    connection, self._job, topic, position.topic_id, number, position.next_offset
                )

    async def read(self, partition: TopicPartition) -> Position | None:
        """The row as it stands, whoever owns it. Raises Transient."""
        with translated_errors(f"read position of {partition}"):
            async with self._pool.acquire(timeout=10) as connection:
                row = await connection.fetchrow(_QUERIES["read_position"], self._job, self._run, *partition)
        return None if row is None else _position(row)

    def fence(self, partition: TopicPartition, position: Position) -> Fence:
        """What a settle of `partition` at `position` has to name."""
        return Fence(self._job, self._run, *partition, position.epoch, position.next_offset)


def _position(row: asyncpg.Record) -> Position:
    return Position(row["epoch"], row["next_offset"], row["topic_id"], row["end_offset"], range_end=row["range_end"])


async def write_positions(
    connection: Connection, job: JobId, run: RunId, starts: Mapping[TopicPartition, Position]
) -> None:
    """The given first positions stand, where no row existed."""
    items = sorted(starts.items())
    await connection.execute(
        _QUERIES["begin_positions"],
        job,
        run,
        [partition.topic for partition, _ in items],
        [partition.partition for partition, _ in items],
        [start.next_offset for _, start in items],
        [start.end_offset for _, start in items],
        [start.topic_id for _, start in items],
    )


async def advance(connection: Connection, fence: Fence, *, next_offset: int) -> None:
    """In the caller's transaction: the fenced position stands at `next_offset`. Raises StaleOwner."""
    if await connection.fetchval(_QUERIES["advance"], *fence, next_offset) is None:
        raise StaleOwner(f"{fence.topic}:{fence.partition} left epoch {fence.epoch} at offset {fence.next_offset}")
