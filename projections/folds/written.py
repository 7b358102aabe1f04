"""How far a fold's store has been written: it is written to after the settle, by whichever worker renders."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from projections.visibility import Point, Written
from tidegate_kernel.event import JobId, TopicPartition
from tidegate_kernel.postgres import Pool, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)

# Looks that are remembered while rendering is behind: two minutes of one a second, then every other of them.
_MOST_SEEN = 120


class RenderedUpTo:
    """`WrittenUpTo` of a fold. Keys that could not be rendered hold nothing up, as dead letters do not.

    It remembers positions that it has read, and answers with the newest of which everything folded before them has been
    rendered by now. So call it again and again, and keep one of it.
    """

    def __init__(self, pool: Pool, job: JobId) -> None:
        self._pool, self._job = pool, job
        self._seen: list[tuple[datetime, Mapping[TopicPartition, Point]]] = []
        self._written = Written({})
        self._was_behind = False

    async def __call__(self) -> Written:
        """Returns such positions; none before there are any. Raises Transient."""
        with translated_errors("read rendered positions"):
            async with self._pool.acquire(timeout=10) as connection:
                rows = await connection.fetch(_QUERIES["positions_at"], self._job)
        if not rows:
            return self._written
        # One snapshot: what was folded before these positions has been dirty since before it was taken, or is rendered.
        points = {
            TopicPartition(row["topic"], row["partition"]): Point(row["topic_id"], row["next_offset"]) for row in rows
        }
        self._remember(rows[0]["read_at"], points)
        self._forget_before(rows[0]["waiting_since"], rows[0]["read_at"])
        return self._written

    def _forget_before(self, waiting_since: datetime | None, read_at: datetime) -> None:
        """Everything that changed before `waiting_since` has been rendered."""
        done = [points for at, points in self._seen if waiting_since is None or at < waiting_since]
        self._seen = self._seen[len(done) :]
        is_behind = waiting_since is not None
        # Keys that are rendered again move no position, and have to be made visible too.
        besides = read_at if is_behind or self._was_behind else self._written.besides
        self._was_behind = is_behind
        self._written = Written(done[-1] if done else self._written.points, besides)

    def _remember(self, read_at: datetime, points: Mapping[TopicPartition, Point]) -> None:
        self._seen.append((read_at, points))
        if len(self._seen) > _MOST_SEEN:
            self._seen = self._seen[::2]
