"""Reading the records of a DLQ topic. The topic is anybody's to write.

What is not exactly as `dlq.envelope` writes it is a `Misfit`, never an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import TypeVar
from uuid import UUID

from dlq.envelope import PREFIX
from dlq.importing.told import Misfit, Omitted, Told, ToldItem, ToldLetter, ToldOutcome
from dlq.letters import Origin, letter_id
from dlq.states import FINAL, LetterKind, LetterState
from tidegate_kernel.errors import Reason
from tidegate_kernel.event import Record

T = TypeVar("T")

_OMITTED = re.compile(r"omitted; size=(\d{1,18}); sha256=([0-9a-f]{64})")
_MOST_INT4 = 2**31 - 1
_MOST_INT8 = 2**63 - 1


def read_told(record: Record, origin: Origin) -> Told:
    """Returns what a record of the DLQ topic of `origin`'s job tells. Raises nothing, whatever the record holds."""
    told = _Told({name: value for name, value in record.headers if name.startswith(PREFIX)})
    try:
        told.require("job", origin.job_code)
        if told.has("state"):
            return _outcome(told)
        if told.text("kind") == LetterKind.ITEM:
            return ToldItem(told.read("id", UUID))
        return _letter(told, record, origin)
    except _NotOursError as error:
        return Misfit(str(error))


class _NotOursError(Exception):
    """The sentence says which header is wrong, never what is in it."""


class _Told:
    """Our headers, of repeated ones the last: the originals of that name were taken out when the letter was written."""

    def __init__(self, headers: Mapping[str, bytes | None]) -> None:
        self._headers = headers

    def has(self, name: str) -> bool:
        return PREFIX + name in self._headers

    def text(self, name: str) -> str:
        """Empty where there is none."""
        return (self._headers.get(PREFIX + name) or b"").decode("utf-8", "replace")

    def optional(self, name: str) -> str | None:
        return self.text(name) or None

    def require(self, name: str, text: str) -> None:
        if self.text(name) != text:
            raise _NotOursError(f"header {PREFIX}{name} is not that of this job" if self.has(name) else _missing(name))

    def read(self, name: str, parse: Callable[[str], T]) -> T:
        if not self.text(name):
            raise _NotOursError(_missing(name))
        try:
            return parse(self.text(name))
        except (ValueError, OverflowError) as error:
            raise _NotOursError(f"header {PREFIX}{name} cannot be read") from error

    def number(self, name: str, *, most: int, default: int | None = None) -> int:
        if default is not None and not self.has(name):
            return default
        number = self.read(name, _natural)
        if number > most:
            raise _NotOursError(f"header {PREFIX}{name} is larger than any")
        return number


def _missing(name: str) -> str:
    return f"there is no header {PREFIX}{name}"


def _outcome(told: _Told) -> ToldOutcome:
    state = told.read("state", LetterState)
    if state not in FINAL:
        raise _NotOursError(f"header {PREFIX}state names no end of a letter")
    return ToldOutcome(told.read("id", UUID), state, told.read("decided-at", _moment))


def _letter(told: _Told, record: Record, origin: Origin) -> ToldLetter:
    payload = told.text("payload")
    omitted = _OMITTED.fullmatch(payload)
    letter = ToldLetter(
        id=told.read("id", UUID),
        topic=told.read("topic", str),
        topic_id=told.read("topic-id", UUID),
        partition=told.number("partition", most=_MOST_INT4),
        offset=told.number("offset", most=_MOST_INT8),
        timestamp=_timestamp(told.text("timestamp")),
        key=record.key,
        value=record.value,
        headers=[(name, value) for name, value in record.headers if not name.startswith(PREFIX)],
        event_id=told.optional("event-id"),
        event_type=told.optional("event-type"),
        claim=told.read("claim", _claim) if told.has("claim") else None,
        tenant=told.text("tenant"),
        brand=told.text("brand"),
        correlation_id=told.optional("correlation-id"),
        traceparent=told.optional("traceparent"),
        reason=told.read("reason", Reason),
        error_class=told.text("error-class"),
        error_message=told.text("error-message"),
        stack=told.text("stack"),
        fingerprint=told.text("fingerprint"),
        handler=told.text("handler"),
        service_version=told.text("service-version"),
        attempts=min(told.number("attempts", most=_MOST_INT8, default=1), _MOST_INT4),
        occurrences=told.number("occurrences", most=_MOST_INT4, default=1),
        replay_count=told.number("replay-count", most=_MOST_INT4, default=0),
        backfill=told.text("backfill") == "true",
        first_failed_at=told.read("first-failed-at", _moment),
        last_failed_at=told.read("last-failed-at", _moment),
        has_payload=payload in ("", "intact"),
        omitted=Omitted(int(omitted[1]), omitted[2]) if omitted else None,
    )
    # The id says whose letter it is: a record that was copied here from elsewhere, or edited, would pass for another.
    if letter.id != letter_id(origin, letter.topic_id, letter):
        raise _NotOursError(f"header {PREFIX}id is not that of a letter of this job at these coordinates")
    return letter


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise ValueError("no natural number")
    return int(text)


def _timestamp(text: str) -> int:
    """-1, as Kafka says for unknown, where there is none that could be read."""
    return int(text) if re.fullmatch(r"-?\d{1,18}", text, re.ASCII) else -1


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("no time zone")
    return moment


def _claim(text: str) -> tuple[date, UUID]:
    bucket, _, identity = text.partition("/")
    return date.fromisoformat(bucket), UUID(identity)
