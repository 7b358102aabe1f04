"""Brings Tidegate's own tables to the version that this code needs, and says how far they are.

Revisions form two branches: *pre* (before new code rolls; the code that still runs works on it) and *post* (after all
old code is gone). A revision's file name ends in its branch; `0001_first_tables` begins the pre branch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection as SyncConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tidegate.migrations.phases import Phase
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.postgres import Connection, address, connect

VERSION_SCHEMA = "tidegate"
VERSION_TABLE = "migration"

_LOCK = 0x7469_6465_6D69_6772  # "tidemigr"
_REMEDY = "run 'tidegate migrate'"


@asynccontextmanager
async def exclusively(dsn: str) -> AsyncIterator[Connection]:
    """Nobody else migrates this database inside the block. Yields a connection for reading: its transaction is open.

    The lock is the transaction's, so that it also holds through a pooler. Raises Misconfigured as `connect`.
    """
    async with connect(dsn) as connection, connection.transaction():
        # The block may take longer than a server allows idle transactions; this one holds nothing but the lock.
        await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        yield connection


async def upgrade(dsn: str, phase: Phase) -> Sequence[str]:
    """The migrations of `phase` are applied, each in a transaction of its own; returns the names of the new ones.

    The caller holds `exclusively`. A schema newer than this code is left as it is. Raises Misconfigured.
    """
    pending = await pending_migrations(dsn, phase)
    if pending:
        await _prepare_schema(dsn)
        await _run_alembic(dsn, _target(phase))
    return pending


async def pending_migrations(dsn: str, phase: Phase = Phase.ALL) -> Sequence[str]:
    """Returns the names of Tidegate's migrations that the database lacks, oldest first. Raises Misconfigured."""
    script = _scripts()
    async with connect(dsn) as connection:
        heads = await _heads(connection)
    wanted = _branch(script, phase)
    applied = _ancestors(script, heads)
    # A head that this code does not know was written by newer code, whose schema ours can use.
    is_newer = any(head not in _by_id(script) for head in heads)
    return [] if is_newer else [_name(s) for s in wanted if s.revision not in applied]


async def require_schema(dsn: str) -> None:
    """Raises Misconfigured unless the database has every table this code works with."""
    pending = await pending_migrations(dsn, Phase.PRE)
    if not pending:
        return
    where = f"postgres at {address(dsn)}"
    if len(pending) == len(_branch(_scripts(), Phase.PRE)):
        raise Misconfigured(f"{where} has no Tidegate tables; {_REMEDY}")
    raise Misconfigured(f"{where} has an older schema, without {', '.join(pending)}; {_REMEDY}")


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(Path(__file__).parent))


def _by_id(script: ScriptDirectory) -> dict[str, Script]:
    return {revision.revision: revision for revision in script.walk_revisions()}


def _branch(script: ScriptDirectory, phase: Phase) -> list[Script]:
    """Revisions of a phase in the order of their numbers, which is that of their making."""
    found = sorted(script.walk_revisions(), key=lambda revision: revision.revision)
    return [s for s in found if phase is Phase.ALL or phase in s.branch_labels]


def _target(phase: Phase) -> str:
    return "heads" if phase is Phase.ALL else f"{phase}@head"


def _ancestors(script: ScriptDirectory, heads: Iterable[str]) -> set[str]:
    """The heads and all that they build on."""
    known, found, left = _by_id(script), set[str](), list(heads)
    while left:
        name = left.pop()
        if name in known and name not in found:
            found.add(name)
            left += [*_tuple(known[name].down_revision), *_tuple(known[name].dependencies)]
    return found


def _tuple(value: str | Iterable[str] | None) -> tuple[str, ...]:
    return () if value is None else (value,) if isinstance(value, str) else tuple(value)


def _name(script: Script) -> str:
    return Path(script.path).stem


async def _heads(connection: Connection) -> list[str]:
    table = f"{VERSION_SCHEMA}.{VERSION_TABLE}"
    if await connection.fetchval("SELECT to_regclass($1)", table) is None:
        return []
    try:
        rows = await connection.fetch(f"SELECT version_num FROM {table}")  # noqa: S608  # two constants
    except asyncpg.InsufficientPrivilegeError as error:
        raise Misconfigured(f"table {table}: {error}; grant this role SELECT on schema {VERSION_SCHEMA!r}") from error
    return [row["version_num"] for row in rows]


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
        async_creator=lambda: asyncpg.connect(dsn, timeout=10, statement_cache_size=0),
    )
    try:
        async with engine.connect() as connection:
            await connection.run_sync(_upgrade, target)
    except DBAPIError as error:
        raise _explained(error.orig or error) from error
    except asyncpg.PostgresError as error:
        raise _explained(error) from error
    finally:
        await engine.dispose()


def _upgrade(connection: SyncConnection, target: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    command.upgrade(config, target)


def _explained(error: BaseException) -> Exception:
    cause = error.__cause__ or error
    state = getattr(cause, "sqlstate", None) or getattr(error, "sqlstate", None)
    if state == "55P03":
        return Transient("a migration waited 10 s for a table in use and gave up, changing nothing; run it again")
    return Misconfigured(f"a migration failed and was rolled back: {str(cause).splitlines()[0]}")


def migrate(dsn: str, phase: Phase = Phase.ALL) -> Sequence[str]:
    """As `upgrade`, for callers without an event loop; takes the lock itself."""

    async def run() -> Sequence[str]:
        async with exclusively(dsn):
            return await upgrade(dsn, phase)

    return asyncio.run(run())
