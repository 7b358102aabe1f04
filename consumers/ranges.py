"""Ranges that were begun: written on the position's row before they are applied, and applied again as they were begun.

A range holds as long as the position stands at its first offset: a settle ends it, and so does whoever moves the
position by hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate_kernel.errors import StaleOwner
from tidegate_kernel.event import Fence
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)


@dataclass(frozen=True, slots=True)
class Begun:
    """What was decided when the range was begun: the offsets of events that failed, and of repeats of earlier ones."""

    failed: frozenset[int]
    repeats: frozenset[int]


async def begun_range(connection: Connection, fence: Fence, *, next_offset: int) -> Begun | None:
    """In the caller's transaction: its position is locked; returns what was decided of this range, None if it is new.

    Raises StaleOwner where the position is another's, and where another range was begun there: read the row anew then.
    """
    row = await connection.fetchrow(_QUERIES["lock_range"], *fence)
    if row is None or row["range_end"] not in (None, next_offset):
        raise StaleOwner(
            f"{fence.topic}:{fence.partition} is not at offset {fence.next_offset} with this range any more"
        )
    return None if row["range_end"] is None else Begun(frozenset(row["range_failed"]), frozenset(row["range_repeats"]))


async def begin_range(
    connection: Connection, fence: Fence, *, next_offset: int, failed: Iterable[int], repeats: Iterable[int]
) -> Begun:
    """In the transaction of `begun_range`: from the fence's offset to `next_offset` (exclusive) is applied as one."""
    begun = Begun(frozenset(failed), frozenset(repeats))
    await connection.execute(_QUERIES["begin_range"], *fence, next_offset, sorted(begun.failed), sorted(begun.repeats))
    return begun
