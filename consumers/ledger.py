"""Where a road writes what became of a batch: Postgres, under the job's claim rule and its dead letters' origin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

from dlq.letters import Failure, Origin, record_dead_letters
from inbox.identity import ClaimRule
from tidegate_kernel.clock import Clock
from tidegate_kernel.postgres import Connection, Pool, translated_errors


@dataclass(frozen=True, slots=True)
class Ledger:
    """What every settle writes to: Postgres, under the job's claim rule, with the job's origin on its letters."""

    pool: Pool
    origin: Origin
    rule: ClaimRule
    clock: Clock

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Yields a connection in a READ COMMITTED transaction. Trouble on the way to Postgres raises Transient."""
        with translated_errors("settle"):
            async with self.pool.acquire(timeout=10) as connection, connection.transaction():
                yield connection

    @asynccontextmanager
    async def statement(self) -> AsyncIterator[Connection]:
        """Yields a connection for a single statement: no transaction around it, one round trip instead of three."""
        with translated_errors("settle"):
            async with self.pool.acquire(timeout=10) as connection:
                yield connection

    async def keep(self, connection: Connection, failures: Sequence[Failure]) -> Mapping[int, UUID]:
        """In the caller's transaction: the dead letters are kept and on their way to the DLQ topic; by offset."""
        return await record_dead_letters(connection, self.origin, failures, self.clock.now()) if failures else {}
