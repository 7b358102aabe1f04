"""Retention of the audit: its oldest rows leave, and a row of it tells so. The rules stand in migration 0019."""

from __future__ import annotations

import socket
from datetime import timedelta

import asyncpg

from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.postgres import Pool, translated_errors
from tidegate_kernel.queries import load_queries
from tidegate_kernel.rounds import Tell, tell_nobody

_QUERIES = load_queries(__package__)

# Whoever appends a row meanwhile waits: each of so many is hashed once more before it leaves, some ten milliseconds.
_CHUNK = 1000


class AuditUpkeep:
    """Rounds that take away what is older than `kept`, by the database's clock; None: nothing ever leaves.

    Any number of processes and services at once. A database has one audit: of services that share it the shortest
    retention counts.
    """

    def __init__(self, pool: Pool, *, target: str, kept: timedelta | None) -> None:
        self._pool, self._target, self._kept = pool, target, kept

    async def round(self, tell: Tell = tell_nobody) -> None:
        """One round. Raises Transient, Misconfigured for what stood in its way: a broken chain, among others."""
        if self._kept is None:
            return
        while True:
            removed = await self._step(self._kept)
            await tell(removed)
            if removed < _CHUNK:
                return

    async def _step(self, kept: timedelta) -> int:
        with translated_errors("audit upkeep"):
            try:
                async with self._pool.acquire(timeout=10) as connection:
                    told = (f"job {self._target}", socket.gethostname(), self._target)
                    removed: int = await connection.fetchval(_QUERIES["forget_audit"], *told, kept, _CHUNK)
            except asyncpg.LockNotAvailableError:
                return 0  # somebody holds the chain's end: the next round goes on
            except asyncpg.RaiseError as error:
                raise Misconfigured(str(error)) from error
            except asyncpg.InsufficientPrivilegeError as error:
                raise Misconfigured(
                    f"the audit cannot be kept ({error}); grant this role what a worker needs: "
                    "'tidegate migrate --worker-role ROLE'"
                ) from error
        return removed
