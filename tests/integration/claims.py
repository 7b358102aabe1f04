"""Claims made by hand on a real Postgres, and the day that the database takes for today."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from uuid import UUID, uuid4

from consumers.positions import Position, Positions
from inbox.identity import ClaimKey
from inbox.store import claim, keep_horizon, register_job
from tidegate_kernel.event import LIVE, Fence, JobCode, TopicPartition
from tidegate_kernel.postgres import Connection, Pool

SILENCE_LIMIT = timedelta(seconds=30)


async def owner(pool: Pool, code: str = "notes", *, partition: int = 0, horizon: timedelta | None = None) -> Fence:
    """Returns the fence of a job's partition, taken over just now."""
    async with pool.acquire() as connection:
        job = await register_job(connection, service="tests", code=JobCode(code), claim_rule="v1")
        await keep_horizon(connection, job, horizon)
    positions, place = Positions(pool, job=job, run=LIVE, owner="tests"), TopicPartition("orders", partition)
    await positions.begin({place: Position(0, 0, UUID(int=7))})
    taken = await positions.take_over(place)
    assert taken is not None
    return positions.fence(place, taken)


def key(bucket: date) -> ClaimKey:
    return ClaimKey(bucket, uuid4())


async def take(pool: Pool, fence: Fence, keys: Sequence[ClaimKey], *, on: date | None = None) -> frozenset[int]:
    """Claims `keys`, as if it were the day `on`; returns the indexes of those that had been claimed before."""
    async with pool.acquire() as connection, connection.transaction():
        seen, _ = await claim(connection, fence, keys, silence_limit=SILENCE_LIMIT)
        if on is not None:
            ids = [each.id for each in keys]
            await connection.execute("UPDATE tidegate.inbox SET claimed_on = $1 WHERE id = ANY ($2)", on, ids)
        return seen


async def set_today(connection: Connection | Pool, today: date) -> None:
    """The database's clock for upkeep stands at `today`."""
    await connection.execute(
        f"CREATE OR REPLACE FUNCTION tidegate.today() RETURNS date LANGUAGE sql STABLE RETURN date '{today}'"
    )


async def partitions_of(connection: Connection | Pool, keys: Sequence[ClaimKey]) -> list[str | None]:
    """Where each claim stands, without the common beginning of the names; None for one that is gone."""
    rows = await connection.fetch("SELECT id, tableoid::regclass::text AS name FROM tidegate.inbox")
    by_id = {row["id"]: row["name"].rpartition("inbox_")[2] for row in rows}
    return [by_id.get(each.id) for each in keys]


async def days_of(connection: Connection | Pool) -> list[str]:
    """The days that have partitions of their own, by the ends of their names."""
    rows = await connection.fetch(
        "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = 'tidegate.inbox'::regclass"
    )
    names = (row["name"].rpartition("inbox_")[2] for row in rows)
    return sorted(name for name in names if name.isdigit())
