"""Once a second, in every worker of a projection: what readers see by now, how long it took, and if it was in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

from projections.freshness import PartitionLag
from projections.visibility import Visibility
from projections.visibility_sla import WINDOWS, ErrorBudget
from projections.visibility_unseen import Unseen
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Transient
from tidegate_kernel.metrics import Metrics

_EVERY_SECONDS = 1.0
# A process that was frozen knows nothing of the time between.
_LONGEST_SECONDS = 10.0


class VisibilityWatch:
    """The measures of one job in this process. `lags` answers for the partitions that it owns."""

    def __init__(
        self,
        visibility: Visibility,
        unseen: Unseen,
        lags: Callable[[], Iterable[PartitionLag]],
        *,
        job: str,
        sla: timedelta,
        objective: float,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._visibility, self._unseen, self._lags = visibility, unseen, lags
        self._job, self._sla, self._clock, self._metrics = job, sla.total_seconds(), clock, metrics
        self._budget = ErrorBudget(objective)
        self._good = metrics.freshness_good.labels(job)
        self._bad = metrics.freshness_bad.labels(job)
        self._unmeasured = metrics.event_visible_unmeasured.labels(job)
        metrics.freshness_objective.labels(job).set(objective)

    async def run(self) -> None:
        """Until cancelled. While Postgres is away nothing becomes visible, as far as anybody can know."""
        last = self._clock.monotonic()
        while True:
            await self._clock.sleep(_EVERY_SECONDS)
            await self.look()
            last, passed = (now := self._clock.monotonic()), min(now - last, _LONGEST_SECONDS)
            self.judge(passed)

    async def look(self) -> None:
        """What has become visible is measured."""
        try:
            shown = await self._visibility.shown()
        except Transient:
            return
        seconds, unmeasured = self._unseen.pass_to(shown, self._clock.now())
        if seconds:
            self._metrics.event_visible.observe_batch(self._job, seconds)
        self._unmeasured.inc(unmeasured)

    def judge(self, seconds: float) -> None:
        """The last `seconds` of each partition were good or bad. What an operator makes rest is neither, nor is what
        nobody can tell."""
        behind = [lag.reader_seconds for lag in self._lags() if not lag.is_paused]
        late = sum(each > self._sla for each in behind if each is not None)
        fresh = sum(each <= self._sla for each in behind if each is not None)
        now = self._clock.monotonic()
        self._good.inc(fresh * seconds)
        self._bad.inc(late * seconds)
        self._budget.add(fresh * seconds, late * seconds, now)
        for window in WINDOWS:
            self._metrics.freshness_burn.labels(self._job, window).set(self._budget.burn(window, now))
