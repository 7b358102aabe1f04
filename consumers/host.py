"""What a lane needs of the loop or backfill that runs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from consumers.batch import Batch, Outcome
from consumers.caution import Solitude
from consumers.failure import RetryPolicy
from consumers.meter import Meter
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import TopicPartition


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """What differs between jobs and places. `drain_timeout` bounds a revoke and a stop.

    `linger`: so long a partition that is caught up is left alone after a small batch, so that the next one is larger.
    """

    lanes: int = 2
    batch_size: int = 500
    drain_timeout: timedelta = timedelta(seconds=20)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    linger: timedelta = timedelta(0)


class LaneHost(Protocol):
    """The loop or backfill that runs the lane."""

    @property
    def settings(self) -> LaneSettings: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def meter(self) -> Meter: ...
    @property
    def solitude(self) -> Solitude: ...
    def is_stopping(self) -> bool: ...

    async def note_settled(self, batch: Batch, outcome: Outcome) -> None:
        """A batch is final: whether it was one dead letter too many is the host's matter. Raises Transient."""

    def note_trouble(self, error: Transient) -> None:
        """A batch was rolled back, or a fetch failed: perhaps something that the job needs is away."""

    def note_lost(self, partition: TopicPartition, *, is_assigned: bool) -> None:
        """The lane dropped `partition` because its row has another owner."""
