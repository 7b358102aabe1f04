"""A pool that breaks on demand, around the real one.

Whatever the product asks of Postgres passes `FaultyPool`, one call at a time: the call may be struck before it reaches
the server, or after the server did it and before the answer is heard.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, Protocol

import asyncpg

from tests.property.virtual_time import VirtualLoop


class Statement(StrEnum):
    """What passes; a fault may wait for one kind of it."""

    ANY = "any"
    ACQUIRE = "acquire"
    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    SAVEPOINT = "savepoint"
    RELEASE = "release"
    QUERY = "query"


class Breakage(StrEnum):
    """How a call fails. LOST_ANSWER is the only one that strikes after the server has done its work."""

    CLOSED = "closed"
    LOST_ANSWER = "lost answer"
    DEADLOCK = "40P01"
    SERIALIZATION = "40001"
    READ_ONLY = "25006"
    LOCK_NOT_AVAILABLE = "55P03"
    TOO_MANY = "53300"
    SHUTDOWN = "57P01"
    CANCELLED = "57014"
    """No outage and no collision: an error of our own statements, or a handler's."""


@dataclass(frozen=True, slots=True)
class PostgresFault:
    """Strikes the call number `skip` (from 0) of those of kind `at`."""

    at: Statement
    skip: int
    how: Breakage


class Client(Protocol):
    """The process that asks."""

    async def gate(self) -> None:
        """Returns when the process may act: at once, later, or never again."""

    def point(self) -> None:
        """Called between any two things that the outer world can see."""


