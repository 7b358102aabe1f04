"""Claims: the memory of which events a job has taken. Everything here runs in statements that carry the fence."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

import asyncpg

from inbox.identity import ClaimKey
from tidegate_kernel.errors import Misconfigured, StaleOwner
from tidegate_kernel.event import Fence, JobCode, JobId
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)


class Claimed(NamedTuple):
    """`duplicates`: indexes of keys that had been claimed before. `is_any_blocked`: some order key of the job is."""

    duplicates: frozenset[int]
    is_any_blocked: bool


async def claim(
    connection: Connection,
    fence: Fence,
    keys: Sequence[ClaimKey],
    *,
    silence_limit: timedelta,
    asks_for_blocked: bool = False,
) -> Claimed:
    """In the caller's transaction: its position is locked and `keys` (distinct) are claimed.

    A key that another open transaction claims is waited for: it becomes a duplicate if that commits, ours if it rolls
    back. With `asks_for_blocked` it is also told whether any order key of the job is blocked, as of when all were
    claimed. Postgres ends the transaction when its owner stays silent for `silence_limit`. Raises StaleOwner if the
    fence does not hold.
    """
    buckets, ids = _columns(keys)
    limit = str(int(silence_limit.total_seconds() * 1000))
    row = await connection.fetchrow(_QUERIES["claim_events"], *fence, buckets, ids, limit, asks_for_blocked)
    duplicates = _duplicates(fence, row)
    return Claimed(duplicates, row is not None and row["is_blocked"])


async def claim_and_settle(
    connection: Connection, fence: Fence, keys: Sequence[ClaimKey], *, next_offset: int
) -> frozenset[int]:
    """The position stands at `next_offset` and `keys` (distinct) are claimed, both or neither.

    For work whose effects are already out and harmless to repeat. Returns the indexes of keys that had been claimed
    before; raises as `claim`.
    """
    buckets, ids = _columns(keys)
    row = await connection.fetchrow(_QUERIES["claim_and_settle"], *fence, buckets, ids, next_offset)
    return _duplicates(fence, row)


class ByHand(NamedTuple):
    """Indexes of keys: those that somebody else has, and those that nobody had."""

    others: frozenset[int]
    new: frozenset[int]


async def claim_by_hand(
    connection: Connection, job: JobId, keys: Sequence[ClaimKey], *, claimed_on: Sequence[date | None]
) -> ByHand:
    """In the caller's transaction: `keys` (distinct) are claimed, but for those that somebody else has.

    `claimed_on`: the day of which the claim of the letter is at the latest; None where it has none under that key.
    A claim that its letter has outlived is made again, unless a later delivery of the event did so, and was handled.
    Whoever does not handle an event whose claim is new rolls back: the claim would be taken for somebody else's.
    """
    buckets, ids = _columns(keys)
    made = await connection.fetch(_QUERIES["claim_again"], job, buckets, ids)
    if len(made) == len(keys):
        return ByHand(frozenset(), frozenset(range(len(keys))))
    taken = {(row["bucket"], row["id"]) for row in made}
    old = [index for index, key in enumerate(keys) if (key.bucket, key.id) not in taken]
    chosen = ([column[index] for index in old] for column in (buckets, ids, claimed_on))
    rows = await connection.fetch(_QUERIES["claims_of_others"], job, *chosen)
    return ByHand(frozenset(old[row["place"] - 1] for row in rows), frozenset(range(len(keys))).difference(old))


async def claimed_by_others(
    connection: Connection, job: JobId, keys: Sequence[ClaimKey], *, claimed_on: Sequence[date | None]
) -> ByHand:
    """Returns the `others` of `claim_by_hand`, as of now, and claims nothing, so that none is `new`."""
    buckets, ids = _columns(keys)
    rows = await connection.fetch(_QUERIES["claims_of_others"], job, buckets, ids, list(claimed_on))
    return ByHand(frozenset(row["place"] - 1 for row in rows), frozenset())


async def claim_for_letters(
    connection: Connection, job: JobId, keys: Sequence[ClaimKey], *, made_on: Sequence[date]
) -> frozenset[int]:
    """In the caller's transaction: `keys` (distinct) are claimed as if that had been done on the days `made_on`.

    For dead letters that are brought back with the claims they had. Returns the indexes of keys that are claimed
    already; one that another open transaction claims is waited for.
    """
    buckets, ids = _columns(keys)
    made = await connection.fetch(_QUERIES["claim_for_letters"], job, buckets, ids, list(made_on))
    taken = {(row["bucket"], row["id"]) for row in made}
    return frozenset(index for index, key in enumerate(keys) if (key.bucket, key.id) not in taken)


async def register_job(connection: Connection, *, service: str, code: JobCode, claim_rule: str) -> JobId:
    """Returns the job's number, made at its first start.

    Raises Misconfigured if the job was first started under another claim rule: a change would forget old claims.
    """
    row = await connection.fetchrow(_QUERIES["job_number"], service, code, 1, claim_rule)
    assert row is not None  # an INSERT … RETURNING with DO UPDATE always answers
    if row["claim_rule"] != claim_rule:
        raise Misconfigured(
            f"job {code!r}: its claims were made under the rule {row['claim_rule']!r}, now it declares {claim_rule!r}; "
            "old claims would be forgotten: restore its global_ids and event_time_is_immutable, "
            "or give the job a new code"
        )
    return JobId(row["id"])


async def keep_horizon(connection: Connection, job: JobId, horizon: timedelta | None) -> None:
    """Claims of the job are kept for `horizon` after they were made, in whole days; None: for ever."""
    days = None if horizon is None else -(-horizon // timedelta(days=1))
    await connection.execute(_QUERIES["keep_horizon"], job, days)


async def claims_since(connection: Connection, job: JobId) -> datetime | None:
    """Returns since when every claim of the job is still there; None if none was ever forgotten."""
    day: date | None = await connection.fetchval(_QUERIES["claims_since"], job)
    return None if day is None else datetime(day.year, day.month, day.day, tzinfo=UTC)


async def find_job(connection: Connection, *, service: str, code: JobCode) -> JobId | None:
    """Returns the job's number, or None if it never started."""
    number = await connection.fetchval(_QUERIES["find_job"], service, code, 1)
    return None if number is None else JobId(number)


def _columns(keys: Sequence[ClaimKey]) -> tuple[list[object], list[object]]:
    return [key.bucket for key in keys], [key.id for key in keys]


def _duplicates(fence: Fence, row: asyncpg.Record | None) -> frozenset[int]:
    if row is None or not row["fenced"]:
        raise StaleOwner(
            f"{fence.topic}:{fence.partition} is not at offset {fence.next_offset} under epoch {fence.epoch} any more"
        )
    return frozenset(place - 1 for place in row["duplicates"])
