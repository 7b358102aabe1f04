"""Parking: later events of a key wait behind its dead letter, so that the order of the key holds past a failure.

A key has a *sequence*: its dead letters and the events parked behind them, in the order in which they were kept. While
anything is left of it, its row in `tidegate.blocked_key` exists. Whoever adds to a sequence or takes from it holds that
row FOR UPDATE in the transaction that decides, and looks at the sequence in a statement after the one that took the
lock: so a consumer and a replay of one key see each other's work whole, or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

from dlq.letters import recorded_at, text_for_postgres
from tidegate_kernel.event import JobId, Record, Scope
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries("dlq")
# What somebody decided about a letter stands, also when its record is read again and fails: it blocks nothing any more.
_DECIDED = ("already_processed", "superseded", "discarded")


class OrderKey(NamedTuple):
    """What has an order: the events of a job with this key in this topic, whatever their tenant.

    A digest, since a key may be longer than an index of Postgres takes.
    """

    topic: str
    digest: UUID


def record_key(record: Record) -> OrderKey | None:
    """The key that the record itself has: also that of a record which cannot be decoded. None: it has no order."""
    return None if record.key is None else OrderKey(record.topic, _digest(b"record", record.key))


def named_key(topic: str, key: bytes) -> OrderKey:
    """A key that the job has read from an event."""
    return OrderKey(topic, _digest(b"named", key))


def _digest(kind: bytes, key: bytes) -> UUID:
    return UUID(bytes=blake2b(key, digest_size=16, person=kind).digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """An event that has to wait in the sequence of `key`. `waits_for`: another key that blocks it too."""

    record: Record
    topic_id: UUID
    key: OrderKey
    waits_for: OrderKey | None
    event_id: str
    event_type: str
    scope: Scope
    claim: tuple[date, UUID]


class Blocking(NamedTuple):
    """A dead letter that blocks a key, and the offset of its record."""

    letter: UUID
    key: OrderKey
    offset: int


async def blocked_among(connection: Connection, job: JobId, keys: Collection[OrderKey]) -> Mapping[OrderKey, int]:
    """Returns those of `keys` that are blocked, locked until the caller's transaction ends, with how many are parked.

    Call it in a statement after the claim: the claim's own snapshot is older than the ids it waited for. A key that a
    replay is just emptying is waited for: it is free if that commits.
    """
    topics = list({key.topic for key in keys})
    rows = await connection.fetch(_QUERIES["lock_blocked_keys"], job, topics, [key.digest for key in keys])
    blocked = {OrderKey(row["topic"], row["key"]): row["parked"] for row in rows}
    # With several topics a key that is wanted of one is found in another, too.
    return blocked if len(topics) == 1 else {key: blocked[key] for key in keys if key in blocked}


async def sequences_ahead(
    connection: Connection, job: JobId, earliest: Mapping[OrderKey, int], *, topic_id: UUID, partition: int
) -> Mapping[OrderKey, int]:
    """Returns the first offset in the sequence of each locked key whose sequence comes after its offset in `earliest`.

    Such a sequence stands in this partition as a whole, behind records that are only being read now: its letters were
    imported into a database whose job begins anew. What is before it has nothing to wait for.
    """
    columns = (*_columns(earliest.keys()), list(earliest.values()))
    rows = await connection.fetch(_QUERIES["sequences_ahead"], job, *columns, topic_id, partition)
    return {OrderKey(row["topic"], row["key"]): row["starts_at"] for row in rows}


async def parked_now(connection: Connection, job: JobId, key: OrderKey) -> tuple[int, int]:
    """Returns how many events are parked behind dead letters of the key, and of the whole job."""
    row = await connection.fetchrow(_QUERIES["parked_now"], job, *key)
    return (0, 0) if row is None else (row["of_key"], row["of_job"])


async def decided_offsets(
    connection: Connection, job: JobId, topic_id: UUID, records: Sequence[Record]
) -> frozenset[int]:
    """Returns which of `records` (of one partition, in order) have letters that somebody has decided about for good."""
    first, last = records[0], records[-1]
    place = (first.topic, topic_id, first.partition, first.offset, last.offset)
    rows = await connection.fetch(_QUERIES["decided_letters"], job, *place, _DECIDED)
    return frozenset(row["offset"] for row in rows)


async def park(connection: Connection, job: JobId, letters: Sequence[Blocking], events: Sequence[Parked]) -> None:
    """In the caller's transaction: the keys of `letters` (kept already) are blocked, and `events` wait behind them.

    A letter or event that is in the sequence already keeps its place there.
    """
    keys = {letter.key for letter in letters} | {event.key for event in events}
    rows = await connection.fetch(_QUERIES["block_keys"], job, *_columns(keys))
    turns = {OrderKey(row["topic"], row["key"]): row["turns"] for row in rows}
    if letters:
        await connection.execute(
            _QUERIES["add_letters"],
            job,
            [letter.letter for letter in letters],
            *_columns([letter.key for letter in letters]),
            [turns[letter.key] for letter in letters],
            [letter.offset for letter in letters],
        )
    if events:
        await connection.execute(_QUERIES["add_events"], job, *_event_columns(events, turns))


def by_topic(keys: Iterable[OrderKey]) -> Mapping[str, Sequence[UUID]]:
    """The digests of the keys by topic, nearly always one."""
    digests: dict[str, list[UUID]] = {}
    for topic, digest in keys:
        digests.setdefault(topic, []).append(digest)
    return digests


def _columns(keys: Collection[OrderKey]) -> tuple[list[str], list[UUID]]:
    return [key.topic for key in keys], [key.digest for key in keys]


def _event_columns(events: Sequence[Parked], turns: Mapping[OrderKey, int]) -> list[list[object]]:
    """Column arrays in the order of `add_events`; the events' headers follow flat, with their places in the batch."""
    rows = [(*_row(event), turns[event.key]) for event in events]
    headers = [
        (place, name.encode("utf-8", "backslashreplace"), value)
        for place, event in enumerate(events, 1)
        for name, value in event.record.headers
    ]
    return [*map(list, zip(*rows, strict=True)), *([header[i] for header in headers] for i in range(3))]


def _row(event: Parked) -> tuple[object, ...]:
    record = event.record
    return (
        record.topic,
        event.key.digest,
        None if event.waits_for is None else event.waits_for.digest,
        event.topic_id,
        record.partition,
        record.offset,
        recorded_at(record),
        record.key,
        record.value,
        text_for_postgres(event.event_id) or None,
        text_for_postgres(event.event_type),
        text_for_postgres(event.scope.tenant),
        text_for_postgres(event.scope.brand),
        *event.claim,
    )
