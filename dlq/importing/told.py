"""What the records of a DLQ topic tell: a letter, the outcome of one, an item, or nothing that could be understood."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import NamedTuple, TypeAlias
from uuid import UUID

from dlq.envelope import Place
from dlq.states import LetterState
from tidegate_kernel.event import Headers


class Omitted(NamedTuple):
    """The value that did not fit into the DLQ topic."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldLetter:
    """A dead letter as a record of the topic tells it: also the `Record` that died, but for what was omitted."""

    id: UUID
    topic: str
    topic_id: UUID
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    event_id: str | None
    event_type: str | None
    claim: tuple[date, UUID] | None
    tenant: str
    brand: str
    correlation_id: str | None
    traceparent: str | None
    reason: str
    error_class: str
    error_message: str
    stack: str
    fingerprint: str
    handler: str
    service_version: str
    attempts: int
    occurrences: int
    replay_count: int
    backfill: bool
    first_failed_at: datetime
    last_failed_at: datetime
    has_payload: bool
    omitted: Omitted | None

    @property
    def place(self) -> Place:
        """Where the record stands that died."""
        return Place(self.topic, self.partition, self.offset)


@dataclass(frozen=True, slots=True)
class ToldOutcome:
    """A letter came to its end."""

    letter: UUID
    state: LetterState
    at: datetime


@dataclass(frozen=True, slots=True)
class ToldItem:
    """An item of a job by the clock failed: nothing to bring back, the job's next run that meets it tries it again."""

    letter: UUID


@dataclass(frozen=True, slots=True)
class Misfit:
    """A record that is none of these; `why` never holds payload."""

    why: str


Told: TypeAlias = ToldLetter | ToldOutcome | ToldItem | Misfit
