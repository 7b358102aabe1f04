"""What a topic carries: its envelope, its payload format, where the scope stands, what no value means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec

from projections.writes import Delete
from tidegate_kernel.event import Record

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def record_time(record: Record) -> datetime:
    """The record's own timestamp, aware, UTC; 1970-01-01 for one that is missing (-1) or no date (year 58692)."""
    try:
        return _EPOCH + timedelta(milliseconds=max(0, record.timestamp))
    except OverflowError:
        return _EPOCH


class Tombstone(msgspec.Struct, frozen=True):
    """A record without a value, as a topic's `tombstone` function sees it."""

    record: Record
    occurred_at: datetime

    @property
    def key(self) -> bytes | None:
        return self.record.key

    @property
    def headers(self) -> dict[str, bytes | None]:
        """Headers by name; of repeats the last."""
        return dict(self.record.headers)


class Envelope(msgspec.Struct, gc=False):
    """What stands around the payload. Text fields are "" and `id` None where the record has none.

    `payload` is the data's own bytes.
    """

    id: str | None
    type: str
    payload: bytes | msgspec.Raw
    version: int = 1
    source: str = ""
    tenant: str = ""
    brand: str = ""
    occurred_at: datetime | None = None
    correlation_id: str | None = None
    traceparent: str | None = None


Opener = Callable[[Record], Envelope]
"""Opens one record's envelope; not called for a record without a value.

Raises Undecodable (reasons UNDECODABLE, INVALID_ENVELOPE, INVALID_NUMBER, INVALID_TEXT); the message names the field.
"""


class EnvelopeReader(Protocol):
    """Knows the envelopes of a topic."""

    def opener(self, scope: ScopeFields) -> Opener:
        """Returns the function that opens this topic's records; names are resolved here, once per topic and job."""


class Format(Protocol):
    """How a topic's payload bytes become event models."""

    def decoder(self, model: type[Any]) -> Callable[[bytes | msgspec.Raw], Any]:
        """Returns a function bytes → instance of `model` (pydantic model, msgspec Struct, dataclass or dict).

        The function raises Undecodable (not the format; reasons UNDECODABLE, INVALID_NUMBER, INVALID_TEXT) or
        InvalidEvent (not the model), neither with payload in the message.
        """

    def converter(self, model: type[Any]) -> Callable[[dict[str, Any]], Any]:
        """Returns a function plain object → instance of `model`, for lifted events. It raises InvalidEvent."""

    def encode(self, model: Any) -> bytes:
        """Returns `model` as payload bytes."""


@dataclass(frozen=True, slots=True)
class ScopeFields:
    """Names of the envelope attributes that hold tenant and brand; None where the topic has none."""

    tenant: str | None = None
    brand: str | None = None


@dataclass(frozen=True)
class Topic:
    """A Kafka topic as the service declares it.

    `tombstone` turns a record without a value into a `Delete` (or None to pass it over); only projections use it.
    `partitions` is how many `tidegate topics create` makes. `compacted`: Kafka keeps the last record of each key, so a
    projection needs a `tombstone` function.
    """

    name: str
    format: Format
    envelope: EnvelopeReader
    scope: ScopeFields = field(default_factory=ScopeFields)
    tombstone: Callable[[Tombstone], Delete | None] | None = None
    partitions: int = 8
    compacted: bool = False
