"""A loop that is told to stop ends, whatever Kafka does meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from consumers import loop as loop_module
from consumers.lane import LaneSettings
from consumers.loop import ConsumerLoop
from consumers.meter import Meter
from consumers.pipeline import Pipeline
from consumers.steward import Steward
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import JobCode, TopicPartition
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.source import Assigned, RecordSource, Revoked


class _Unanswered:
    """A member whose coordinator is away: a commit never comes back."""

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        return

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        await asyncio.Event().wait()


@asynccontextmanager
async def _join(assigned: Assigned, revoked: Revoked) -> AsyncIterator[RecordSource]:
    yield cast("RecordSource", _Unanswered())


async def test_stop_does_not_wait_for_a_coordinator_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is a hint: a worker told to end while Kafka is down must end, not hang until it is killed."""
    monkeypatch.setattr(loop_module, "_COMMIT_SECONDS", 0.05)
    clock: Any = SystemClock()
    parts = cast("Pipeline", None), cast("Steward", None)
    meter = Meter(JobCode("ledger"), Metrics(), clock)
    consumer = ConsumerLoop(_join, *parts, settings=LaneSettings(lanes=1), clock=clock, meter=meter)
    consumer.stop()
    await asyncio.wait_for(consumer.run(), timeout=5)
    assert consumer.source is None
