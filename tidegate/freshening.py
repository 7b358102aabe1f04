"""What keeps a projection fresh and says so, beside its consumer: the store's refresher and the measures."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from projections.folds.written import RenderedUpTo
from projections.visibility import Visibility
from projections.visibility_refresh import LEASE_TTL, Refresher
from projections.visibility_watch import VisibilityWatch
from tidegate.app import App
from tidegate.assembly import JobParts
from tidegate.jobs.declaration import FoldJob, ProjectionJob
from tidegate.resources import Resources
from tidegate_kernel.lease import Lease


@dataclass(frozen=True, slots=True)
class Freshening:
    """Of one job in this process."""

    job: str
    refresher: Refresher
    watch: VisibilityWatch

    def work(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """What has to run for as long as the job's consumer does, by the names of the tasks."""
        return {f"refresh-{self.job}": self.refresher.run(), f"freshness-{self.job}": self.watch.run()}


def freshening_of(app: App, parts: JobParts, resources: Resources) -> Freshening | None:
    """None for a job that has no readers of its own: what it has settled is visible."""
    job, unseen = parts.job, parts.meter.unseen
    if not isinstance(job, ProjectionJob | FoldJob) or parts.sink is None or unseen is None:
        return None
    visibility = Visibility(resources.pool, parts.id)
    lease = Lease(resources.pool, f"refresh:{app.service}/{job.code}/{parts.id}", holder=resources.owner, ttl=LEASE_TTL)
    refresher = Refresher(
        parts.sink,
        visibility,
        written=lambda: RenderedUpTo(resources.pool, parts.id) if isinstance(job, FoldJob) else visibility.settled,
        lease=lease,
        job=job.code,
        clock=resources.clock,
        metrics=resources.metrics,
    )
    watch = VisibilityWatch(
        visibility,
        unseen,
        parts.meter.lags,
        job=job.code,
        sla=job.freshness_sla,
        objective=job.freshness_objective,
        clock=resources.clock,
        metrics=resources.metrics,
    )
    return Freshening(job.code, refresher, watch)
