"""A dead letter as a Kafka record: the original as it was, and `tg-dlq-…` headers that say what happened.

DLQ topics have `cleanup.policy=delete`: a letter is keyed as its original and may have no value, which a compacted
topic would take as "forget this key".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date, datetime
from hashlib import sha256
from typing import NamedTuple
from uuid import UUID

from dlq.cause import MAX_STACK
from dlq.states import LetterKind, LetterState
from tidegate_kernel.event import Headers, Record
from tidegate_kernel.source import Outgoing

PREFIX = "tg-dlq-"
MAX_HEADERS_BYTES = 8192
"""All our headers together, names included: a broker's default limit for a record is 1 MiB."""
REPLAY_COMMAND = "tidegate dlq replay --letter {letter} --reason '…'"
"""What is typed to have a letter handled again, as its header and an edit of it tell: it shows the plan."""

OUTBOX_ID = f"{PREFIX}outbox-id"
"""Which record of the outbox a letter is: the same when it is sent again. The relay adds it."""
OUTBOX_ID_BYTES = len(OUTBOX_ID) + 20
"""What it takes of that: a bigint has 19 digits."""

_MAX_TEXT = 200  # bytes of an id, type or name: what does not fit stands whole in Postgres
_MAX_MESSAGE = 1000
_MAX_NAME = 255  # Kafka's own limit of a topic name is 249
# Cut last, into the room that the others leave.
_STACK = f"{PREFIX}stack"
_PAYLOAD = f"{PREFIX}payload"


