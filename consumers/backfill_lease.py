"""The record of a backfill, and the lease that lets one process at a time work on it. All times are the database's.

To start, to resume and to give up are decided by somebody; renewing, releasing and finishing are the work's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import asyncpg

from consumers.positions import Position, write_positions
from tidegate_kernel.audit import permitted
from tidegate_kernel.errors import AlreadyRunning, LeaseLost
from tidegate_kernel.event import JobId, RunId, TopicPartition
from tidegate_kernel.permissions import Action, Actor, Deed
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
    """The right to work on the backfills of one job, as `holder`, for `actor`."""

    def __init__(self, pool: Pool, *, job: JobId, code: str, holder: str, actor: Actor) -> None:
        self._pool, self._job, self._code = pool, job, code
        self._holder, self._actor = holder, actor

    async def unfinished(self) -> Unfinished | None:
        """The job's backfill under way or interrupted. Raises Transient."""
        with translated_errors("read backfill"):
            row = await self._pool.fetchrow(_QUERIES["unfinished_backfill"], self._job)
        return None if row is None else Unfinished(RunId(row["id"]), row["source"], row["holder"], row["lease_seconds"])

    async def start(
        self, source: str, starts: Mapping[TopicPartition, Position], *, gaps: Mapping[str, int] | None = None
    ) -> RunId:
        """A new backfill and the first position of every partition are written together. `gaps` are for the audit.

        Raises Denied, AlreadyRunning if the job has one that has not ended, Transient.
        """
        deed = start_deed(self._code, source, accepted_gaps=dict(gaps or {}))
        async with permitted(self._pool, self._actor, deed) as connection:
            run = await self._insert(connection, source)
            await write_positions(connection, self._job, run, starts)
        return run

    async def resume(self, unfinished: Unfinished) -> bool:
        """Whether the interrupted backfill is ours now; False if another holder was quicker. Raises Denied, Transient.

        Call when its lease has run out: every try is audited.
        """
        return await self._decide(unfinished, start_deed(self._code, unfinished.source, resumed=unfinished.run))

    async def abandon(self, unfinished: Unfinished) -> bool:
        """Whether the interrupted backfill is given up now; otherwise as `resume`."""
        return await self._decide(
            unfinished, Deed(Action.BACKFILL_ABANDON, self._code, parameters={"run": unfinished.run})
        )

    async def _decide(self, unfinished: Unfinished, deed: Deed) -> bool:
        try:
            async with permitted(self._pool, self._actor, deed) as connection:
                await self._take(connection, unfinished.run)
                if deed.action is Action.BACKFILL_ABANDON:
                    await connection.fetchval(
                        _QUERIES["finish_backfill"], unfinished.run, self._holder, "abandoned", 0, 0
                    )
        except AlreadyRunning:
            return False
        return True

    async def renew(self, run: RunId) -> None:
        """The lease lasts LEASE_SECONDS from now. Raises LeaseLost, Transient."""
        with translated_errors("renew backfill"):
            if await self._pool.fetchval(_QUERIES["renew_backfill"], run, self._holder, LEASE_SECONDS) is None:
                raise LeaseLost(f"backfill {run} has another holder, or has ended")

    async def release(self, run: RunId) -> None:
        """Anybody may resume the backfill at once. Raises Transient."""
        with translated_errors("release backfill"):
            await self._pool.execute(_QUERIES["release_backfill"], run, self._holder)

    async def finish(self, run: RunId, *, records: int, dead_letters: int) -> None:
        """The backfill has come to its end. Raises LeaseLost, Transient."""
        with translated_errors("finish backfill"):
            ended = await self._pool.fetchval(
                _QUERIES["finish_backfill"], run, self._holder, "done", records, dead_letters
            )
        if ended is None:
            raise LeaseLost(f"backfill {run} has another holder, or has ended")

    async def _insert(self, connection: Connection, source: str) -> RunId:
        try:
            run = await connection.fetchval(_QUERIES["start_backfill"], self._job, source, self._holder, LEASE_SECONDS)
        except asyncpg.UniqueViolationError as error:
            raise AlreadyRunning("another backfill of this job has just been started") from error
        return RunId(run)

    async def _take(self, connection: Connection, run: RunId) -> None:
        if await connection.fetchval(_QUERIES["take_backfill"], run, self._holder, LEASE_SECONDS) is None:
            raise AlreadyRunning(f"backfill {run} has another holder by now, or has ended")


def start_deed(code: str, source: str, **parameters: Any) -> Deed:
    """To start or resume a backfill of job `code`."""
    return Deed(Action.BACKFILL_START, code, parameters={"from": source, **parameters})
