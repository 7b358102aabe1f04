"""Claims past the horizon leave the two parts of the inbox that are never dropped, a few pages at a time."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, NamedTuple, TypeAlias

import asyncpg

from inbox.steps import step
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)

Part: TypeAlias = Literal["default", "constant"]
PARTS: tuple[Part, ...] = ("default", "constant")

# About 8,700 claims: deleting them all takes some ten milliseconds, which is what a claim of one of them may wait.
_PAGES = 64
_STEP = timedelta(seconds=2)


class Swept(NamedTuple):
    """What one step of a sweep came to. `is_finished`: nothing is left to look at today."""

    removed: int
    is_finished: bool


async def sweep(connection: Connection, part: Part) -> Swept:
    """The next pages of `part` hold no claim past its job's horizon; one sweep a day goes through all of them."""
    try:
        async with step(connection, _STEP):
            row = await connection.fetchrow(_QUERIES["sweep"], part, _PAGES)
    except (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError):
        return Swept(0, is_finished=True)  # the next round goes on at the same page
    assert row is not None  # a function's result is one row
    return Swept(row["removed"], row["is_finished"])
