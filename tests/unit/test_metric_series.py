"""What a job's metrics cost: their number must not grow with what is in the records."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from consumers.batch import Batch, Outcome
from consumers.meter import Meter
from dlq.letters import Failure
from projections.visibility_unseen import Unseen
from tests.unit.records import StoredRecord
from tidegate_kernel.errors import Reason
from tidegate_kernel.event import LIVE, Fence, JobCode, JobId
from tidegate_kernel.metrics import Metrics

TOPIC_ID = UUID(int=7)


class StoppedClock:
    def now(self) -> datetime:
        return datetime(2026, 3, 1, 12, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        """At once."""


def _series(metrics: Metrics) -> int:
    return sum(len(family.samples) for family in metrics.registry.collect())


def _settle(meter: Meter, number: int) -> None:
    """A batch of one record that failed as none before it: key, id, tenant and error are its own."""
    record = StoredRecord(b"", key=b"key-%d" % number, offset=number)
    failure = Failure(
        record=record,
        topic_id=TOPIC_ID,
        reason=Reason.HANDLER_FAILED,
        error=type(f"Error{number}", (Exception,), {})(f"payment {number} was refused"),
        event_id=f"event-{number}",
        event_type=f"type-{number}",
        correlation_id=f"correlation-{number}",
    )
    fence = Fence(JobId(1), LIVE, record.topic, record.partition, 1, number)
    meter.settled(Batch(fence, TOPIC_ID, [record], number + 1), Outcome(failures=[failure]), seconds=0.01)


def test_ten_thousand_different_errors_and_ids_are_as_many_series_as_one() -> None:
    """Case 110: a label that grows with the data brings the metrics' server down on the day when all fails."""
    metrics = Metrics()
    meter = Meter(JobCode("job"), metrics, StoppedClock(), Unseen())
    _settle(meter, 0)
    before = _series(metrics)

    for number in range(1, 10_000):
        _settle(meter, number)

    assert _series(metrics) == before
    assert (
        metrics.registry.get_sample_value("tidegate_dead_letters_total", {"job": "job", "reason": "handler_failed"})
        == 10_000
    )
