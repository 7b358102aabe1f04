"""Upkeep of the inbox: days ahead, days past the horizon, and the parts that are never dropped.

Every worker sees that the coming days have their partitions (`watch`); the rest is a round, which one of them at a time
is told to make by the clock. The inbox is one for all services of a database: so is the lease of its rounds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import date

import structlog

from inbox.days import attach_days, days_past_horizon, drop_day, empty_day
from inbox.sweep import PARTS, Part, sweep
from tidegate_kernel import logs
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.queries import load_queries
from tidegate_kernel.rounds import Tell, tell_nobody

_log = structlog.get_logger(__name__)
_QUERIES = load_queries(__package__)

_EVERY_SECONDS = 3600.0
_AGAIN_SECONDS = 30.0
# A round that another worker ended this long ago need not be repeated.
_FRESH_SECONDS = 3000.0
# Longer than any single step but the search of a very large day, which excludes others by itself.
_LEASE_SECONDS = 120.0
# A sweep yields to claims: it works a fifth of the time, and leaves the rest of a large part to the next round.
_REST = 4.0
_SWEEP_SECONDS = 2400.0


async def upkeep_trouble(connection: Connection) -> str | None:
    """Returns why the inbox is not kept as it should be, in words for an operator; None if it is, or never was yet."""
    state = await connection.fetchrow(_QUERIES["upkeep_state"])
    if state is not None and state["is_failing"]:
        return f"has been failing since {state['failing_since']:%Y-%m-%d %H:%M} UTC: {state['error']}"
    if state is not None and state["is_stale"]:
        return f"no worker has come to the end of it since {state['succeeded_at']:%Y-%m-%d %H:%M} UTC"
    return None


class InboxUpkeep:
    """Rounds of upkeep of one worker, which is known as `holder`."""

    def __init__(self, pool: Pool, clock: Clock, *, metrics: Metrics, holder: str) -> None:
        self._pool, self._clock, self._metrics, self._holder = pool, clock, metrics, holder
        # Days that a job still needed when they were last looked through: once a day is enough.
        self._needed: dict[date, date] = {}

    async def begin(self) -> None:
        """Before the first claim: the days around today have their partitions, or it is logged why not."""
        try:
            await self._attach()
        except (Transient, Misconfigured) as error:
            _log.warning(logs.UPKEEP_FAILED, error=str(error))

    async def watch(self) -> None:
        """The coming days have their partitions, and this process's numbers are told. Does not end."""
        while True:
            try:
                await self._attach()
                await self._measure()
                rest = _EVERY_SECONDS
            except (Transient, Misconfigured) as error:
                _log.warning(logs.UPKEEP_FAILED, error=str(error))
                rest = _AGAIN_SECONDS
            await self._clock.sleep(rest)

    async def round(self, tell: Tell = tell_nobody) -> None:
        """One round, unless another worker makes it or has just made it.

        Raises Transient, Misconfigured for what stood in its way, logged and noted for the status by then.
        """
        try:
            is_ours = await self._take()
            await self._attach()
            if is_ours:
                await self._clean(tell)
                await self._end()
            await self._measure()
        except (Transient, Misconfigured) as error:
            _log.warning(logs.UPKEEP_FAILED, error=str(error))
            await self._end(str(error))
            raise

    async def _take(self) -> bool:
        async with self._connection() as connection:
            return bool(
                await connection.fetchval(_QUERIES["take_upkeep"], self._holder, _LEASE_SECONDS, _FRESH_SECONDS)
            )

    async def _end(self, obstacle: str | None = None) -> None:
        """Changes nothing where another worker keeps the inbox."""
        try:
            async with self._connection() as connection:
                await connection.execute(_QUERIES["end_round"], self._holder, obstacle)
        except Transient:
            return  # the lease ends by itself

    async def _attach(self) -> None:
        async with self._connection() as connection:
            attached, left = await attach_days(connection)
        if attached:
            self._metrics.inbox_days.labels("attached").inc(len(attached))
            _log.info(logs.INBOX_DAYS_ATTACHED, days=[str(day) for day in sorted(attached)])
        if left:
            raise Transient(
                f"{len(left)} days, {left[0]} first, got no partition: claims in the default one are open, "
                "or it is too large to be searched in a second; they go there meanwhile, which only costs time"
            )

    async def _clean(self, tell: Tell) -> None:
        began = self._clock.monotonic()
        async with self._connection() as connection:
            days = await days_past_horizon(connection)
        await self._empty(days)
        await self._drop(days)
        for part in PARTS:
            await self._sweep(part, tell)
        self._metrics.upkeep_seconds.set(self._clock.monotonic() - began)

    async def _empty(self, days: Sequence[date]) -> None:
        today = self._clock.now().date()
        self._needed = {day: asked for day, asked in self._needed.items() if day in days and asked == today}
        for day in days:
            if day in self._needed:
                continue
            async with self._connection() as connection:
                is_empty = await empty_day(connection, day)
            if is_empty:
                self._metrics.inbox_days.labels("emptied").inc()
                _log.info(logs.INBOX_DAY_EMPTIED, day=str(day))
            else:
                self._needed[day] = today

    async def _drop(self, days: Sequence[date]) -> None:
        for day in days:
            try:
                async with self._connection() as connection:
                    is_gone = await drop_day(connection, day)
            except Transient:
                return  # some handler holds claims open; an empty partition can wait for ever
            if is_gone:
                self._metrics.inbox_days.labels("dropped").inc()

    async def _sweep(self, part: Part, tell: Tell) -> None:
        began = renewed = self._clock.monotonic()
        removed, is_finished = 0, False
        while not is_finished and (now := self._clock.monotonic()) - began < _SWEEP_SECONDS:
            if now - renewed > _LEASE_SECONDS / 4:
                if not await self._take():
                    break
                renewed = now
            async with self._connection() as connection:
                count, is_finished = await sweep(connection, part)
            removed += count
            await tell(count)
            await self._clock.sleep(_REST * (self._clock.monotonic() - now))
        self._metrics.inbox_removed.labels(part).inc(removed)
        if removed:
            _log.info(logs.INBOX_SWEPT, part=part, removed=removed, is_finished=is_finished)

    async def _measure(self) -> None:
        async with self._connection() as connection:
            state = await connection.fetchrow(_QUERIES["upkeep_state"])
            sizes = await connection.fetch(_QUERIES["inbox_size"])
        if state is not None and state["succeeded_at"] is not None:
            self._metrics.upkeep_succeeded.set(state["succeeded_at"].timestamp())
        for row in sizes:
            self._metrics.inbox_partitions.labels(row["part"]).set(row["partitions"])
            self._metrics.inbox_claims.labels(row["part"]).set(row["live"])
            self._metrics.inbox_dead_rows.labels(row["part"]).set(row["dead"])
            if row["oldest_days"] is not None:
                self._metrics.inbox_oldest.labels(row["part"]).set(row["oldest_days"])

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        with translated_errors("inbox upkeep"):
            async with self._pool.acquire(timeout=10) as connection:
                yield connection
