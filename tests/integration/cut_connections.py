"""A pool whose connections meet their end at a statement of one's choice: broken behind it, or held back before it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

from tidegate_kernel.postgres import Pool

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

Answer = TypeVar("Answer")


class Cut:
    """What befalls the statements of a pool. Counts them from 1, BEGIN and COMMIT too, once it is armed."""

    def __init__(self, at: int = 0, *, holds: bool = False, for_good: bool = False) -> None:
        self._at, self._holds, self._for_good = at, holds, for_good
        self.is_armed = False
        self.statements = 0
        self.reached = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def pass_on(self, connection: Connection, statement: Awaitable[Answer]) -> Answer:
        if not self.is_armed:
            return await statement
        self.statements += 1
        is_here = self.statements == self._at
        if is_here and self._holds:
            self.reached.set()
            await self.may_go_on.wait()
            return await statement
        if self.reached.is_set() and self._for_good:
            connection.terminate()
        answer = await statement
        if is_here:
            self.reached.set()
            connection.terminate()
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        return answer


@asynccontextmanager
async def cut_pool(dsn: str, cut: Cut, *, silence_limit_ms: int = 60_000) -> AsyncIterator[Pool]:
    """Its connections are subject to `cut`: the server has done what was asked, and the answer is lost."""

    class Subject(Connection):
        async def execute(self, *args: Any, **more: Any) -> Any:
            return await cut.pass_on(self, super().execute(*args, **more))

        async def fetch(self, *args: Any, **more: Any) -> Any:
            return await cut.pass_on(self, super().fetch(*args, **more))

        async def fetchrow(self, *args: Any, **more: Any) -> Any:
            return await cut.pass_on(self, super().fetchrow(*args, **more))

        async def fetchval(self, *args: Any, **more: Any) -> Any:
            return await cut.pass_on(self, super().fetchval(*args, **more))

        async def reset(self, **more: Any) -> None:
            """Between two borrowers nothing is left behind that these tests would see; it would only be counted."""

    limits = {"idle_in_transaction_session_timeout": str(silence_limit_ms)}
    pool: Pool = await asyncpg.create_pool(
        dsn, min_size=0, max_size=4, connection_class=Subject, server_settings=limits
    )
    try:
        yield pool
    finally:
        pool.terminate()
