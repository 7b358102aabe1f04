"""A partition of the inbox for each day: attached before its first claim, emptied and dropped past the horizon.

What a day is, and which may go, is decided in the database, by its clock and the jobs' stored horizons
(`tidegate/migrations/versions/0004_inbox_upkeep.sql`). Each step is a transaction of its own that gives up soon rather
than hold claims up; what could not be done is left for the next round.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import NamedTuple

import asyncpg

from inbox.steps import step
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)

# The functions bound how long they wait for locks: half a second. ATTACH also looks through the default partition, and
# whoever claims there waits meanwhile: as long again.
_ATTACH = timedelta(seconds=1)
_STEP = timedelta(seconds=2)
# A day of a billion claims is looked through once, and no claim waits for it.
_SEARCH = timedelta(minutes=15)


class Attached(NamedTuple):
    """Days that got their partition now, and those that could not be had."""

    days: Sequence[date]
    left: Sequence[date]


async def attach_days(connection: Connection) -> Attached:
    """The days around today have partitions of their own, but for those that claims in the way did not let through.

    A day that already has rows in the default partition stays there: moving rows would make claims fail. Raises
    Misconfigured if the role may not do it: claims then go to the default partition, correct but slower.
    """
    missing = [row["day"] for row in await connection.fetch(_QUERIES["missing_days"])]
    attached: list[date] = []
    for place, day in enumerate(missing):
        try:
            async with step(connection, _ATTACH):
                is_new = await connection.fetchval(_QUERIES["attach_day"], day)
        except (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError):
            # The next day would hold claims up for as long again, and in vain.
            return Attached(attached, missing[place:])
        if is_new:
            attached.append(day)
    return Attached(attached, [])


async def days_past_horizon(connection: Connection) -> Sequence[date]:
    """Returns the days with a partition that are older than some job's horizon: they may be no longer needed."""
    return [row["day"] for row in await connection.fetch(_QUERIES["days_past_horizon"])]


async def empty_day(connection: Connection, day: date) -> bool:
    """True if the day's claims are gone: no job has to remember any of them, also none that arrived just now.

    Looking for one takes as long as it takes, and no claim waits for it.
    """
    try:
        async with step(connection, _STEP):
            is_watched = await connection.fetchval(_QUERIES["watch_day"], day)
        if not is_watched:
            return False
        async with step(connection, _SEARCH):
            return bool(await connection.fetchval(_QUERIES["empty_day"], day, timeout=_SEARCH.total_seconds()))
    except (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError):
        return False


async def drop_day(connection: Connection, day: date) -> bool:
    """True if the day's empty partition is gone, False if it is in use.

    Raises LockNotAvailableError if claims that are open stood in the way.
    """
    async with step(connection, _STEP):
        return bool(await connection.fetchval(_QUERIES["drop_day"], day))
