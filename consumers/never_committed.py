"""A transaction that is rolled back however it ends, and notices if it was not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import asyncpg

from tidegate_kernel.errors import TidegateError
from tidegate_kernel.postgres import Connection


class CommittedMeanwhile(TidegateError):
    """A handler ended the transaction that was to be rolled back: what it and those before it did is kept."""


@asynccontextmanager
async def never_committed(connection: Connection) -> AsyncIterator[None]:
    """Whatever the block does on the connection is rolled back. Raises CommittedMeanwhile."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield
    finally:
        # Where the connection is gone, so is all that was done on it.
        with suppress(asyncpg.InterfaceError):
            if not connection.is_closed() and not connection.is_in_transaction():
                raise CommittedMeanwhile(
                    "a handler ended the transaction by ctx.db.raw, so what was rehearsed may have been kept; declare "
                    "it with calls_outside=True, and no rehearsal runs it"
                )
            await transaction.rollback()
