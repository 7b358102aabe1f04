"""An item of a run in the place of a record, so that the application's handlers need not know what called them."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from tidegate.jobs.clockwork.runs import ClockRunId
from tidegate_kernel.event import Headers
from tidegate_kernel.lease import Token


class RunTag(NamedTuple):
    """What a write of a run can carry, so that a later one tells it from a stale one.

    `token` grows with each holder of the scope's lease: whoever keeps the highest that he has seen, and refuses a lower
    one, hears no runner that lost its lease.
    """

    id: ClockRunId
    token: Token
    correlation_id: UUID


class ItemRecord(NamedTuple):
    """Where an item stands, as a record: `topic` is the job, `partition` the run, `offset` its number in the run."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    run: RunTag
    value: bytes | None = None
    headers: Headers = ()
