"""Dead letters: the rows in Postgres and, through the outbox, the records of the job's DLQ topic.

The row is the dead letter. It is written in the transaction that settles the batch, so no offset passes a record that
was neither handled nor kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from dlq.cause import Cause, cause_of
from dlq.envelope import Notice, Place, dead_letter_record
from tidegate_kernel.errors import Reason
from tidegate_kernel.event import NO_SCOPE, JobId, Record, Scope
from tidegate_kernel.outbox import enqueue
from tidegate_kernel.postgres import Connection, translated_errors
from tidegate_kernel.queries import load_queries
from tidegate_kernel.source import Outgoing

_QUERIES = load_queries("dlq")
# Ours alone; a change of it, or of `letter_id`, would make every re-read record a second letter.
_NAMESPACE = UUID("6f1d6f0e-5a0b-4b0c-9d3e-7469646567a1")
_LOCK = 0x7469_6465  # "tide"; with the job's number it is a lock of ours
_NO_CLAIM = (date.min, UUID(int=0))
_MAX_TEXT = 1000
_MAX_INT4 = 2**31 - 1
_LAST_MS = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What all dead letters of a job's consumer have in common.

    `generation` tells a rebuild's letters from the live consumer's. `include_error_messages` also keeps the texts of
    errors that are not Tidegate's, which may quote the record.
    """

    job: JobId
    job_code: str
    service: str
    group: str
    service_version: str
    dlq_topic: str
    backfill: bool = False
    generation: int = 1
    include_error_messages: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A record that a job could not handle, and why. `claim` is the (bucket, id) that the record keeps in the inbox.

    `has_payload` is False where the client handed over nothing but the record's place.
    """

    record: Record
    topic_id: UUID
    reason: Reason
    error: BaseException
    attempts: int = 1
    handler: str = ""
    event_id: str | None = None
    event_type: str | None = None
    scope: Scope = NO_SCOPE
    correlation_id: str | None = None
    traceparent: str | None = None
    claim: tuple[date, UUID] | None = None
    has_payload: bool = True


def letter_id(origin: Origin, topic_id: UUID, record: Record) -> UUID:
    """The letter's id: the same whenever this job's generation reads this record, another for everything else."""
    parts = (origin.service, origin.job_code, str(origin.generation), record.topic)
    # The lengths keep ("ab", "c") and ("a", "bc") apart.
    spelled = "".join(f"{len(part)}:{part}" for part in parts)
    return uuid5(_NAMESPACE, f"{spelled}{topic_id}:{record.partition}:{record.offset}")


async def record_dead_letters(
    connection: Connection, origin: Origin, failures: Sequence[Failure], now: datetime
) -> Mapping[int, UUID]:
    """The letters' rows and their outbox records are written, in the caller's transaction; two round trips in all.

    Returns the letters by the offsets of their records, which are of one partition.

    A letter that exists (same job and coordinates) gains an occurrence and its newest error, and a resolved one is
    dead again; its record is published again under the same id. So does, in a backfill, a letter of the same event at
    other coordinates: live, the claim keeps a duplicate from failing again. A letter that was erased stays as it is and
    is not among those that are returned. Raises Transient if Postgres or the road to it failed; nothing in a record or
    an error can make it fail.
    """
    if not failures:
        return {}
    letters = _letters(origin, failures)
    with translated_errors(f"dead letters of job {origin.job_code!r}"):
        if origin.backfill:
            letters = await _at_their_events(connection, origin, letters)
        rows = await connection.fetch(_QUERIES["record_letters"], *_arguments(origin, letters, now))
        absent = [letter.id for letter in letters if not letter.failure.has_payload]
        if absent:
            await connection.execute(_QUERIES["mark_without_payload"], absent)
    kept = {row["id"]: _kept(row) for row in rows}
    letters = [letter for letter in letters if letter.id in kept]
    await enqueue(connection, [_outgoing(origin, letter, kept[letter.id]) for letter in letters], kind="dead_letter")
    return {letter.failure.record.offset: kept[letter.id].id for letter in letters}


class _Place(NamedTuple):
    """Where the record of a letter stands; by it a letter is found again."""

    topic: str
    topic_id: UUID
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Letter:
    id: UUID
    place: _Place
    failure: Failure
    cause: Cause


class _Kept(NamedTuple):
    """What the row holds after the write: an earlier failure of the same record counts too."""

    id: UUID
    first_failed_at: datetime
    last_failed_at: datetime
    occurrences: int
    replay_count: int
    backfill: bool
    event_id: str | None
    event_type: str | None
    claim: tuple[date, UUID] | None


def _kept(row: Any) -> _Kept:
    return _Kept(
        row["letter_id"],
        row["first_failed_at"],
        row["last_failed_at"],
        row["occurrences"],
        row["replay_count"],
        row["backfill"],
        row["event_id"],
        row["event_type"],
        None if row["claimed_id"] is None else (row["claimed_bucket"], row["claimed_id"]),
    )


def _letters(origin: Origin, failures: Iterable[Failure]) -> list[_Letter]:
    """One letter per record in the records' order; of two failures of one record the later counts."""
    letters: dict[UUID, _Letter] = {}
    for failure in failures:
        key = letter_id(origin, failure.topic_id, failure.record)
        cause = cause_of(
            failure.error,
            failure.reason,
            handler=failure.handler,
            include_foreign_message=origin.include_error_messages,
        )
        record = failure.record
        place = _Place(record.topic, failure.topic_id, record.partition, record.offset)
        letters[key] = _Letter(key, place, failure, cause)
    return list(letters.values())


