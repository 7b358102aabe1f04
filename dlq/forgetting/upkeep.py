"""Retention: dead letters leave some time after they were decided; what nobody has decided about never does.

A letter that blocks a key has events waiting behind it: it cannot vanish by the clock. How old the oldest is tells a
gauge instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import structlog

from dlq.states import UNRESOLVED
from tidegate_kernel import logs
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.queries import load_queries
from tidegate_kernel.rounds import Tell, tell_nobody

_log = structlog.get_logger(__name__)
_QUERIES = load_queries(__package__)

_EVERY_SECONDS = 300.0
# Deleting so many takes some ten milliseconds, which is what a settle that meets one of them again may wait.
_CHUNK = 500
_STEP = timedelta(seconds=1)
# It yields to settles: it works a fifth of the time, and leaves the rest of a large heap to the next round.
_REST = 4.0
_ROUND_SECONDS = 240.0


class LetterUpkeep:
    """Letters of a service: every worker counts them, and rounds drop them. Any number at once: none waits for another.

    `kept` None keeps letters for ever.
    """

    def __init__(self, pool: Pool, clock: Clock, *, service: str, kept: timedelta | None, metrics: Metrics) -> None:
        self._pool, self._clock, self._service, self._kept, self._metrics = pool, clock, service, kept, metrics

    async def watch(self) -> None:
        """This process's numbers are told. Does not end."""
        while True:
            try:
                await self.measure()
            except (Transient, Misconfigured) as error:
                _log.warning(logs.LETTER_UPKEEP_FAILED, error=str(error))
            await self._clock.sleep(_EVERY_SECONDS)

    async def round(self, tell: Tell = tell_nobody) -> None:
        """One round. Raises Transient, Misconfigured for what stood in its way, logged by then."""
        if self._kept is None:
            return
        try:
            await self._drop(self._kept, tell)
        except (Transient, Misconfigured) as error:
            _log.warning(logs.LETTER_UPKEEP_FAILED, error=str(error))
            raise

    async def _drop(self, kept: timedelta, tell: Tell) -> None:
        dropped: Counter[str] = Counter()
        stop_at = self._clock.monotonic() + _ROUND_SECONDS
        try:
            while (began := self._clock.monotonic()) < stop_at:
                chunk = await self._step(kept)
                dropped.update(chunk)
                await tell(sum(chunk.values()))
                if sum(chunk.values()) < _CHUNK:
                    break
                await self._clock.sleep(_REST * (self._clock.monotonic() - began))
        finally:
            self._tell(dropped)

    async def _step(self, kept: timedelta) -> Mapping[str, int]:
        """Drops the next chunk, in a transaction of its own; returns how many letters of each job that were."""
        async with self._connection() as connection:
            try:
                async with connection.transaction():
                    await connection.execute(f"SET LOCAL statement_timeout = {int(_STEP.total_seconds() * 1000)}")
                    rows = await connection.fetch(_QUERIES["drop_decided"], self._service, kept, _CHUNK)
                    rows += await connection.fetch(_QUERIES["drop_item_letters"], self._service, kept, _CHUNK)
            except (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError):
                return {}  # somebody migrates the table, or the disk is slow: the next round goes on
        dropped: Counter[str] = Counter()
        for row in rows:
            dropped[row["code"]] += row["dropped"]
        return dropped

    def _tell(self, dropped: Mapping[str, int]) -> None:
        for job, letters in dropped.items():
            self._metrics.letters_expired.labels(job).inc(letters)
            _log.info(logs.LETTERS_EXPIRED, job=job, letters=letters)

    async def measure(self) -> None:
        """Tells how many letters nobody has decided about. Raises Transient, Misconfigured."""
        async with self._connection() as connection:
            rows = await connection.fetch(_QUERIES["unresolved_letters"], self._service, list(UNRESOLVED))
        for row in rows:
            self._metrics.unresolved_letters.labels(row["code"]).set(row["letters"])
            self._metrics.oldest_letter.labels(row["code"]).set(row["oldest_seconds"])

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        with translated_errors("letter upkeep"):
            try:
                async with self._pool.acquire(timeout=10) as connection:
                    yield connection
            except asyncpg.InsufficientPrivilegeError as error:
                raise Misconfigured(
                    f"dead letters cannot be kept ({error}); grant this role what a worker needs: "
                    "'tidegate migrate --worker-role ROLE'"
                ) from error