class Place(NamedTuple):
    """Where the record of a letter stands."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterNotice:
    """What our headers say about every letter, whatever it is of. Empty texts and None are left out."""

    id: UUID
    job: str
    reason: str
    error_class: str
    error_message: str
    stack: str
    fingerprint: str
    attempts: int
    occurrences: int
    first_failed_at: datetime
    last_failed_at: datetime
    correlation_id: str | None
    tenant: str
    brand: str
    handler: str
    service_version: str
    replay_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(LetterNotice):
    """Of a record also this: `place` is the letter's own, a backfill may have met its event at another one.

    `claim`: the (bucket, id) that it keeps in the inbox.
    """

    place: Place
    topic_id: UUID
    claim: tuple[date, UUID] | None
    group: str
    event_id: str | None
    event_type: str | None
    traceparent: str | None
    backfill: bool
    has_payload: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemNotice(LetterNotice):
    """Of an item of a job by the clock also this, and no place in Kafka.

    `item`: by what it is done once; `instruction`: the command that has it done again.
    """

    run: int
    item: str
    scheduled_at: datetime
    instruction: str


def dead_letter_record(notice: Notice, record: Record, *, topic: str) -> Outgoing:
    """Returns `record` for the DLQ topic: key and value byte-exact, its headers in order, then ours.

    Headers of ours that the original carries (a job that reads a DLQ topic) are replaced, never stacked; the id among
    them becomes `tg-dlq-replay-of`.
    """
    original = [(name, value) for name, value in record.headers if not name.startswith(PREFIX)]
    return Outgoing(topic=topic, key=record.key, value=record.value, headers=[*original, *_our_headers(notice, record)])


def item_record(notice: ItemNotice, *, key: bytes, topic: str) -> Outgoing:
    """Returns the letter of an item for the DLQ topic: keyed by its place, without a value.

    A replay asks the job's query for the item as it is then; a copy of what it was would be somebody's data twice.
    """
    return Outgoing(topic=topic, key=key, value=None, headers=_spelled(_texts_of_item(notice), notice.stack))


def outcome_record(
    *, letter: UUID, key: bytes | None, job: str, state: LetterState, decided_at: datetime, topic: str
) -> Outgoing:
    """Returns what the DLQ topic is told of a letter that came to its end: under its id, keyed as it is, no value."""
    told = (("id", letter), ("job", job), ("state", state), ("decided-at", decided_at.isoformat()))
    headers = [(PREFIX + name, _cut(text, _MAX_NAME)) for name, text in told]
    return Outgoing(topic=topic, key=key, value=None, headers=headers)


def reduced(outgoing: Outgoing) -> Iterator[Outgoing]:
    """Yields ever smaller forms of a letter that its topic refuses as too large; the last has our headers only."""
    yield without_payload(outgoing)
    yield without_payload(replace(outgoing, headers=[h for h in outgoing.headers if h[0].startswith(PREFIX)]))


def without_payload(outgoing: Outgoing) -> Outgoing:
    """Returns the letter without its value; the payload header tells size and digest, the others where it stands."""
    if outgoing.value is None:
        return outgoing
    digest = sha256(outgoing.value).hexdigest()
    told = f"omitted; size={len(outgoing.value)}; sha256={digest}".encode()
    headers = [(name, told if name == _PAYLOAD else value) for name, value in outgoing.headers]
    return replace(outgoing, value=None, headers=headers)


def replay_instruction(letter: UUID) -> str:
    """The command for this letter, to be pasted."""
    return REPLAY_COMMAND.format(letter=letter)


def _our_headers(notice: Notice, record: Record) -> list[tuple[str, bytes]]:
    return _spelled(_texts(notice, record), notice.stack)


def _spelled(texts: Iterable[tuple[str, object, int]], stack: str) -> list[tuple[str, bytes]]:
    headers = [(PREFIX + name, _cut(text, limit)) for name, text, limit in texts if text not in ("", None)]
    # The stack takes what is left of the 8 KiB.
    used = sum(len(name) + len(value) for name, value in headers)
    room = MAX_HEADERS_BYTES - OUTBOX_ID_BYTES - used - len(_STACK)
    if stack:
        headers.append((_STACK, _cut(stack, min(room, MAX_STACK))))
    return headers


def _texts(notice: Notice, record: Record) -> Iterable[tuple[str, object, int]]:
    yield "group", notice.group, _MAX_NAME
    yield "topic", notice.place.topic, _MAX_NAME
    yield "topic-id", notice.topic_id, _MAX_TEXT
    yield "partition", notice.place.partition, _MAX_TEXT
    yield "offset", notice.place.offset, _MAX_TEXT
    yield "timestamp", record.timestamp, _MAX_TEXT
    yield "event-id", notice.event_id, _MAX_TEXT
    yield "event-type", notice.event_type, _MAX_TEXT
    yield "claim", None if notice.claim is None else spelled_claim(notice.claim), _MAX_TEXT
    yield from _texts_of_any(notice)
    yield "traceparent", notice.traceparent, _MAX_TEXT
    yield "backfill", "true" if notice.backfill else None, _MAX_TEXT
    yield "replay-of", _letter_it_was(record.headers), _MAX_TEXT
    yield "replay-instruction", replay_instruction(notice.id), _MAX_TEXT
    yield "payload", "intact" if notice.has_payload else "absent", _MAX_TEXT


def _texts_of_item(notice: ItemNotice) -> Iterable[tuple[str, object, int]]:
    yield "kind", LetterKind.ITEM, _MAX_TEXT
    yield "run", notice.run, _MAX_TEXT
    yield "item", notice.item, _MAX_MESSAGE
    yield "scheduled-at", notice.scheduled_at.isoformat(), _MAX_TEXT
    yield from _texts_of_any(notice)
    yield "replay-instruction", notice.instruction, _MAX_MESSAGE
    yield "payload", "absent", _MAX_TEXT


def _texts_of_any(notice: LetterNotice) -> Iterable[tuple[str, object, int]]:
    yield "id", notice.id, _MAX_TEXT
    yield "job", notice.job, _MAX_NAME
    yield "reason", notice.reason, _MAX_TEXT
    yield "error-class", notice.error_class, _MAX_TEXT
    yield "error-message", notice.error_message, _MAX_MESSAGE
    yield "fingerprint", notice.fingerprint, _MAX_TEXT
    yield "attempts", notice.attempts, _MAX_TEXT
    yield "occurrences", notice.occurrences, _MAX_TEXT
    yield "first-failed-at", notice.first_failed_at.isoformat(), _MAX_TEXT
    yield "last-failed-at", notice.last_failed_at.isoformat(), _MAX_TEXT
    yield "correlation-id", notice.correlation_id, _MAX_TEXT
    yield "tenant", notice.tenant, _MAX_TEXT
    yield "brand", notice.brand, _MAX_TEXT
    yield "handler", notice.handler, _MAX_TEXT
    yield "service-version", notice.service_version, _MAX_TEXT
    yield "replay-count", notice.replay_count, _MAX_TEXT


def spelled_claim(claim: tuple[date, UUID]) -> str:
    """The claim as the header has it: `2026-11-29/0193…`."""
    bucket, identity = claim
    return f"{bucket.isoformat()}/{identity}"


def _letter_it_was(headers: Headers) -> str | None:
    earlier = next((value for name, value in headers if name == f"{PREFIX}id" and value), None)
    return None if earlier is None else earlier.decode("utf-8", "replace")


def _cut(value: object, limit: int) -> bytes:
    """`value` as UTF-8 of at most `limit` bytes, never ending inside a character."""
    encoded = str(value).encode("utf-8", "backslashreplace")
    if len(encoded) <= limit:
        return encoded
    ellipsis = "…".encode()
    return encoded[: max(0, limit - len(ellipsis))].decode("utf-8", "ignore").encode() + ellipsis
