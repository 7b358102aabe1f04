"""What the entries of sequences hold: dead letters as a run sees them, and parked events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, NamedTuple
from uuid import UUID

from dlq.stored import StoredRecord, stored_record
from tidegate_kernel.event import ReplayId
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterRecord:
    """What a letter holds. `claim`: what it took in the inbox, by the database's day `claimed_on` at the latest."""

    record: StoredRecord
    topic_id: UUID
    claim: tuple[date, UUID] | None
    claimed_on: date
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


async def letters_of_run(connection: Connection, run: ReplayId, letters: Sequence[UUID]) -> Mapping[UUID, LetterRecord]:
    """Returns those of the letters that the run has yet to decide. Nobody changes what they hold until it has."""
    rows = await connection.fetch(_QUERIES["letters_of_run"], run, list(letters))
    return {row["id"]: _letter(row) for row in rows}


async def open_letters(connection: Connection, run: ReplayId, letters: Sequence[UUID]) -> Mapping[UUID, OpenLetter]:
    """Returns those of the letters that the run has yet to decide, without what they hold."""
    rows = await connection.fetch(_QUERIES["open_letters"], run, list(letters))
    return {row["id"]: OpenLetter(*list(row)[1:]) for row in rows}


async def bytes_of_events(connection: Connection, numbers: Sequence[int]) -> Mapping[int, int]:
    """Returns how many bytes parked events hold."""
    rows = await connection.fetch(_QUERIES["bytes_of_events"], list(numbers))
    return {row["id"]: row["bytes"] for row in rows}


async def lock_letters(connection: Connection, run: ReplayId, letters: Sequence[UUID]) -> Set[UUID]:
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


def _letter(row: Any) -> LetterRecord:
    claimed = row["claimed_id"]
    return LetterRecord(
        record=stored_record(row),
        topic_id=row["topic_id"],
        claim=None if claimed is None else (row["claimed_bucket"], claimed),
        claimed_on=row["claimed_on"],
        has_payload=row["has_payload"],
        correction=row["correction"],
        corrected_value=row["corrected_value"],
    )


def _parked(row: Any) -> ParkedRecord:
    claim = (row["claimed_bucket"], row["claimed_id"])
    return ParkedRecord(stored_record(row), claim, row["correction"], row["corrected_value"])
