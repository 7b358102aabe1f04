"""Connections to Postgres, and the one place that turns its errors into ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit
from weakref import WeakSet

import asyncpg

from tidegate_kernel.cancellation import raise_if_cancelled
from tidegate_kernel.errors import Misconfigured, Transient, Unreachable
from tidegate_kernel.pooler import SharedConnection, is_pooled
from tidegate_kernel.silence import give_up_when_silent

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]
    Pool = asyncpg.Pool[asyncpg.Record]
else:
    Connection = Any
    Pool = Any

# Classes 08 (connection) and 53 (resources), and the states a repeat can cure: serialization and deadlock, lock not
# available, idle-in-transaction time-out, read-only (a demoted primary), admin and crash shutdown, cannot connect now.
# https://www.postgresql.org/docs/current/errcodes-appendix.html
_TRANSIENT_CLASSES = ("08", "53")
_TRANSIENT_STATES = frozenset({"40001", "40P01", "55P03", "25P03", "25006", "57P01", "57P02", "57P03", "57P05"})
_CONNECT_SECONDS = 10
_GOODBYE_SECONDS = 5
# The server ends a statement at its time-out and says so: an answer that is this late will not come. A pooler may first
# let it wait for a server connection (query_wait_timeout, docs/operations/pgbouncer.md).
_LATE = timedelta(seconds=5)
_WAIT_FOR_POOLER = timedelta(seconds=35)
_CREDENTIAL_STATES = frozenset({"28000", "28P01", "3D000", "42501"})


def is_transient(error: BaseException) -> bool:
    """Whether Postgres or the road to it failed, so that the same statement may succeed later."""
    if isinstance(error, asyncpg.InvalidCachedStatementError):
        return True  # a migration changed a table while we ran: the driver has forgotten what it knew of it
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        return state[:2] in _TRANSIENT_CLASSES or state in _TRANSIENT_STATES
    if isinstance(error, asyncpg.InterfaceError) and not isinstance(error, ValueError):
        # A ValueError among them is an argument that does not fit, and quotes it.
        # "connection is closed", "connection was closed in the middle of operation", "pool is closing"; and of one that
        # was cut between two statements: "connection has been released back to the pool".
        return any(word in str(error) for word in ("clos", "terminat", "released back"))
    return isinstance(error, (OSError, asyncio.TimeoutError, asyncpg.InternalClientError))


def is_demoted(error: BaseException | None) -> bool:
    """Whether `error` comes from a server that is no primary (any more)."""
    while error is not None and not isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        error = error.__cause__
    return error is not None


class Connections:
    """The connections of a pool, for when the server behind them is not the one to talk to any more."""

    def __init__(self) -> None:
        self._open: WeakSet[asyncpg.Connection[asyncpg.Record]] = WeakSet()
        self._pool: Pool | None = None

    async def note(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        """A new one; asyncpg calls it."""
        # After a failover nobody may be there to refuse what is sent to the old address.
        give_up_when_silent(connection)
        self._open.add(connection)

    def belong_to(self, pool: Pool) -> None:
        self._pool = pool

    async def renew(self) -> None:
        """Each is replaced by a new one when it is next asked for."""
        if self._pool is not None:
            await self._pool.expire_connections()

    def cut(self) -> None:
        """Each is closed on the spot: whoever waits for an answer on it gets an error that is transient."""
        for connection in list(self._open):
            connection.terminate()


@contextmanager
def translated_errors(what: str) -> Iterator[None]:
    """Raises Transient instead of the driver's own errors that a repeat can cure; all others pass unchanged.

    Only for statements of our own: that one of them ran into its time-out means that it waited for a lock too long.
    Raises CancelledError where the task is being cancelled: whoever waits and tries again must not outlive that.
    """
    try:
        yield
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
        raise_if_cancelled(error)
        if is_transient(error) or isinstance(error, asyncpg.QueryCanceledError):
            # The first line only: Postgres puts values of the row into DETAIL, and this text is logged.
            raise Transient(f"{what}: {type(error).__name__}: {_first_line(error)}") from error
        raise


def address(dsn: str) -> str:
    """Host, port and database of `dsn`, fit for a message: without user and password. Several hosts are all named."""
    parts = urlsplit(dsn)
    hosts = parts.netloc.rpartition("@")[2] or parse_qs(parts.query).get("host", ["localhost"])[0]
    has_port = hosts.rpartition(":")[2].isdigit()
    return f"{hosts}{'' if has_port else ':5432'}{parts.path}"


@asynccontextmanager
async def open_pool(
    dsn: str,
    *,
    size: int,
    application_name: str = "tidegate",
    statement_timeout: timedelta = timedelta(seconds=60),
    connections: Connections | None = None,
) -> AsyncIterator[Pool]:
    """Yields a pool of at most `size` connections; closed afterwards, at the latest after ten seconds.

    `connections` gets a hand on all of them.

    Raises Unreachable if the server does not answer at the start, Misconfigured if it refuses the credentials.
    """
    limits = {
        "statement_timeout": str(int(statement_timeout.total_seconds() * 1000)),
        # A paused process must not hold row locks for ever: Postgres ends its transaction.
        "idle_in_transaction_session_timeout": "60000",
    }
    async with connect(dsn) as connection:
        pooled = await is_pooled(connection)
        if await connection.fetchval("SELECT current_schema() = 'tidegate'"):
            # A role named like our schema would find our tables before its own: handlers' SQL means theirs.
            limits["search_path"] = "public"
    identity = {"application_name": application_name, "timezone": "UTC"}
    connections = connections or Connections()
    pool: Pool = await asyncpg.create_pool(
        dsn,
        min_size=0,
        max_size=size,
        timeout=10,
        command_timeout=(statement_timeout + (_WAIT_FOR_POOLER if pooled else _LATE)).total_seconds(),
        init=connections.note,
        **(_through_pooler(identity, limits) if pooled else {"server_settings": identity | limits}),
    )
    connections.belong_to(pool)
    try:
        yield pool
    finally:
        await _close(pool)


@asynccontextmanager
async def connect(dsn: str) -> AsyncIterator[Connection]:
    """Yields one connection for a command that needs a few statements. Raises as `open_pool`."""
    try:
        connection = await connect_anywhere(dsn)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        raise _unreachable(dsn, error) from error
    try:
        yield connection
    finally:
        await _take_leave(connection)


async def _take_leave(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """It is closed, in order if the server answers: all was said, and a goodbye that is lost changes nothing."""
    try:
        await connection.close(timeout=_GOODBYE_SECONDS)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()


async def connect_anywhere(dsn: str, *, timeout: float = 10) -> asyncpg.Connection[asyncpg.Record]:
    """Returns a connection that works with and without a pooler. Raises the driver's errors."""
    # Somebody's laptop that falls asleep in the middle of a deed must not keep its locks.
    options = _through_pooler({"timezone": "UTC"}, {"idle_in_transaction_session_timeout": "60000"})
    options["connection_class"].reopen = partial(connect_anywhere, dsn, timeout=timeout)
    connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(dsn, timeout=timeout, **options)
    return connection


