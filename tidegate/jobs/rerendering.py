"""A fold's states are rendered again: after its sink has lost documents, or after its render function was changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inbox.store import find_job
from projections.folds.dirty import Rendering, count_states, mark_dirty, mark_failed_dirty, rendering_of
from tidegate.app import App
from tidegate.jobs.declaration import FoldJob, Job
from tidegate_kernel.audit import permitted, refuse_early
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import JobId
from tidegate_kernel.permissions import Action, Actor, Deed
from tidegate_kernel.postgres import Connection, Pool, translated_errors

# Keys marked in one transaction: folds that change one of them wait for it.
_CHUNK = 10_000


@dataclass(frozen=True, slots=True)
class RerenderPlan:
    """What would be rendered again: all `keys` of the job, or only those that could not be rendered."""

    job: str
    number: JobId
    keys: int
    rendering: Rendering
    only_failed: bool = False

    @property
    def to_mark(self) -> int:
        return self.rendering.failed if self.only_failed else self.keys


async def plan_rerender(connection: Connection, app: App, job: Job, *, only_failed: bool = False) -> RerenderPlan:
    """Returns what rendering again comes to. Raises Misconfigured for a job that is no fold or never started."""
    _require_fold(job)
    with translated_errors("plan rendering"):
        number = await find_job(connection, service=app.service, code=job.job_code)
        if number is None:
            raise Misconfigured(f"job {job.code!r} was never started, so it has no states to render")
        keys = 0 if only_failed else await count_states(connection, number)
        return RerenderPlan(job.code, number, keys, await rendering_of(connection, number), only_failed)


async def rerender(
    database: Connection | Pool,
    actor: Actor,
    app: App,
    plan: RerenderPlan,
    *,
    reason: str,
) -> int:
    """All keys that the plan means are dirty, so that workers render them; returns how many.

    Marked some at a time, each time a transaction with its own row in the audit. Harmless to repeat: documents keep
    their versions. Raises Denied, Transient; what was marked by then is.
    """
    target = app.group(app.job(plan.job).job_code)
    await refuse_early(database, actor, Deed(Action.PROJECTION_RERENDER, target, reason))
    after, done = "", 0
    while True:
        told: dict[str, Any] = {"only_failed": plan.only_failed, "marked_before": done}
        # No key in it: it may name a person.
        async with permitted(database, actor, Deed(Action.PROJECTION_RERENDER, target, reason, told)) as connection:
            marked, last = await _mark(connection, plan, after=after)
            told["marked"] = marked
        done += marked
        if marked < _CHUNK:
            return done
        after = last or after


def _require_fold(job: Job) -> None:
    """Raises Misconfigured, with the remedy, unless the job is a fold."""
    if not isinstance(job, FoldJob):
        raise Misconfigured(
            f"job {job.code!r} is no fold: it has no states to render. What a projection has written is written again "
            f"by 'tidegate run {job.code} --backfill --from-beginning'"
        )


async def _mark(connection: Connection, plan: RerenderPlan, *, after: str) -> tuple[int, str | None]:
    if plan.only_failed:
        return await mark_failed_dirty(connection, plan.number, most=_CHUNK), None
    return await mark_dirty(connection, plan.number, after=after, most=_CHUNK)
