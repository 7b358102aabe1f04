"""A step of upkeep: a short transaction of its own, beside claims that must not wait for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg

from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.postgres import Connection


@asynccontextmanager
async def step(connection: Connection, limit: timedelta) -> AsyncIterator[None]:
    """One transaction, each of whose statements is cancelled after `limit`.

    Raises Misconfigured, with the remedy, if the role may not do what the step does.
    """
    try:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL statement_timeout = {int(limit.total_seconds() * 1000)}")
            yield
    except asyncpg.InsufficientPrivilegeError as error:
        raise Misconfigured(
            f"the inbox cannot be kept ({error}); grant this role what a worker needs: "
            "'tidegate migrate --worker-role ROLE'"
        ) from error