@asynccontextmanager
async def connected_anew(broken: Connection) -> AsyncIterator[Connection]:
    """Yields another connection to the database that `broken` was one to, for what must still be said to it.

    Raises Transient if `broken` was not made by `connect`; the driver's errors.
    """
    reopen = broken.reopen if isinstance(broken, SharedConnection) else None
    if reopen is None:
        raise Transient("the connection is closed")
    connection = await reopen()
    try:
        yield connection
    finally:
        connection.terminate()  # all was said: a road that loses the goodbye too changes nothing


async def is_writable(dsn: str) -> bool:
    """Whether a fresh connection may write: the probe that tells an outage from a handler's own failure."""
    try:
        connection = await connect_anywhere(dsn, timeout=5)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False
    try:
        return not await connection.fetchval(
            "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool"
        )
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False
    finally:
        connection.terminate()


def _through_pooler(identity: Mapping[str, str], limits: Mapping[str, str]) -> dict[str, Any]:
    """Options of the driver. A pooler keeps who we are and our time zone for each client, and nothing else."""

    class Limited(SharedConnection):
        transaction_settings = limits

    return {"server_settings": dict(identity), "statement_cache_size": 0, "connection_class": Limited}


def _unreachable(dsn: str, error: BaseException) -> Misconfigured:
    where, check = f"postgres at {address(dsn)}", "check TIDEGATE_POSTGRES_DSN"
    if getattr(error, "sqlstate", None) in _CREDENTIAL_STATES:
        return Misconfigured(f"{where} refused the connection ({error}); {check}")
    told = f"{where} cannot be reached ({_spelled(error)}); {check}"
    # An address that is none is no server that is away.
    return Misconfigured(told) if isinstance(error, ValueError) else Unreachable(told)


def _spelled(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_CONNECT_SECONDS} s"
    if "connection_lost" in str(error):
        return "it closed the connection without a word; is it Postgres?"
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


async def _close(pool: Pool) -> None:
    try:
        await asyncio.wait_for(pool.close(), timeout=10)
    except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        # A connection that hangs in close (server gone) must not keep the process from ending.
        pool.terminate()
