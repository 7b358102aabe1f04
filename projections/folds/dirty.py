"""Keys whose state the sink may not show yet: who renders them, what came of it, and what rests with an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from tidegate_kernel.event import JobId
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)

# A renderer that died holds its keys for so long. Two at one key do no harm, so it is short: the later revision wins.
_LEASE_SECONDS = 10.0
_MOST_COUNTED = 100_000


class Taken(NamedTuple):
    """A key to be rendered: its committed state as of `read_at`, None where it was deleted."""

    key: str
    state: str | None
    revision: int
    read_at: datetime


class Rest(NamedTuple):
    """Why a key's revision cannot be rendered. `error` never holds what the state says."""

    key: str
    revision: int
    error: str


class FailedKey(NamedTuple):
    """A key that rests because it could not be rendered."""

    key: str
    revision: int
    error: str
    failures: int
    failed_at: datetime


@dataclass(frozen=True, slots=True)
class Rendering:
    """What a sink does not show yet: keys that wait, for how long the first does, and keys that failed.

    Both are counted up to 100,000.
    """

    waiting: int
    failed: int
    waiting_seconds: float


class DirtyKeys:
    """The dirty keys of one job. Any number of processes take from them side by side; each call is one statement."""

    def __init__(self, pool: Pool, job: JobId) -> None:
        self._pool, self._job = pool, job

    async def take(self, most: int) -> Sequence[Taken]:
        """Returns keys that nobody else renders now, with their states; those that have waited longest. Raises
        Transient."""
        with translated_errors("take dirty keys"):
            async with self._pool.acquire(timeout=10) as connection:
                rows = await connection.fetch(_QUERIES["take_dirty"], self._job, most, _LEASE_SECONDS)
                if not rows:
                    return []
                # Read after they were taken: newer than what made them dirty does no harm, older would.
                found = await connection.fetch(_QUERIES["states"], self._job, [row["key"] for row in rows])
        return [Taken(row["key"], row["state"], row["revision"], row["read_at"]) for row in found]

    async def clear(self, rendered: Sequence[Taken]) -> int:
        """Those that have not changed since they were read are clean; returns how many. Raises Transient."""
        if not rendered:
            return 0
        keys, revisions = [taken.key for taken in rendered], [taken.revision for taken in rendered]
        with translated_errors("clear dirty keys"):
            async with self._pool.acquire(timeout=10) as connection:
                rows = await connection.fetch(_QUERIES["clear_dirty"], self._job, keys, revisions)
                clean = {row["key"] for row in rows}
                if left := [key for key in keys if key not in clean]:
                    read_at = rendered[0].read_at
                    await connection.execute(_QUERIES["rendered_meanwhile"], self._job, left, read_at)
        return len(clean)

    async def give_back(self, keys: Sequence[str]) -> None:
        """Others may take the keys at once. Raises Transient."""
        with translated_errors("give back dirty keys"):
            async with self._pool.acquire(timeout=10) as connection:
                await connection.execute(_QUERIES["give_back"], self._job, keys)

    async def rest(self, failed: Sequence[Rest], *, release: str) -> int:
        """The keys rest until something changes, unless they have changed already; returns how many do. Raises
        Transient."""
        if not failed:
            return 0
        keys, revisions, errors = ([each[field] for each in failed] for field in range(3))
        with translated_errors("keep rendering errors"):
            async with self._pool.acquire(timeout=10) as connection:
                rows = await connection.fetch(_QUERIES["fail_dirty"], self._job, keys, revisions, errors, release)
        return len(rows)

    async def retry(self, *, release: str, most: int) -> int:
        """Of the keys that rest, at most so many are tried again if `release` never tried them. Raises Transient."""
        with translated_errors("retry dirty keys"):
            async with self._pool.acquire(timeout=10) as connection:
                count: int = await connection.fetchval(_QUERIES["retry_failed"], self._job, release, most)
        return count

    async def state(self) -> Rendering:
        """Returns how far rendering is behind. Raises Transient."""
        with translated_errors("read dirty keys"):
            async with self._pool.acquire(timeout=10) as connection:
                return await rendering_of(connection, self._job)


async def rendering_of(connection: Connection, job: JobId) -> Rendering:
    """Returns how far the rendering of a fold is behind."""
    row = await connection.fetchrow(_QUERIES["rendering_state"], job, _MOST_COUNTED)
    assert row is not None
    since: datetime | None = row["waiting_since"]
    waits = 0.0 if since is None else max(0.0, (row["read_at"] - since).total_seconds())
    return Rendering(row["waiting"], row["failed"], waits)


async def failed_keys(connection: Connection, job: JobId, *, most: int) -> Sequence[FailedKey]:
    """Returns keys that could not be rendered, the latest failures first."""
    return [FailedKey(**row) for row in await connection.fetch(_QUERIES["failed_keys"], job, most)]


async def count_states(connection: Connection, job: JobId) -> int:
    """Returns how many keys of a job have something to render."""
    count: int = await connection.fetchval(_QUERIES["count_states"], job)
    return count


async def mark_dirty(connection: Connection, job: JobId, *, after: str, most: int) -> tuple[int, str | None]:
    """In the caller's transaction: the next keys behind `after` are rendered again. Returns how many, and the last."""
    row = await connection.fetchrow(_QUERIES["mark_dirty"], job, after, most)
    assert row is not None
    return row["keys"], row["final"]


async def mark_failed_dirty(connection: Connection, job: JobId, *, most: int) -> int:
    """In the caller's transaction: keys that could not be rendered are tried again. Returns how many."""
    count: int = await connection.fetchval(_QUERIES["mark_failed_dirty"], job, most)
    return count
