"""Letters back into Postgres, as they were."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from dlq.cause import cause_of
from dlq.importing.told import ToldLetter
from dlq.letters import Origin, header_name, letter_id, recorded_at, text_for_postgres
from dlq.states import LetterState
from tidegate_kernel.errors import Poison, Reason
from tidegate_kernel.event import JobId, Record
from tidegate_kernel.postgres import Connection, Pool
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)


@dataclass(frozen=True, slots=True)
class Restored:
    """A letter, and what has become of it. `decided_at` is None for one that stands."""

    letter: ToldLetter
    state: LetterState
    decided_at: datetime | None = None


async def known_letters(database: Connection | Pool, letters: Collection[UUID]) -> frozenset[UUID]:
    """Returns which of `letters` the database has."""
    return frozenset(row["id"] for row in await database.fetch(_QUERIES["known_letters"], list(letters)))


async def restore_letters(connection: Connection, job: JobId, letters: Sequence[Restored]) -> frozenset[UUID]:
    """In the caller's transaction: the rows of `letters` are written, but for those that are there; returns which were.

    What the database has is the truth, and newer than what its topic tells: such a row stays as it is.
    """
    columns = map(list, zip(*(_columns(one) for one in letters), strict=True))
    headers = [
        (place, header_name(name), value) for place, one in enumerate(letters, 1) for name, value in one.letter.headers
    ]
    rows = await connection.fetch(
        _QUERIES["restore_letters"], job, *columns, *([header[i] for header in headers] for i in range(3))
    )
    return frozenset(row["id"] for row in rows)


def misfit_letter(origin: Origin, record: Record, topic_id: UUID, why: str, *, now: datetime) -> Restored:
    """A record of the DLQ topic that tells nothing, as a letter of its own, under the DLQ topic's coordinates."""
    place = f"{record.topic}:{record.partition}:{record.offset}"
    error = Poison(f"no dead letter of job {origin.job_code!r} at {place}: {why}", reason=Reason.INVALID_ENVELOPE)
    cause = cause_of(error, error.reason, handler="import")
    # Its own time where it has one: a second import must write the same row.
    at = recorded_at(record) or now
    letter = ToldLetter(
        id=letter_id(origin, topic_id, record),
        topic=record.topic,
        topic_id=topic_id,
        partition=record.partition,
        offset=record.offset,
        timestamp=record.timestamp,
        key=record.key,
        value=record.value,
        headers=record.headers,
        event_id=None,
        event_type=None,
        claim=None,
        tenant="",
        brand="",
        correlation_id=None,
        traceparent=None,
        reason=error.reason,
        error_class=cause.error_class,
        error_message=cause.message,
        stack=cause.stack,
        fingerprint=cause.fingerprint,
        handler="import",
        service_version=origin.service_version,
        attempts=1,
        occurrences=1,
        replay_count=0,
        backfill=False,
        first_failed_at=at,
        last_failed_at=at,
        has_payload=True,
        omitted=None,
    )
    return Restored(letter, LetterState.QUARANTINED)


def _columns(one: Restored) -> tuple[Any, ...]:
    """In the order of `restore_letters`."""
    letter = one.letter
    bucket, claimed = (None, None) if letter.claim is None else letter.claim
    return (
        letter.id,
        *(text_for_postgres(letter.topic), letter.topic_id, letter.partition, letter.offset),
        recorded_at(letter),
        letter.key,
        letter.value,
        _optional(letter.event_id),
        _optional(letter.event_type),
        bucket,
        claimed,
        text_for_postgres(letter.tenant),
        text_for_postgres(letter.brand),
        _optional(letter.correlation_id),
        _optional(letter.traceparent),
        letter.reason,
        text_for_postgres(letter.error_class),
        text_for_postgres(letter.error_message),
        text_for_postgres(letter.stack, limit=4096),
        text_for_postgres(letter.fingerprint),
        text_for_postgres(letter.handler),
        text_for_postgres(letter.service_version),
        letter.attempts,
        letter.occurrences,
        letter.replay_count,
        letter.backfill,
        letter.first_failed_at,
        letter.last_failed_at,
        letter.has_payload,
        one.state,
        one.decided_at,
    )


def _optional(text: str | None) -> str | None:
    return None if text is None else text_for_postgres(text)
