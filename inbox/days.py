"""One partition of the inbox for each day, attached before the day's first claim arrives."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta

import asyncpg

from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)

# Claims wait behind the attaching transaction, so it gives up quickly; the next round tries again.
_LOCK_TIMEOUT = "500ms"
_AHEAD = timedelta(days=7)
# Redelivered and late events of the recent past still get a small index.
_BEHIND = timedelta(days=2)


async def attach_days(connection: Connection, today: date) -> Sequence[date]:
    """Attaches the missing days around `today`; returns those attached. What it cannot lock now is left for later.

    A day that already has rows in the default partition stays there: moving rows would make claims fail. Raises
    Misconfigured if the role may not make tables: claims then go to the default partition, correct but slower.
    """
    attached = []
    for row in await connection.fetch(_QUERIES["missing_days"], today - _BEHIND, today + _AHEAD):
        try:
            if await _attach(connection, row["day"]):
                attached.append(row["day"])
        except asyncpg.InsufficientPrivilegeError as error:
            raise Misconfigured(
                f"the inbox's days cannot be attached ({error}); let the role own tidegate.inbox"
            ) from error
        except asyncpg.LockNotAvailableError:
            break  # the next day would hold claims up for as long again, and in vain
    return attached


async def _attach(connection: Connection, day: date) -> bool:
    """False if the day has its rows elsewhere by now. Raises LockNotAvailableError if claims are in the way."""
    name = f"tidegate.inbox_{day:%Y%m%d}"  # from a date: nothing to escape
    try:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
            await connection.execute(f"CREATE TABLE {name} (LIKE tidegate.inbox INCLUDING ALL)")
            await connection.execute(
                f"ALTER TABLE tidegate.inbox ATTACH PARTITION {name} "
                f"FOR VALUES FROM ('{day}') TO ('{day + timedelta(days=1)}')"
            )
    except (
        # What the later of two CREATE TABLE of one name is told, by how close they were: of the table, of its row type,
        # of the catalogue's own index.
        asyncpg.DuplicateTableError,
        asyncpg.DuplicateObjectError,
        asyncpg.UniqueViolationError,
        asyncpg.CheckViolationError,
    ):
        # Made by another worker at this moment, or a row of that day has just arrived in DEFAULT.
        return False
    return True
