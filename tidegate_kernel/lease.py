"""The right to do something that one process at a time should do, until it expires. All times are the database's.

`keep` renews it for as long as its block lasts, and cancels the block before anybody else could get the lease. What
must not happen twice, even if this process was frozen meanwhile, names the token in its statement and locks the
lease's row FOR SHARE: the token grows with every holder.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import NewType

from tidegate_kernel.errors import LeaseLost, Transient
from tidegate_kernel.postgres import Pool, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)

Token = NewType("Token", int)
"""Grows with each holder of a lease, and never starts again."""

# The block is cancelled this much of the time to live before the end: it has to come to rest, too.
_MARGIN = 1 / 6


class Lease:
    """A lease by its name, which is unique in the database, as `holder` asks for it."""

    def __init__(self, pool: Pool, name: str, *, holder: str, ttl: timedelta) -> None:
        self._pool, self._name, self._holder = pool, name, holder
        self._ttl = ttl.total_seconds()

    @property
    def name(self) -> str:
        return self._name

    async def take(self) -> Token | None:
        """The lease is ours for its time to live; None while it is another's. Raises Transient.

        Waits for nobody. One that this very holder has left behind is taken like any other, after its end.
        """
        token = await self._ask(_QUERIES["take_lease"], self._holder, self._ttl)
        return None if token is None else Token(token)

    async def renew(self, token: Token) -> None:
        """It lasts its time to live from now. Raises LeaseLost, Transient."""
        if await self._ask(_QUERIES["renew_lease"], token, self._ttl) is None:
            raise LeaseLost(f"lease {self._name!r}: it expired, or has another holder; token {token} is worth nothing")

    async def release(self, token: Token) -> None:
        """Anybody may take it at once. Changes nothing where it is not ours any more. Raises Transient."""
        await self._ask(_QUERIES["release_lease"], token)

    @asynccontextmanager
    async def keep(self, token: Token) -> AsyncIterator[None]:
        """Renewed three times in its time to live while the block lasts, and released after it.

        The block is cancelled, and LeaseLost raised, before it ends unrenewed, or as soon as it is another's.
        """
        limit = asyncio.timeout(self._ttl * (1 - _MARGIN))
        try:
            async with limit:
                renewal = asyncio.create_task(self._renew(token, limit), name=f"lease-{self._name}")
                try:
                    yield
                finally:
                    renewal.cancel()
                    await asyncio.wait([renewal])
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise LeaseLost(f"lease {self._name!r} could not be renewed in time") from error
        finally:
            await self._release_in_time(token)

    async def _renew(self, token: Token, limit: asyncio.Timeout) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._ttl / 3)
            asked = loop.time()
            try:
                await self.renew(token)
            except LeaseLost:
                limit.reschedule(loop.time())
                return
            except Transient:
                continue  # until the limit
            # From when it was asked: the answer may have been long on its way.
            limit.reschedule(asked + self._ttl * (1 - _MARGIN))

    async def _release_in_time(self, token: Token) -> None:
        try:
            async with asyncio.timeout(self._ttl / 3):
                await self.release(token)
        except (Transient, TimeoutError):
            return  # it ends by itself

    async def _ask(self, query: str, *arguments: object) -> int | None:
        with translated_errors(f"lease {self._name!r}"):
            async with self._pool.acquire(timeout=10) as connection:
                answer: int | None = await connection.fetchval(query, self._name, *arguments)
        return answer
