"""Up to where readers of a store see what a job has settled: the rows of `tidegate.visible`, and who may move them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeAlias
from uuid import UUID

from tidegate_kernel.errors import LeaseLost
from tidegate_kernel.event import JobId, TopicPartition
from tidegate_kernel.lease import Token
from tidegate_kernel.postgres import Pool, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)


class Point(NamedTuple):
    """An offset (exclusive) of the topic that has this id: everything before it is meant."""

    topic_id: UUID
    next_offset: int


@dataclass(frozen=True, slots=True)
class Written:
    """What a store was given before it was asked about: refreshed now, readers see all of it.

    `besides` changes whenever something was written that moves no point: a backfill.
    """

    points: Mapping[TopicPartition, Point]
    besides: datetime | None = None


WrittenUpTo: TypeAlias = Callable[[], Awaitable[Written]]
"""What the store has been given by now. Raises Transient.

The live positions for a job that applies before it settles. For one whose store is written to after the settle, the
positions of a moment before which everything settled had been written.
"""


class Shown(NamedTuple):
    """Up to where readers see a partition; both ages are in seconds, by the database's clock.

    `rewound_from`: it stood there before its position was moved back, and is not there again. `trouble`: why nothing
    could be made visible for `trouble_seconds`.
    """

    point: Point
    seen_seconds: float
    rewound_from: int | None = None
    trouble: str | None = None
    trouble_seconds: float = 0.0

    def sees(self, topic_id: UUID) -> int:
        """The visible offset in the topic with this id: nothing of one that was made anew is visible yet."""
        return self.point.next_offset if self.point.topic_id == topic_id else 0


class Visibility:
    """The rows of one job."""

    def __init__(self, pool: Pool, job: JobId) -> None:
        self._pool, self._job = pool, job

    async def settled(self) -> Written:
        """The positions of the live consumer: what has settled had been applied before. Raises Transient."""
        with translated_errors("read positions"):
            async with self._pool.acquire(timeout=10) as connection:
                rows = await connection.fetch(_QUERIES["settled_positions"], self._job)
        points = {
            TopicPartition(row["topic"], row["partition"]): Point(row["topic_id"], row["next_offset"]) for row in rows
        }
        return Written(points, rows[0]["backfilled_at"] if rows else None)

    async def shown(self) -> dict[TopicPartition, Shown]:
        """Up to where readers see each partition. Raises Transient."""
        with translated_errors("read what is visible"):
            async with self._pool.acquire(timeout=10) as connection:
                rows = await connection.fetch(_QUERIES["visible_offsets"], self._job)
        return {
            TopicPartition(row["topic"], row["partition"]): Shown(
                Point(row["topic_id"], row["next_offset"]),
                row["seen_seconds"],
                row["rewound_from"],
                row["trouble"],
                row["trouble_seconds"] or 0.0,
            )
            for row in rows
        }

    async def show(self, lease: str, token: Token, points: Mapping[TopicPartition, Point]) -> None:
        """Readers see `points` from now on: call after a refresh that began when all before them had been written.

        Raises LeaseLost, Transient.
        """
        items = sorted(points.items())
        with translated_errors("tell what is visible"):
            async with self._pool.acquire(timeout=10) as connection:
                rows = await connection.fetch(
                    _QUERIES["show_visible"],
                    lease,
                    token,
                    self._job,
                    [partition.topic for partition, _ in items],
                    [partition.partition for partition, _ in items],
                    [point.topic_id for _, point in items],
                    [point.next_offset for _, point in items],
                )
        if items and not rows:
            raise LeaseLost(f"lease {lease!r} has another holder, or has expired")

    async def note_trouble(self, lease: str, token: Token, why: str) -> None:
        """Nothing can be made visible; since when stays as it was first noted. Raises Transient."""
        await self._execute(_QUERIES["note_unseen"], lease, token, self._job, why)

    async def clear_trouble(self, lease: str, token: Token) -> None:
        """It can again. Raises Transient."""
        await self._execute(_QUERIES["clear_unseen"], lease, token, self._job)

    async def _execute(self, query: str, *arguments: object) -> None:
        with translated_errors("tell what is visible"):
            async with self._pool.acquire(timeout=10) as connection:
                await connection.execute(query, *arguments)
