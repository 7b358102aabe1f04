"""What a topic carries: its envelope, its payload format, where the scope stands, what no value means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec

from projections.writes import MAX_VERSION, Delete
from tidegate_kernel.errors import Poison, Reason
from tidegate_kernel.event import Record

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def record_time(record: Record) -> datetime:
    """The record's own timestamp, aware, UTC; 1970-01-01 for one that is missing (-1) or no date (year 58692)."""
    try:
        return _EPOCH + timedelta(milliseconds=max(0, record.timestamp))
    except OverflowError:
        return _EPOCH


@dataclass(frozen=True, slots=True)
class VersionHeader:
    """A record without a value tells its version in the header `name`, as decimal digits."""

    name: str


@dataclass(frozen=True, slots=True)
class RecordTime:
    """A record without a value has its own timestamp as its version, in `unit`s since 1970.

    Only where every version is such a time: beside aggregate versions 1, 2, 3 a delete would win for ever.
    """

    unit: timedelta = timedelta(milliseconds=1)


class Tombstone(msgspec.Struct, frozen=True):
    """A record without a value, as a topic's `tombstone` function sees it."""

    record: Record
    occurred_at: datetime
    version_from: VersionHeader | RecordTime | None = None

    @property
    def key(self) -> bytes | None:
        return self.record.key

    @property
    def headers(self) -> dict[str, bytes | None]:
        """Headers by name; of repeats the last."""
        return dict(self.record.headers)

    @property
    def version(self) -> int:
        """The version as the topic's `tombstone_version` says. Raises Poison (NO_VERSION) for a record without one."""
        match self.version_from:
            case VersionHeader(name):
                return _version_of(self.headers.get(name), name)
            case RecordTime(unit):
                if self.record.timestamp <= 0:
                    raise Poison("the record has no timestamp to be its version", reason=Reason.NO_VERSION)
                return timedelta(milliseconds=self.record.timestamp) // unit
            case None:
                raise Poison("the topic declares no tombstone_version", reason=Reason.NO_VERSION)


def _version_of(value: bytes | None, name: str) -> int:
    # Not what int() takes besides: blanks, signs, underscores, digits of other scripts.
    if value is None or not value.isdigit() or len(value) > len(str(MAX_VERSION)) or int(value) > MAX_VERSION:
        found = "is not there" if value is None else f"is not an integer from 0 to {MAX_VERSION}"
        raise Poison(f"header {name!r}, the version of a record without a value, {found}", reason=Reason.NO_VERSION)
    return int(value)


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

    `tombstone` turns a record without a value into a `Delete` (or None to pass it over); only projections use it. Its
    version is `tombstone.version`, taken from what `tombstone_version` names.
    `partitions` is how many `tidegate topics create` makes. `compacted`: Kafka keeps the last record of each key, so a
    projection needs a `tombstone` function.
    """

    name: str
    format: Format
    envelope: EnvelopeReader
    scope: ScopeFields = field(default_factory=ScopeFields)
    tombstone: Callable[[Tombstone], Delete | None] | None = None
    tombstone_version: VersionHeader | RecordTime | None = None
    partitions: int = 8
    compacted: bool = False
