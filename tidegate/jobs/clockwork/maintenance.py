"""What a job that removes things adds to a run: since when something is old enough, and the audit of a removal."""

from __future__ import annotations

from datetime import datetime

from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.maintenance_job import MaintenanceJob
from tidegate.jobs.clockwork.runs import ClaimedRun
from tidegate.jobs.clockwork.scopes import service_of
from tidegate_kernel.audit import UnattendedAction, UnattendedDeed, note_unattended
from tidegate_kernel.postgres import Connection


def expired_before(job: ClockJob, run: ClaimedRun) -> datetime | None:
    """What is older than this the run may remove; None for a job without a period.

    Reckoned from the occasion, so that retries agree. A scheduler whose clock is ahead makes occasions that have not
    come: the database's own time, at which the run was first claimed, bounds them.
    """
    if not isinstance(job, MaintenanceJob):
        return None
    return job.expired_before(min(run.scheduled_at, run.started_at))


async def note_removal(connection: Connection, job: ClockJob, run: ClaimedRun, items: int) -> None:
    """In the transaction that removed `items` of them: the audit has a row of it, where the job is sensitive.

    Call it last: the row holds the end of the audit's chain until COMMIT. It tells whose, how many, and since when they
    were old enough; nothing of what they were.
    """
    if not items or not isinstance(job, MaintenanceJob) or not job.is_sensitive:
        return
    before = expired_before(job, run)
    told = {"run": run.id, "attempt": run.attempt, "items": items, "retention": str(job.retention)}
    if before is not None:
        told["expired_before"] = before.isoformat()
    target = f"{service_of(run.lock_name)}.{job.code}"
    deed = UnattendedDeed(
        UnattendedAction.REMOVE,
        target,
        parameters=told,
        tenant=run.scope.tenant or None,
        brand=run.scope.brand or None,
    )
    await note_unattended(connection, deed)