class PostgresFaults:
    """What is broken in Postgres now, for everybody."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.down_until = 0.0
        self.struck: list[PostgresFault] = []
        self.during_query: Callable[[PostgresFault], None] = lambda _: None
        self._armed: list[PostgresFault] = []
        self._open: set[FaultyConnection] = set()

    @property
    def is_down(self) -> bool:
        return self.loop.time() < self.down_until

    def arm(self, fault: PostgresFault) -> None:
        self._armed.append(fault)

    def go_down(self, seconds: float) -> None:
        """The server is away for so long; every connection is gone at once."""
        self.down_until = self.loop.time() + seconds
        for connection in list(self._open):
            connection.terminate()

    def heal(self) -> None:
        self.down_until = 0.0
        self._armed.clear()

    def due(self, kind: Statement) -> PostgresFault | None:
        """The fault that strikes this call, if one does; the others come a call closer."""
        for index, fault in enumerate(self._armed):
            if fault.at not in (Statement.ANY, kind):
                continue
            if fault.skip == 0:
                del self._armed[index]
                self.struck.append(fault)
                return fault
            self._armed[index] = PostgresFault(fault.at, fault.skip - 1, fault.how)
        return None

    def opened(self, connection: FaultyConnection) -> None:
        self._open.add(connection)

    def released(self, connection: FaultyConnection) -> None:
        self._open.discard(connection)


class FaultyPool:
    """The part of `asyncpg.Pool` that the product uses, for one process."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], faults: PostgresFaults, client: Client) -> None:
        self._pool, self._faults, self._client = pool, faults, client
        self._mine: set[FaultyConnection] = set()
        self._releases: set[asyncio.Future[None]] = set()

    @asynccontextmanager
    async def acquire(self, *, timeout: float | None = None) -> AsyncIterator[FaultyConnection]:
        await self._client.gate()
        fault = self._faults.due(Statement.ACQUIRE)
        if self._faults.is_down or fault is not None:
            raise ConnectionRefusedError("injected: nobody listens")
        real: Any = await self._faults.loop.statement(self._pool.acquire)
        connection = FaultyConnection(real, self._faults, self._client, self._give_back)
        self._mine.add(connection)
        self._faults.opened(connection)
        try:
            yield connection
        finally:
            self._mine.discard(connection)
            self._faults.released(connection)
            # Given back even where the task that had it is cancelled once more.
            await asyncio.shield(connection.give_back())

    def _give_back(self, real: Any) -> asyncio.Future[None]:
        # What its last statement still waits for may be held by one that waits for its turn to be given back.
        release = self._faults.loop.statement(lambda: self._pool.release(real), backend=real.get_server_pid())
        given_back = asyncio.ensure_future(release)
        self._releases.add(given_back)
        given_back.add_done_callback(self._releases.discard)
        return given_back

    def terminate(self) -> None:
        """As when the process has died: every connection it had is gone."""
        for connection in list(self._mine):
            connection.terminate()

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        async with self.acquire() as connection:
            return str(await connection.execute(query, *args, timeout=timeout))

    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> list[asyncpg.Record]:
        async with self.acquire() as connection:
            rows: list[asyncpg.Record] = await connection.fetch(query, *args, timeout=timeout)
            return rows

    async def fetchrow(self, query: str, *args: Any, timeout: float | None = None) -> asyncpg.Record | None:
        async with self.acquire() as connection:
            row: asyncpg.Record | None = await connection.fetchrow(query, *args, timeout=timeout)
            return row

    async def fetchval(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        async with self.acquire() as connection:
            return await connection.fetchval(query, *args, timeout=timeout)


class FaultyConnection:
    """A connection whose every call can be struck."""

    def __init__(
        self, real: Any, faults: PostgresFaults, client: Client, give_back: Callable[[Any], asyncio.Future[None]]
    ) -> None:
        self._real, self._faults, self._client = real, faults, client
        self._pid = real.get_server_pid()
        self._give_back = give_back
        self._given_back: asyncio.Future[None] | None = None
        self._in_flight = 0

    def __getattr__(self, name: str) -> Any:
        self._must_be_open(name)
        return getattr(self._real, name)

    def is_closed(self) -> bool:
        return self._given_back is not None or bool(self._real.is_closed())

    def give_back(self) -> asyncio.Future[None]:
        """A transaction that is open is rolled back. Done once, however often it is called."""
        if self._given_back is None:
            self._given_back = self._give_back(self._real)
        return self._given_back

    def terminate(self) -> None:
        """As if the network were cut. Between two statements the server only rolls back, as it does for `give_back`:
        who had the connection sees no difference, and the next one need not be made anew, which costs a schedule."""
        if self.is_closed():
            return
        if not self._in_flight:
            self.give_back()
            return
        self._faults.loop.left(self._pid)
        self._real.terminate()

    def _must_be_open(self, name: str) -> None:
        if self._given_back is not None:
            raise asyncpg.InterfaceError(f"cannot call Connection.{name}(): connection is closed")

    def transaction(self) -> FaultyTransaction:
        self._must_be_open("transaction")
        return FaultyTransaction(self, self._real.transaction(), is_nested=self._real.is_in_transaction())

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return await self.call(Statement.QUERY, lambda: self._real.execute(query, *args, timeout=timeout))

    async def executemany(self, query: str, args: Iterable[Sequence[Any]], *, timeout: float | None = None) -> Any:
        return await self.call(Statement.QUERY, lambda: self._real.executemany(query, args, timeout=timeout))

    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return await self.call(Statement.QUERY, lambda: self._real.fetch(query, *args, timeout=timeout))

    async def fetchrow(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return await self.call(Statement.QUERY, lambda: self._real.fetchrow(query, *args, timeout=timeout))

    async def fetchval(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return await self.call(Statement.QUERY, lambda: self._real.fetchval(query, *args, timeout=timeout))

    async def copy_records_to_table(self, table: str, **more: Any) -> Any:
        return await self.call(Statement.QUERY, lambda: self._real.copy_records_to_table(table, **more))

    async def call(self, kind: Statement, real: Callable[[], Awaitable[Any]]) -> Any:
        """Passes the call on, unless something strikes it."""
        self._client.point()
        await self._client.gate()
        fault = self._faults.due(kind)
        if self._faults.is_down:
            self._close()
        if fault is not None and fault.how is not Breakage.LOST_ANSWER:
            if kind is Statement.QUERY:
                self._faults.during_query(fault)
            await self._break(fault.how, kind)
        answer = await self._run(real)
        self._client.point()
        await self._client.gate()
        if fault is not None:
            self._close()
        return answer

    async def _run(self, real: Callable[[], Awaitable[Any]]) -> Any:
        self._must_be_open("execute")
        self._in_flight += 1
        try:
            return await self._faults.loop.statement(real, backend=self._pid)
        finally:
            self._in_flight -= 1

    async def _break(self, how: Breakage, kind: Statement) -> None:
        if how is Breakage.CLOSED:
            self._close()
        # A real error of the server's: it also breaks the transaction there.
        raised = f"DO $$BEGIN RAISE EXCEPTION 'injected' USING ERRCODE = '{how}'; END$$"
        try:
            await self._run(lambda: self._real.execute(raised))
        finally:
            if how is Breakage.SHUTDOWN:
                self.terminate()

    def _close(self) -> None:
        self.terminate()
        raise asyncpg.ConnectionDoesNotExistError("injected: connection was closed in the middle of operation")


class FaultyTransaction:
    """Transaction or savepoint; its begin and its end can be struck as any statement."""

    def __init__(self, connection: FaultyConnection, real: Any, *, is_nested: bool) -> None:
        self._connection, self._real = connection, real
        self._begin = Statement.SAVEPOINT if is_nested else Statement.BEGIN
        self._commit = Statement.RELEASE if is_nested else Statement.COMMIT

    async def __aenter__(self) -> None:
        await self._connection.call(self._begin, self._real.__aenter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            await self._connection.call(Statement.ROLLBACK, lambda: self._real.__aexit__(kind, error, trace))
            return
        try:
            await self._connection.call(self._commit, lambda: self._real.__aexit__(None, None, None))
        except asyncpg.PostgresError:
            await self._roll_back()
            raise

    async def _roll_back(self) -> None:
        """A commit that the server refused leaves no transaction open, nor a savepoint's work undone by halves."""
        if self._connection.is_closed():
            return
        broken = asyncpg.PostgresError()
        try:
            await self._connection._run(lambda: self._real.__aexit__(asyncpg.PostgresError, broken, None))
        except asyncpg.InterfaceError:
            return  # the driver counts it as ended already
