"""Counts and logs what became of each batch: everything once a batch, nothing once an event."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from consumers.batch import Batch, Outcome
from dlq.cause import root_class
from dlq.letters import Failure
from projections.freshness import PartitionLag
from projections.visibility import Point
from projections.visibility_unseen import Unseen
from tidegate_kernel import logs
from tidegate_kernel.clock import Clock
from tidegate_kernel.event import JobCode
from tidegate_kernel.metrics import LagSample, Metrics

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Tally:
    """What a job's run in this process has come to."""

    records: int = 0
    applied: int = 0
    duplicates: int = 0
    skipped: int = 0
    stale: int = 0
    parked: int = 0
    dead_letters: int = 0

    def add(self, batch: Batch, outcome: Outcome) -> None:
        self.records += len(batch.records)
        self.applied += outcome.applied
        self.duplicates += outcome.duplicates
        self.skipped += outcome.skipped
        self.stale += outcome.stale
        self.parked += outcome.parked
        self.dead_letters += len(outcome.failures)


class Meter:
    """The metrics and log lines of one job. `unseen` keeps what a projection has settled until readers see it."""

    def __init__(self, job: JobCode, metrics: Metrics, clock: Clock, unseen: Unseen | None = None) -> None:
        self._job, self._metrics, self._clock, self.unseen = job, metrics, clock, unseen
        self._lags: Callable[[], Iterable[PartitionLag]] = tuple
        self._applied = metrics.applied.labels(job)
        self._duplicates = metrics.duplicates.labels(job)
        self._skipped = metrics.skipped.labels(job)
        self._stale = metrics.stale.labels(job)
        self._parked = metrics.parked.labels(job)
        self._held_back = metrics.held_back.labels(job)
        self._taken = metrics.taken.labels(job)
        self._clock_skew = metrics.clock_skew.labels(job)
        self._seconds = metrics.batch_seconds.labels(job)
        self.tally = Tally()

    def settled(self, batch: Batch, outcome: Outcome, *, seconds: float) -> None:
        """A batch is final."""
        self.tally.add(batch, outcome)
        self._metrics.records.labels(self._job, batch.fence.topic).inc(len(batch.records))
        self._applied.inc(outcome.applied)
        self._duplicates.inc(outcome.duplicates)
        self._skipped.inc(outcome.skipped)
        self._stale.inc(outcome.stale)
        self._parked.inc(outcome.parked)
        self._seconds.observe(seconds)
        self._observe_lag(batch)
        self._log(batch, outcome, seconds)
        for failure in outcome.failures:
            self._tell(failure)

    def held_back(self) -> None:
        """A batch was rolled back and waits for another try."""
        self._held_back.inc()

    def taken(self) -> None:
        """A partition became this process's."""
        self._taken.inc()

    def watch(self, lags: Callable[[], Iterable[PartitionLag]]) -> None:
        """`lags` answers for the job's partitions whenever metrics are read."""

        def samples() -> Iterable[LagSample]:
            for topic, partition, lag, *others in lags():
                records, seconds = lag if lag is not None else (None, None)
                yield LagSample(self._job, topic, partition, records, seconds, *others)  # type: ignore[arg-type]  # of the same fields

        self._lags = lags
        self._metrics.lags.watch(self._job, samples)

    def unwatch(self) -> None:
        self._lags = tuple
        self._metrics.lags.unwatch(self._job)

    def lags(self) -> Iterable[PartitionLag]:
        """How far each owned partition is behind now; nothing while the group is not joined."""
        return self._lags()

    def _observe_lag(self, batch: Batch) -> None:
        instant = self._clock.now()
        if self.unseen is not None:
            times = array("q", [record.timestamp for record in batch.records])
            self.unseen.add(batch.fence, Point(batch.topic_id, batch.next_offset), times, instant)
        now = instant.timestamp() * 1000
        # An event dated in the future counts as fresh, and as skew: a histogram never receives a negative.
        lags = sorted([(now - record.timestamp) / 1000 for record in batch.records if record.timestamp > 0])
        if lags and lags[0] < 0:
            ahead = sum(lag < 0 for lag in lags)
            self._clock_skew.inc(ahead)
            lags[:ahead] = [0.0] * ahead
        self._metrics.event_lag.observe_batch(self._job, lags)

    def _log(self, batch: Batch, outcome: Outcome, seconds: float) -> None:
        _log.info(
            logs.BATCH_SETTLED,
            job=self._job,
            topic=batch.fence.topic,
            partition=batch.fence.partition,
            run=batch.fence.run,
            epoch=batch.fence.epoch,
            first_offset=batch.fence.next_offset,
            next_offset=batch.next_offset,
            applied=outcome.applied,
            duplicates=outcome.duplicates,
            skipped=outcome.skipped,
            parked=outcome.parked,
            dead_letters=len(outcome.failures),
            milliseconds=round(seconds * 1000, 1),
        )

    def _tell(self, failure: Failure) -> None:
        self._metrics.dead_letters.labels(self._job, failure.reason).inc()
        _log.warning(
            logs.DEAD_LETTER,
            job=self._job,
            topic=failure.record.topic,
            partition=failure.record.partition,
            offset=failure.record.offset,
            reason=failure.reason,
            error_class=root_class(failure.error),
            correlation_id=failure.correlation_id,
            tenant=failure.scope.tenant,
        )
