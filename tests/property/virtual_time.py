"""An event loop whose time jumps to the next timer as soon as nothing else can happen.

Statements are real and take real time, but the loop's clock stands still for them: twenty seconds of drain time-out
cost nothing, and a schedule that is played twice goes the same way twice. Statements run one after the other, in the
order in which they were asked for; one that waits for a lock lets the others pass. An answer is heard when nobody has
anything else to do, not when it happens to come.
"""

from __future__ import annotations

import asyncio
import io
import selectors
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, TypeVar

import asyncpg

T = TypeVar("T")
_Select = Callable[[float], list[tuple[selectors.SelectorKey, int]]]

# So long after the last sign of life it is worth asking Postgres whether all wait for locks: most answers come sooner.
_SILENCE_SECONDS = 0.005
# Real seconds in which a statement that waits for no lock must have answered.
_PATIENCE_SECONDS = 30.0
_LOOK_TAKES_SECONDS = 1e-9
# A poll costs as much as a turn. Who goes round and round without one shall still hear answers.
_TURNS_WITHOUT_POLL = 1_000

# The lock manager's word, not pg_stat_activity's: who was granted its lock is no waiter, though it may not know yet.
# $1 backends. A row for each that has or wants a lock.
_LOCKS = "SELECT pid, bool_and(granted) AS runs FROM pg_locks WHERE pid = ANY ($1::int[]) GROUP BY pid"
# What a loop that is stuck has to say of its server.
_BACKENDS = """
SELECT pid, state, wait_event_type, wait_event, pg_blocking_pids(pid) AS behind, left(query, 200) AS query
FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


class Stuck(BaseException):
    """The loop can never go on, nor can what runs in it be taken away: no test that uses it can, either."""


class LockWatch:
    """Answers, from a thread and a connection of its own, whether statements wait for locks."""

    def __init__(self, dsn: str) -> None:
        self._left: set[int] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lock-watch", daemon=True)
        self._thread.start()
        self._connection: asyncpg.Connection[asyncpg.Record] = self._in_thread(asyncpg.connect(dsn))

    def all_wait(self, backends: Collection[int | None]) -> bool:
        """Whether every one of these backends does, and will until somebody acts; None is one that is not known."""
        if None in backends:
            return False
        found = self._in_thread(self._connection.fetch(_LOCKS, [*backends, *self._left]))
        runs = {row["pid"]: row["runs"] for row in found}
        # Whose client has gone lets go of its locks in a moment, unless it waits itself and has not noticed.
        self._left &= runs.keys()
        return not any(runs[backend] for backend in self._left) and all(runs.get(each) is False for each in backends)

    def left(self, backend: int) -> None:
        """The client of this backend has gone without a word."""
        self._left.add(backend)

    def backends(self) -> str:
        """What each is doing, a line each."""
        return "\n".join(str(dict(row)) for row in self._in_thread(self._connection.fetch(_BACKENDS)))

    def close(self) -> None:
        self._in_thread(self._connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _in_thread(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=_PATIENCE_SECONDS)


class Turn:
    """One statement at a time, first come, first served."""

    def __init__(self) -> None:
        self._holder: object | None = None
        self._waiting: deque[tuple[object, asyncio.Future[None]]] = deque()

    async def take(self, who: object) -> None:
        if self._holder is None:
            self._holder = who
            return
        ready = asyncio.get_running_loop().create_future()
        self._waiting.append((who, ready))
        try:
            await ready
        except asyncio.CancelledError:
            self.give(who)
            raise

    def give(self, who: object) -> None:
        """Nothing happens where another has it by now."""
        if self._holder is who:
            self.pass_on()

    def pass_on(self) -> bool:
        """The next in line goes on; False if nobody waits."""
        self._holder = None
        while self._waiting:
            who, ready = self._waiting.popleft()
            if not ready.done():
                self._holder = who
                ready.set_result(None)
                return True
        return False


class _Selector(selectors.DefaultSelector):
    def __init__(self, wait: Callable[[_Select, float | None], list[tuple[selectors.SelectorKey, int]]]) -> None:
        super().__init__()
        self._wait = wait
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0 and self._turns < _TURNS_WITHOUT_POLL:
            self._turns += 1
            return []
        self._turns = 0
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        return self._wait(super().select, timeout)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Run everything that talks to Postgres through `statement`."""

    def __init__(self, locks: LockWatch) -> None:
        self._locks = locks
        self._virtual = 0.0
        self._in_flight: dict[object, int | None] = {}
        self._turn = Turn()
        # What was seen to wait for locks goes on to wait until another statement ends, or a client leaves.
        self._stuck: set[object] = set()
        super().__init__(_Selector(self._wait))

    def time(self) -> float:
        # Who looks at the clock until a time has come must not see it stand still: less than a nanosecond before it no
        # timer waits, and as long as somebody has anything to do no other one moves the time.
        self._virtual += _LOOK_TAKES_SECONDS
        return self._virtual

    async def statement(self, call: Callable[[], Awaitable[T]], *, backend: int | None = None) -> T:
        """Returns what `call`, which waits for Postgres alone, returns.

        Time stands still meanwhile, unless `backend`, which runs it, waits for a lock.
        """
        ticket = object()
        await self._turn.take(ticket)
        self._in_flight[ticket] = backend
        try:
            return await call()
        finally:
            del self._in_flight[ticket]
            self._stuck.clear()
            self._turn.give(ticket)

    def left(self, backend: int) -> None:
        """Its client has gone: soon it lets go of its locks."""
        self._stuck.clear()
        self._locks.left(backend)

    def _wait(self, select: _Select, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        until = time.monotonic() + _PATIENCE_SECONDS
        while not self._stuck >= self._in_flight.keys():
            if events := select(_SILENCE_SECONDS):
                return events
            if self._locks.all_wait(self._in_flight.values()):
                if (events := select(0)) or self._turn.pass_on():
                    return events
                self._stuck.update(self._in_flight)
            elif time.monotonic() > until:
                raise Stuck(self._told("a statement neither answers nor waits for a lock"))
        if timeout is None:
            if events := select(_PATIENCE_SECONDS):
                return events
            raise Stuck(self._told("every task waits for another: nothing can ever happen again"))
        self._virtual += timeout
        return []

    def _told(self, what: str) -> str:
        story = io.StringIO()
        print(what, f"in flight: {list(self._in_flight.values())}", self._locks.backends(), sep="\n", file=story)
        for task in asyncio.all_tasks(self):
            task.print_stack(file=story)
        return story.getvalue()
