"""How many requests a store gets at once: fewer while it is overloaded, one more after each round that went well."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidegate_kernel.clock import Clock

MOST = 16
"""More than the lanes of a process ask for, unless somebody gave it many."""

SLOW_SECONDS = 5.0
"""A full request of some megabytes takes well below a second: a store that needs this long has too many in hand."""


class Concurrency:
    """The requests of one sink in this process. `limit` is how many may be under way, between 1 and `most`.

    As TCP does it: halved by a sign of overload, at most once for the requests that were under way together; one more
    after as many good answers as the limit is. Requests beyond it wait in the order in which they came.
    """

    def __init__(self, clock: Clock, *, most: int = MOST, slow_seconds: float = SLOW_SECONDS) -> None:
        self._clock, self._most, self._slow = clock, most, slow_seconds
        self._limit = most
        self._good = 0
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        # Requests begun before the last cut knew nothing of it: their bad news is the same news.
        self._begun = self._cut_at = 0

    @property
    def limit(self) -> int:
        return self._limit

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[Request]:
        """Inside, one of the requests is under way. Waits for its turn; what it reports decides what comes after."""
        await self._enter()
        self._begun += 1
        request, started = Request(self._begun), self._clock.monotonic()
        try:
            yield request
        finally:
            self._under_way -= 1
            self._learn(request, self._clock.monotonic() - started)
            self._wake()

    async def _enter(self) -> None:
        if self._under_way < self._limit and not self._waiting:
            self._under_way += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came while it was being cancelled: to the next
                self._under_way -= 1
                self._wake()
            raise

    def _wake(self) -> None:
        while self._waiting and self._under_way < self._limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._under_way += 1
                turn.set_result(None)

    def _learn(self, request: Request, seconds: float) -> None:
        if request.was_refused or seconds > self._slow:
            self._cut(request)
        elif request.was_answered:
            self._good += 1
            if self._good >= self._limit:
                self._limit, self._good = min(self._most, self._limit + 1), 0

    def _cut(self, request: Request) -> None:
        if request.number > self._cut_at:
            # From what was under way, this one included: a limit that nobody had reached says nothing.
            self._limit = max(1, min(self._limit, self._under_way + 1) // 2)
            self._good, self._cut_at = 0, self._begun


class Request:
    """One request, told about by whoever made it."""

    __slots__ = ("number", "was_answered", "was_refused")

    def __init__(self, number: int) -> None:
        self.number = number
        self.was_answered = self.was_refused = False

    def answered(self) -> None:
        """The store took it, or part of it, and answered."""
        self.was_answered = True

    def refused(self) -> None:
        """The store says that it has too much to do."""
        self.was_refused = True
