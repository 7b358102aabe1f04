"""Runs of jobs by the clock in tests: each is asked for, and worked off at once by the road of a worker."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tidegate.app import App
from tidegate.clocking import hands_of
from tidegate.jobs.clockwork.history import recent_runs
from tidegate.jobs.clockwork.requests import RunRequest, ask_for_run
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import RunState
from tidegate.jobs.clockwork.scheduler import Scheduler
from tidegate.resources import Resources
from tidegate.testing.jobs import NotSettled
from tidegate_kernel.permissions import Actor, Role

_TESTER = Actor("testing", Role.OPERATOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """How a run ended. `state` "due": it was put back, as something that it needs is away."""

    state: RunState
    processed: int
    skipped: int
    failed: int
    error: str | None


async def run_now(app: App, resources: Resources, request: RunRequest) -> JobRun:
    """The run is asked for, claimed and worked off in this process; returns how it stands then. Raises NotSettled."""
    now = resources.clock.now()
    asked = await ask_for_run(resources.pool, _TESTER, app.service, request, now=now)
    scheduler = Scheduler(
        resources.pool, resources.clock, service=app.service, holder=resources.owner, deps=resources.deps
    )
    await scheduler.begin([request.job])
    claimed = next((run for run in await scheduler.claim(100) if run.id == asked.run), None)
    if claimed is None:
        raise NotSettled(f"run {asked.run} of job {request.job.code!r} cannot begin: another of its tenant is at work")
    await work_off(hands_of(app, request.job, resources, stop=asyncio.Event()), claimed)
    async with resources.pool.acquire() as connection:
        runs = await recent_runs(connection, app.service, code=request.job.code, limit=100)
    ended = next(run for run in runs if run.id == asked.run)
    error = ended.error_message
    return JobRun(state=ended.state, processed=ended.processed, skipped=ended.skipped, failed=ended.failed, error=error)