async def _at_their_events(connection: Connection, origin: Origin, letters: Sequence[_Letter]) -> list[_Letter]:
    """The letters, with the coordinates of those that already have their events' claims."""
    claims = [letter.failure.claim for letter in letters if letter.failure.claim is not None]
    if not claims:
        return list(letters)
    # Two lanes that meet one event in two partitions at once would not see each other's letter.
    await connection.execute(_QUERIES["lock_letters"], _LOCK, origin.job)
    rows = await connection.fetch(_QUERIES["letters_of_claims"], origin.job, *map(list, zip(*claims, strict=True)))
    known = {
        (row["claimed_bucket"], row["claimed_id"]): _Place(
            row["topic"], row["topic_id"], row["partition"], row["offset"]
        )
        for row in rows
    }
    moved = [replace(letter, place=known.get(letter.failure.claim or _NO_CLAIM, letter.place)) for letter in letters]
    # One statement cannot touch a row twice.
    return list({letter.place: letter for letter in moved}.values())


def _outgoing(origin: Origin, letter: _Letter, kept: _Kept) -> Outgoing:
    failure, cause, place = letter.failure, letter.cause, letter.place
    notice = Notice(
        id=kept.id,
        place=Place(place.topic, place.partition, place.offset),
        topic_id=place.topic_id,
        claim=kept.claim,
        job=origin.job_code,
        group=origin.group,
        event_id=kept.event_id if failure.event_id is None else failure.event_id,
        event_type=kept.event_type if failure.event_type is None else failure.event_type,
        reason=failure.reason,
        error_class=cause.error_class,
        error_message=cause.message,
        stack=cause.stack,
        fingerprint=cause.fingerprint,
        attempts=failure.attempts,
        occurrences=kept.occurrences,
        first_failed_at=kept.first_failed_at,
        last_failed_at=kept.last_failed_at,
        correlation_id=failure.correlation_id,
        traceparent=failure.traceparent,
        tenant=failure.scope.tenant,
        brand=failure.scope.brand,
        handler=failure.handler,
        service_version=origin.service_version,
        replay_count=kept.replay_count,
        backfill=kept.backfill,
        has_payload=failure.has_payload,
    )
    return dead_letter_record(notice, failure.record, topic=origin.dlq_topic)


def _arguments(origin: Origin, letters: Sequence[_Letter], now: datetime) -> list[Any]:
    """Column arrays in the order of `record_letters`; a letter's headers follow flat, with its place in the batch."""
    columns = zip(*(_columns(letter) for letter in letters), strict=True)
    headers = [
        (place, header_name(name), value)
        for place, letter in enumerate(letters, 1)
        for name, value in letter.failure.record.headers
    ]
    constants = (origin.job, origin.backfill, text_for_postgres(origin.service_version), now)
    return [*constants, *map(list, columns), *([header[i] for header in headers] for i in range(3))]


def _columns(letter: _Letter) -> tuple[Any, ...]:
    failure, record, cause = letter.failure, letter.failure.record, letter.cause
    bucket, claimed = failure.claim if failure.claim is not None else (None, None)
    return (
        letter.id,
        *letter.place,
        recorded_at(record),
        record.key,
        record.value,
        _optional_text(failure.event_id),
        _optional_text(failure.event_type),
        bucket,
        claimed,
        text_for_postgres(failure.scope.tenant),
        text_for_postgres(failure.scope.brand),
        _optional_text(failure.correlation_id),
        _optional_text(failure.traceparent),
        str(failure.reason),
        text_for_postgres(cause.error_class),
        text_for_postgres(cause.message),
        text_for_postgres(cause.stack, limit=4096),
        cause.fingerprint,
        text_for_postgres(failure.handler),
        min(failure.attempts, _MAX_INT4),
    )


def text_for_postgres(text: str, *, limit: int = _MAX_TEXT) -> str:
    """`text` as a Postgres text column can hold it: no NUL, no lone surrogates, bounded."""
    cleaned = text[:limit].replace("\0", "\ufffd")
    return cleaned.encode("utf-8", "backslashreplace").decode("utf-8")


def header_name(name: str) -> bytes:
    """The bytes of a header's name, also where they were no UTF-8 and stand as lone surrogates in it."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte: nothing that Kafka could have brought
        return name.encode("utf-8", "backslashreplace")


def _optional_text(text: str | None) -> str | None:
    return None if text is None else text_for_postgres(text)


def recorded_at(record: Record) -> datetime | None:
    """The record's time; None for -1 and for times that no calendar holds."""
    if not 0 <= record.timestamp <= _LAST_MS:
        return None
    return datetime.fromtimestamp(record.timestamp / 1000, UTC)
