"""Two transactions whose statements begin in every order, on real Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import combinations

import asyncpg

from tidegate_kernel.errors import Transient
from tidegate_kernel.postgres import Connection, Pool

Step = Callable[[Connection], Awaitable[object]]
_DEADLINE_SECONDS = 10.0


def interleavings(first: int, second: int) -> Iterator[str]:
    """All orders in which so many steps of A and of B can begin."""
    for places in combinations(range(first + second), first):
        yield "".join("A" if place in places else "B" for place in range(first + second))


async def play(pool: Pool, schedule: str, a: Sequence[Step], b: Sequence[Step]) -> str:
    """The steps of each side run in a transaction of its own (the last one commits), begun in the order of `schedule`.

    A step that waits for a lock of the other side is left waiting, as it would be in life. What its side has to begin
    meanwhile begins when the lock is free. Returns the sides that Postgres rolled back to end a deadlock.
    """
    async with asyncio.timeout(_DEADLINE_SECONDS), pool.acquire() as first, pool.acquire() as second:
        sides = {"A": _Side(first, a), "B": _Side(second, b)}
        for each in sides.values():
            await each.start()
        for name in schedule:
            sides[name].owed += 1
            for each in sides.values():
                await each.go_on(pool)
        while any(each.owed for each in sides.values()):
            for each in sides.values():
                await each.go_on(pool)
        await asyncio.gather(*(each.end() for each in sides.values()))
        return "".join(name for name, each in sides.items() if each.has_collided)


class _Side:
    def __init__(self, connection: Connection, steps: Sequence[Step]) -> None:
        self._connection, self._steps, self._pid = connection, iter(steps), 0
        self.has_collided = False
        self.owed = 0
        """Steps whose turn has come and that have not begun."""
        self.at_work: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        self._pid = await self._connection.fetchval("SELECT pg_backend_pid()")
        # The server looks for a deadlock at once, not after a second.
        await self._connection.execute("BEGIN; SET LOCAL deadlock_timeout = '20ms'")
        self.at_work.set_result(None)

    async def go_on(self, pool: Pool) -> None:
        """What is owed has ended, or waits for a lock."""
        while await self._rests(pool) and self.owed:
            self.owed -= 1
            self.at_work = asyncio.ensure_future(self._take(next(self._steps)))

    async def end(self) -> None:
        """Its last step has ended."""
        await self.at_work

    async def _take(self, step: Step) -> None:
        if self.has_collided:
            return
        try:
            await step(self._connection)
        except (asyncpg.DeadlockDetectedError, Transient) as error:
            if "Deadlock" not in f"{type(error).__name__}: {error}":
                raise
            self.has_collided = True
            await self._connection.execute("ROLLBACK")

    async def _rests(self, pool: Pool) -> bool:
        """Returns once the step in hand has ended (True) or waits for the other side (False)."""
        while not self.at_work.done():
            if await pool.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", self._pid):
                return False
            await asyncio.sleep(0.001)  # a lock that is waited for tells nobody
        self.at_work.result()
        return True
