"""What a handler gets beside its command."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Generic, ParamSpec, TypeVar

import asyncpg
import structlog

from tidegate.jobs.clockwork.records import ItemRecord, RunTag
from tidegate.jobs.publishing import publication
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import TidegateError
from tidegate_kernel.event import Event, Scope
from tidegate_kernel.postgres import Connection
from tidegate_kernel.source import Outgoing

DepsT = TypeVar("DepsT")
P = ParamSpec("P")
R = TypeVar("R")

# Comments, texts, quoted names, bodies between dollars: what stands there begins no statement.
_NO_STATEMENT = re.compile(
    r"""--[^\n]*|/\*.*?\*/|\b[eE]'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|(\$\w*\$).*?\1""", re.DOTALL
)
_REFUSED = frozenset({"COMMIT", "ROLLBACK", "BEGIN", "START", "END", "ABORT", "PREPARE", "SAVEPOINT", "RELEASE"})


class HandlerConnection:
    """The transaction that also holds the event's claim. Handlers write through it; it commits when they all are done.

    Speaks asyncpg. Statements that would end or nest the transaction by hand are refused; `transaction()` gives a
    savepoint. What blocks (DO) and procedures (CALL) do inside is refused by Postgres itself.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def raw(self) -> Connection:
        """The driver's own connection, for libraries that speak to it; what it runs is not looked at.

        Whoever ends the transaction through it commits the claims of the whole batch without its position and its dead
        letters: should the batch fail then, its events count as done.
        """
        return self._connection

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """Runs a statement (or several without arguments) and returns its status, as asyncpg does."""
        status: str = await self._connection.execute(_allowed(query), *args, timeout=timeout)
        return status

    async def executemany(self, query: str, args: Sequence[Sequence[Any]], *, timeout: float | None = None) -> None:
        await self._connection.executemany(_allowed(query), args, timeout=timeout)

    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> list[asyncpg.Record]:
        rows: list[asyncpg.Record] = await self._connection.fetch(_allowed(query), *args, timeout=timeout)
        return rows

    async def fetchrow(self, query: str, *args: Any, timeout: float | None = None) -> asyncpg.Record | None:
        return await self._connection.fetchrow(_allowed(query), *args, timeout=timeout)

    async def fetchval(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return await self._connection.fetchval(_allowed(query), *args, timeout=timeout)

    def transaction(self) -> Any:
        """A savepoint: `async with ctx.db.transaction(): …`."""
        return self._connection.transaction()


@lru_cache(maxsize=1024)  # a service has few statements and runs each for every event
def _allowed(query: str) -> str:
    for first in first_words(query):
        if first in _REFUSED:
            raise TidegateError(
                f"a handler must not run {first}: its statements commit together with the event's claim; "
                "use 'async with ctx.db.transaction()' for a savepoint"
            )
    return query


def first_words(query: str) -> list[str]:
    """Returns the word, in capitals, that each statement of `query` begins with."""
    statements = _NO_STATEMENT.sub(" ", query).split(";")
    return [words[0].upper() for statement in statements if (words := statement.split(None, 1))]


class Context(Generic[DepsT]):
    """What a handler knows of the event and the place it runs in.

    `deps` is what the App's lifespan yields; `db` the open transaction; `idempotency_key` is for calls to other systems
    and the same for every repeat. A handler of `handle_batch` finds its events in `events`, all of one scope.
    """

    __slots__ = ("_published", "_threads", "clock", "db", "deps", "events", "job", "log")

    def __init__(
        self,
        *,
        job: str,
        events: Sequence[Event[Any]],
        db: HandlerConnection,
        deps: DepsT,
        clock: Clock,
        threads: ThreadPoolExecutor,
    ) -> None:
        self.job, self.events, self.db, self.deps, self.clock = job, events, db, deps, clock
        self.log: structlog.typing.FilteringBoundLogger = structlog.get_logger("handler")
        self._threads = threads
        self._published: list[Outgoing] = []

    @property
    def event(self) -> Event[Any]:
        """The event being handled; the first one of a batch."""
        return self.events[0]

    @property
    def scope(self) -> Scope:
        return self.events[0].scope

    @property
    def run(self) -> RunTag | None:
        """The run that does this item, of a job by the clock; None for an event from Kafka.

        What goes through `db` needs no token: it is rolled back with the run's own settle. What is written elsewhere
        can carry it.
        """
        record = self.event.record
        return record.run if isinstance(record, ItemRecord) else None

    @property
    def idempotency_key(self) -> str:
        """The same text for every repeat of this event in this job."""
        record = self.event.record
        identity = self.event.id or f"{record.topic}:{record.partition}:{record.offset}"
        return f"{self.job}:{identity}"

    def publish(
        self,
        topic: str,
        data: Any,
        *,
        key: str | bytes | None = None,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`data` reaches `topic` if and only if the transaction commits, through the outbox, at least once.

        It is a CloudEvent of `type` (the class name by default) with the scope and correlation id of the event that
        caused it. Its id derives from job, event and ordinal: a repeat publishes the same id.
        """
        ordinal = len(self._published)
        self._published.append(
            publication(
                self.job, self.event, ordinal, topic=topic, data=data, key=key, type_=type, headers=headers or {}
            )
        )

    @property
    def published(self) -> Sequence[Outgoing]:
        """What this handler has published so far, in order."""
        return self._published

    async def thread(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs synchronous code in a bounded pool of threads. It must not touch `db`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))
