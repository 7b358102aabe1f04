"""The sequences of keys as a run works through them: dead letters and the events parked behind them, in their order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from dlq.parking import OrderKey, blocked_among, by_topic
from dlq.stored import StoredRecord, stored_record
from tidegate_kernel.event import JobId
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries("dlq")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterRecord:
    """What a letter holds. `claim` is what it has taken in the inbox. `corrected`: somebody has edited it."""

    record: StoredRecord
    topic_id: UUID
    claim: tuple[date, UUID] | None
    last_failed_at: datetime
    has_payload: bool
    correction: str | None
    corrected_value: bytes | None

    @property
    def current(self) -> StoredRecord:
        """The record as it is to be handled now."""
        return replace(self.record, value=self.corrected_value) if self.correction == "edit" else self.record


@dataclass(frozen=True, slots=True)
class ParkedRecord:
    """What a parked event holds, and its claim. `correction`: somebody has decided about its record meanwhile."""

    record: StoredRecord
    claim: tuple[date, UUID]
    correction: str | None
    corrected_value: bytes | None

    @property
    def current(self) -> StoredRecord:
        """The record as it is to be handled now."""
        return replace(self.record, value=self.corrected_value) if self.correction == "edit" else self.record


class OpenLetter(NamedTuple):
    """Where the record of a letter stands that a run has yet to decide, and how many bytes it holds."""

    offset: int
    topic_id: UUID
    partition: int
    bytes: int


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


async def letters_of_run(connection: Connection, run: int, letters: Sequence[UUID]) -> Mapping[UUID, LetterRecord]:
    """Returns those of the letters that the run has yet to decide. Nobody changes what they hold until it has."""
    rows = await connection.fetch(_QUERIES["letters_of_run"], run, list(letters))
    return {row["id"]: _letter(row) for row in rows}


async def open_letters(connection: Connection, run: int, letters: Sequence[UUID]) -> Mapping[UUID, OpenLetter]:
    """Returns those of the letters that the run has yet to decide, without what they hold."""
    rows = await connection.fetch(_QUERIES["open_letters"], run, list(letters))
    return {row["id"]: OpenLetter(*list(row)[1:]) for row in rows}


async def bytes_of_events(connection: Connection, numbers: Sequence[int]) -> Mapping[int, int]:
    """Returns how many bytes parked events hold."""
    rows = await connection.fetch(_QUERIES["bytes_of_events"], list(numbers))
    return {row["id"]: row["bytes"] for row in rows}


async def lock_letters(connection: Connection, run: int, letters: Sequence[UUID]) -> Set[UUID]:
    """Returns those of the letters that the run has yet to decide, locked until the caller's transaction ends."""
    rows = await connection.fetch(_QUERIES["lock_letters_of_run"], run, list(letters))
    return {row["id"] for row in rows}


async def letter_records(connection: Connection, letters: Sequence[UUID]) -> Mapping[UUID, LetterRecord]:
    """Returns what the letters hold, whoever has them. Nothing is locked."""
    rows = await connection.fetch(_QUERIES["letter_records"], list(letters))
    return {row["id"]: _letter(row) for row in rows}


async def in_order_of_places(connection: Connection, letters: Sequence[UUID]) -> Sequence[UUID]:
    """Returns the letters in the order in which a run takes them up; those that are gone are left out."""
    return [row["id"] for row in await connection.fetch(_QUERIES["letters_by_place"], list(letters))]


async def parked_records(connection: Connection, numbers: Sequence[int]) -> Mapping[int, ParkedRecord]:
    """Returns the records of parked events, whose keys the caller has locked."""
    rows = await connection.fetch(_QUERIES["parked_records"], list(numbers))
    return {row["id"]: _parked(row) for row in rows}


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


def _letter(row: Any) -> LetterRecord:
    claimed = row["claimed_id"]
    return LetterRecord(
        record=stored_record(row),
        topic_id=row["topic_id"],
        claim=None if claimed is None else (row["claimed_bucket"], claimed),
        last_failed_at=row["last_failed_at"],
        has_payload=row["has_payload"],
        correction=row["correction"],
        corrected_value=row["corrected_value"],
    )


def _parked(row: Any) -> ParkedRecord:
    claim = (row["claimed_bucket"], row["claimed_id"])
    return ParkedRecord(stored_record(row), claim, row["correction"], row["corrected_value"])


def _columns(keys: Collection[OrderKey]) -> tuple[list[str], list[UUID]]:
    return [key.topic for key in keys], [key.digest for key in keys]
