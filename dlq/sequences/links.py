"""What stands in a sequence, in which order; what is put there and taken out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from dlq.parking import OrderKey, blocked_among, by_topic
from tidegate_kernel.event import JobId
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)


class Link(NamedTuple):
    """One entry of a key's sequence: a dead letter, or a parked event by its number.

    `is_shared`: the letter blocks another key, too. `is_held_back`: the parked event also waits for another key, which
    is blocked.
    """

    letter: UUID | None
    parked: int | None
    turn: int
    offset: int
    topic_id: UUID
    partition: int
    is_shared: bool = False
    is_held_back: bool = False


async def limit_silence(connection: Connection, limit: timedelta) -> None:
    """Postgres ends the caller's transaction, and with it its locks, when its owner stays silent for `limit`."""
    await connection.execute(_QUERIES["limit_silence"], str(int(limit.total_seconds() * 1000)))


async def limit_waiting(connection: Connection, limit: timedelta) -> None:
    """A statement of the caller's transaction that waits longer than `limit` for somebody's lock fails."""
    await connection.execute(_QUERIES["limit_waiting"], str(int(limit.total_seconds() * 1000)))


async def lock_keys(connection: Connection, job: JobId, keys: Collection[OrderKey]) -> Collection[OrderKey]:
    """Those of `keys` that are blocked are the caller's until its transaction ends: nobody parks behind them then."""
    return (await blocked_among(connection, job, keys)).keys()


async def beginnings(
    connection: Connection, job: JobId, keys: Sequence[OrderKey], *, limit: int
) -> Mapping[OrderKey, Sequence[Link]]:
    """Returns the first entries of the keys' sequences. To decide by them, lock the keys in a statement before."""
    links: dict[OrderKey, list[Link]] = defaultdict(list)
    for topic, digests in by_topic(keys).items():
        for digest, *link in await connection.fetch(_QUERIES["beginnings"], job, topic, digests, limit):
            links[OrderKey(topic, digest)].append(Link(*link))
    return links


async def first_links(connection: Connection, job: JobId, keys: Sequence[OrderKey]) -> dict[OrderKey, Link]:
    """Returns what comes first in the sequences of those keys that have one."""
    return {key: links[0] for key, links in (await beginnings(connection, job, keys, limit=1)).items()}


async def keys_of(connection: Connection, letters: Sequence[UUID]) -> Mapping[UUID, Sequence[OrderKey]]:
    """Returns the keys that the letters block, nearly always one each; letters that block nothing are left out."""
    keys: dict[UUID, list[OrderKey]] = defaultdict(list)
    for row in await connection.fetch(_QUERIES["keys_of_letters"], list(letters)):
        keys[row["letter"]].append(OrderKey(row["topic"], row["key"]))
    return keys


async def loose_keys(connection: Connection, job: JobId) -> Sequence[OrderKey]:
    """Returns keys whose sequences begin with a parked event: a run was cut short behind a letter."""
    return [OrderKey(row["topic"], row["key"]) for row in await connection.fetch(_QUERIES["loose_keys"], job)]


class Failed(NamedTuple):
    """A parked event that failed, the letter that it has become, and its place in the sequence."""

    parked: int
    letter: UUID
    key: OrderKey
    turn: int
    offset: int


async def put_in_place(connection: Connection, job: JobId, failed: Sequence[Failed]) -> None:
    """Letters stand where their events were parked. Take the events out afterwards, so that their keys stay blocked.

    One that was there before its record was parked, and was done with because of that, is dead again.
    """
    if failed:
        await connection.execute(_QUERIES["reopen_letters"], [each.letter for each in failed])
        await connection.execute(
            _QUERIES["put_letters"],
            job,
            [each.letter for each in failed],
            *_columns([each.key for each in failed]),
            [each.turn for each in failed],
            [each.offset for each in failed],
        )


class TakenOut(NamedTuple):
    """`freed`: keys that nothing blocks any more. `behind`: those with events that waited for one of these."""

    freed: Sequence[OrderKey] = ()
    behind: Sequence[OrderKey] = ()


async def take_out(
    connection: Connection, job: JobId, *, letters: Sequence[UUID], events: Sequence[int], keys: Sequence[OrderKey]
) -> TakenOut:
    """Letters and parked events leave their sequences, which are those of `keys`, locked by the caller."""
    if letters:
        await connection.execute(_QUERIES["take_out_letters"], list(letters))
    if events:
        await connection.execute(_QUERIES["take_out_events"], job, list(events))
    freed: list[OrderKey] = []
    behind: list[OrderKey] = []
    for topic, digests in by_topic(keys).items():
        free = [row["key"] for row in await connection.fetch(_QUERIES["free_keys"], job, topic, digests)]
        waited = await connection.fetch(_QUERIES["keys_behind_all"], job, topic, free) if free else []
        freed += (OrderKey(topic, digest) for digest in free)
        behind += (OrderKey(topic, row["key"]) for row in waited)
    return TakenOut(freed, behind)


def _columns(keys: Collection[OrderKey]) -> tuple[list[str], list[UUID]]:
    return [key.topic for key in keys], [key.digest for key in keys]
