"""The record of a backfill, and the lease that lets one process at a time work on it. All times are the database's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import asyncpg

from consumers.positions import Position, write_positions
from tidegate_kernel.errors import AlreadyRunning, LeaseLost
from tidegate_kernel.event import JobId, RunId, TopicPartition
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)

LEASE_SECONDS = 15.0
"""Renewed three times as often; a killed backfill can be resumed this long after its last renewal."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A backfill that was started and has not ended. `lease_seconds` is 0 when nobody works on it."""

    run: RunId
    source: str
    holder: str
    lease_seconds: float


class BackfillLease:
    """The right to work on the backfills of one job, as `holder`."""

    def __init__(self, pool: Pool, *, job: JobId, holder: str) -> None:
        self._pool, self._job, self._holder = pool, job, holder

    async def unfinished(self) -> Unfinished | None:
        """The job's backfill under way or interrupted. Raises Transient."""
        with translated_errors("read backfill"):
            row = await self._pool.fetchrow(_QUERIES["unfinished_backfill"], self._job)
        return None if row is None else Unfinished(RunId(row["id"]), row["source"], row["holder"], row["lease_seconds"])

    async def start(self, source: str, starts: Mapping[TopicPartition, Position]) -> RunId:
        """A new backfill and the first position of every partition are written together.

        Raises AlreadyRunning if the job has one that has not ended, Transient.
        """
        with translated_errors("start backfill"):
            async with self._pool.acquire(timeout=10) as connection, connection.transaction():
                run = await self._insert(connection, source)
                await write_positions(connection, self._job, run, starts)
        return run

    async def resume(self, run: RunId) -> bool:
        """Whether the interrupted backfill is ours now; False while its holder's lease lasts. Raises Transient."""
        with translated_errors("resume backfill"):
            taken = await self._pool.fetchval(_QUERIES["take_backfill"], run, self._holder, LEASE_SECONDS)
        return taken is not None

    async def renew(self, run: RunId) -> None:
        """The lease lasts LEASE_SECONDS from now. Raises LeaseLost, Transient."""
        with translated_errors("renew backfill"):
            if await self._pool.fetchval(_QUERIES["renew_backfill"], run, self._holder, LEASE_SECONDS) is None:
                raise LeaseLost(f"backfill {run} has another holder, or has ended")

    async def release(self, run: RunId) -> None:
        """Anybody may resume the backfill at once. Raises Transient."""
        with translated_errors("release backfill"):
            await self._pool.execute(_QUERIES["release_backfill"], run, self._holder)

    async def finish(self, run: RunId, *, state: str, records: int, dead_letters: int) -> None:
        """The backfill has ended as `state` ('done' or 'abandoned'). Raises LeaseLost, Transient."""
        with translated_errors("finish backfill"):
            ended = await self._pool.fetchval(
                _QUERIES["finish_backfill"], run, self._holder, state, records, dead_letters
            )
        if ended is None:
            raise LeaseLost(f"backfill {run} has another holder, or has ended")

    async def _insert(self, connection: Connection, source: str) -> RunId:
        try:
            run = await connection.fetchval(_QUERIES["start_backfill"], self._job, source, self._holder, LEASE_SECONDS)
        except asyncpg.UniqueViolationError as error:
            raise AlreadyRunning("another backfill of this job has just been started") from error
        return RunId(run)
