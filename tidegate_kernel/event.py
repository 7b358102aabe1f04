"""The words every part of Tidegate shares: record, event, scope, coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Generic, NamedTuple, NewType, Protocol, TypeVar

import msgspec

JobCode = NewType("JobCode", str)
"""Stable, unique name of a job within its service."""

JobId = NewType("JobId", int)
"""The job's number in Postgres (`tidegate.job.id`), a smallint that keeps claims small."""

RunId = NewType("RunId", int)
"""0 for the live consumer of a job, else the id of a backfill."""

ReplayId = NewType("ReplayId", int)
"""Number of a run over dead letters (`tidegate.replay.id`), a replay or a discard."""

LIVE = RunId(0)

Headers = Sequence[tuple[str, bytes | None]]
"""Record headers in their order, repeats kept."""


class Record(Protocol):
    """Bytes at (topic, partition, offset). The Kafka client's own record satisfies this as it is."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970, as the producer or broker wrote it; can be -1 or nonsense."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...


class TopicPartition(NamedTuple):
    """One partition of one topic. Equal (as a tuple) to the Kafka client's own type."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """As commands take it and messages tell it: `orders:3`."""
        return f"{self.topic}:{self.partition}"


class Scope(msgspec.Struct, frozen=True, gc=False):
    """Tenant and brand of an event or run; empty text means none."""

    tenant: str = ""
    brand: str = ""


NO_SCOPE = Scope()

T = TypeVar("T")


class Event(msgspec.Struct, Generic[T], frozen=True):
    """What a record decodes to.

    `version` is the schema version of `data` after upcasting; `occurred_at` (aware, UTC) is the producer's time, or the
    record's timestamp where the envelope has none; `has_own_time` is False then, and another delivery may carry another
    time. `data` is an instance of the route's model.
    """

    id: str
    type: str
    data: T
    record: Record
    occurred_at: datetime
    version: int = 1
    source: str = ""
    scope: Scope = NO_SCOPE
    correlation_id: str | None = None
    traceparent: str | None = None
    has_own_time: bool = True

    @property
    def key(self) -> bytes | None:
        return self.record.key

    @property
    def headers(self) -> Headers:
        return self.record.headers


class Fence(NamedTuple):
    """Proof of ownership that every settle carries: the position row must still say exactly this."""

    job: JobId
    run: RunId
    topic: str
    partition: int
    epoch: int
    next_offset: int
