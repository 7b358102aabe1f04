"""SQLAlchemy in handlers: a session on the transaction that also holds the event's claim (`tidegate[sqlalchemy]`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NoReturn

import asyncpg
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from tidegate.jobs.context import Context, first_words
from tidegate_kernel.errors import TidegateError
from tidegate_kernel.postgres import Connection

_ENDINGS = frozenset({"COMMIT", "END", "ABORT", "BEGIN", "START"})
_current: ContextVar[Connection] = ContextVar("tidegate_handler_connection")


class HandlerSession(AsyncSession):
    """A session that cannot end its transaction: that commits together with the event's claim."""

    async def commit(self) -> NoReturn:
        """Refused; `flush()` sends what is pending."""
        raise TidegateError("a handler must not commit: its statements commit with the event's claim; use flush()")

    async def rollback(self) -> NoReturn:
        """Refused; raise instead, or use `begin_nested()` for a savepoint."""
        raise TidegateError("a handler must not roll back: raise, or use 'async with session.begin_nested()'")


@asynccontextmanager
async def session(ctx: Context[Any]) -> AsyncIterator[HandlerSession]:
    """Yields a session on the handler's own transaction; what is pending is flushed at the end.

    Its statements and those of `ctx.db` see each other. Objects outlive the block, detached. A database's error leaves
    the block as the driver's own, by which it is told whether a repeat can cure it.
    """
    token = _current.set(ctx.db.raw)
    try:
        async with HandlerSession(_engine(), expire_on_commit=False) as opened:
            yield opened
            await opened.flush()
    except DBAPIError as error:
        raise _driver_error(error) from error
    finally:
        _current.reset(token)


def _driver_error(error: BaseException) -> BaseException:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, asyncpg.PostgresError | asyncpg.InterfaceError):
        cause = cause.__cause__
    return cause or error


@cache
def _engine() -> AsyncEngine:
    # NullPool: each session asks anew, and is given the connection of the handler it runs in. AUTOCOMMIT: SQLAlchemy
    # begins and ends nothing by itself, the transaction is the pipeline's.
    return create_async_engine(
        "postgresql+tidegate://", poolclass=NullPool, async_creator=_borrowed, isolation_level="AUTOCOMMIT"
    )


async def _borrowed() -> Any:
    return _Borrowed(_current.get())


class _Borrowed:
    """A handler's connection that SQLAlchemy may use but not close."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def prepare(self, query: str, **options: Any) -> Any:
        """As the driver's, but for statements that would end the transaction."""
        first = next(iter(first_words(query)), "")
        if first in _ENDINGS or (first == "ROLLBACK" and "TO" not in query.upper().split()):
            raise TidegateError(f"a handler must not run {first}: its statements commit with the event's claim")
        return await self._connection.prepare(query, **options)

    async def close(self, timeout: float | None = None) -> None:
        """It goes back to the pipeline, open."""

    def terminate(self) -> None:
        """As `close`."""


class _BorrowingDialect(PGDialect_asyncpg):
    """Leaves the connection as it is: the stock dialect sets JSON codecs, which empties its cache of statements."""

    supports_statement_cache = True
    # So JSON arrives as text, as asyncpg gives it, and SQLAlchemy's types read it.
    supports_native_json_deserialization = False

    def on_connect(self) -> None:
        return None


registry.register("postgresql.tidegate", __name__, "_BorrowingDialect")
