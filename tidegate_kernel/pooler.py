"""Connections through a pooler that gives each transaction some server connection (PgBouncer's transaction mode).

Nothing can be left on a server connection for later: no prepared statement, no setting, no lock of a session. So
statements have no name and are parsed whenever they run, and limits are set in each transaction, for that transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import asyncpg
from asyncpg.transaction import Transaction

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    _Connection = asyncpg.Connection[asyncpg.Record]
else:
    _Connection = asyncpg.Connection


class SharedConnection(_Connection):
    """Works on whichever server connection the pooler gives; without a pooler too, only slower.

    Open it with `statement_cache_size=0`: the driver then sends a statement's text together with its arguments.
    """

    transaction_settings: Mapping[str, str] = {}
    """What holds in each transaction. Elsewhere these are startup parameters, which a pooler refuses or ignores."""
    reopen: Callable[[], Awaitable[_Connection]] | None = None
    """Makes another one to the same database, for when this one broke."""

    def transaction(self, *, isolation: Any = None, readonly: bool = False, deferrable: bool = False) -> Transaction:
        """As the driver's, with our settings in it."""
        return _LimitedTransaction(self, isolation, readonly, deferrable)

    def get_reset_query(self) -> str:
        """What ends the use of a connection.

        A statement that was cut short keeps a server connection for us until the next one. The driver's own reset would
        also reset what the pooler remembers for each client, as the time zone.
        """
        return "SELECT"

    async def limit_transaction(self) -> None:
        """Call at the beginning of a transaction: the settings hold until its end."""
        if self.transaction_settings:
            settings = self.transaction_settings.items()
            await self.execute("; ".join(f"SET LOCAL {name} = '{value}'" for name, value in settings))

    def _get_unique_id(self, prefix: str) -> str:
        # The driver names the statement of a cursor, uniquely in this process: on a server connection that all share,
        # another process's may have the same name. Without one it is replaced by the next statement.
        return "" if prefix == "stmt" else super()._get_unique_id(prefix)  # type: ignore[misc]  # no stub


class _LimitedTransaction(Transaction):
    def __init__(self, connection: SharedConnection, *options: Any) -> None:
        super().__init__(connection, *options)
        self._shared = connection

    async def start(self) -> None:
        """Begins it, or sets a savepoint in one whose settings hold already."""
        is_savepoint = self._shared.is_in_transaction()
        await super().start()
        if not is_savepoint:
            await self._shared.limit_transaction()


async def is_pooled(connection: asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]) -> bool:
    """Whether a pooler answers: it has to make up the process id that a server tells its clients at the start."""
    server = await connection.fetchval("SELECT pg_backend_pid()")
    return bool(server != connection.get_server_pid())
