"""Brings Tidegate's own tables to the version that this code needs, by Alembic.

Revisions form two branches: *pre* (before new code rolls; the code that still runs works on it) and *post* (after all
old code is gone).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection as SyncConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tidegate.migrations.phases import Phase
from tidegate.migrations.revisions import VERSION_SCHEMA, pending_migrations
from tidegate_kernel.errors import Misconfigured, TidegateError, Transient
from tidegate_kernel.postgres import Connection, address, connect, connect_anywhere

_LOCK = 0x7469_6465_6D69_6772  # "tidemigr"
_LOCK_NOT_AVAILABLE = "55P03"


@asynccontextmanager
async def exclusively(dsn: str) -> AsyncIterator[Connection]:
    """Nobody else migrates this database inside the block. Yields the connection whose open transaction says so.

    The lock is the transaction's, so that it also holds through a pooler. Raises Misconfigured as `connect`.
    """
    async with connect(dsn) as connection, connection.transaction():
        # The block may take longer than a server allows idle transactions; this one holds nothing but the lock.
        await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        yield connection


async def upgrade(dsn: str, phase: Phase = Phase.ALL) -> Sequence[str]:
    """The migrations of `phase` are applied, each in a transaction of its own; returns the names of the new ones.

    The caller holds `exclusively`. A schema newer than this code is left as it is. Raises Misconfigured, or Transient
    for a lock that could not be had.
    """
    pending = await pending_migrations(dsn, phase)
    if pending:
        await _prepare_schema(dsn)
        await _run_alembic(dsn, "heads" if phase is Phase.ALL else f"{phase}@head")
    return pending


async def migrate(dsn: str, phase: Phase = Phase.ALL) -> Sequence[str]:
    """As `upgrade`, taking the lock itself: all that a test's database needs."""
    async with exclusively(dsn):
        return await upgrade(dsn, phase)


async def _prepare_schema(dsn: str) -> None:
    async with connect(dsn) as connection:
        # Asked first: CREATE … IF NOT EXISTS wants the privilege even where the schema exists.
        if await connection.fetchval("SELECT to_regnamespace($1)", VERSION_SCHEMA) is not None:
            return
        try:
            await connection.execute(f"CREATE SCHEMA {VERSION_SCHEMA}")
        except asyncpg.InsufficientPrivilegeError as error:
            raise Misconfigured(
                f"schema {VERSION_SCHEMA!r} cannot be created in postgres at {address(dsn)} ({error}); "
                "grant the role CREATE on the database, or create the schema for it"
            ) from error


async def _run_alembic(dsn: str, target: str) -> None:
    engine = create_async_engine(
        "postgresql+asyncpg://",
        poolclass=NullPool,
        # The DSN goes to the driver as it is: SQLAlchemy's own URLs know fewer forms.
        async_creator=lambda: connect_anywhere(dsn),
    )
    try:
        async with engine.connect() as connection:
            await connection.run_sync(_upgrade, target)
    except (DBAPIError, asyncpg.PostgresError) as error:
        raise _explained(error) from error
    finally:
        await engine.dispose()


def _upgrade(connection: SyncConnection, target: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    command.upgrade(config, target)


def _explained(error: Exception) -> TidegateError:
    """The driver's own error stands below SQLAlchemy's, if that wrapped it."""
    cause: BaseException = error
    while not isinstance(cause, asyncpg.PostgresError) and cause.__cause__ is not None:
        cause = cause.__cause__
    if getattr(cause, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
        return Transient("a migration waited 10 s for a table in use and gave up, changing nothing; run it again")
    return Misconfigured(f"a migration failed and was rolled back: {str(cause).splitlines()[0]}")
