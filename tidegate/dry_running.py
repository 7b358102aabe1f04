"""`tidegate jobs run JOB --dry-run`: what a job that removes things would remove, told by this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidegate.app import App
from tidegate.clocking import hands_of
from tidegate.jobs.clockwork.maintenance_job import MaintenanceJob
from tidegate.jobs.clockwork.maintenance_preview import Preview, Supposed, preview
from tidegate.jobs.clockwork.maintenance_upkeep import RESERVED
from tidegate.jobs.clockwork.requests import RunRequest, check_request
from tidegate.jobs.clockwork.scopes import AcrossScopes, scopes_of
from tidegate.resources import open_resources
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import NO_SCOPE, Scope
from tidegate_kernel.settings import Settings


async def dry_run(app: App, settings: Settings, asked: RunRequest, *, stop: asyncio.Event) -> Sequence[Preview]:
    """Returns what a run of the job would remove, scope by scope; nothing is removed, and no run is made.

    Without a tenant it tells of all scopes that the job is declared for.

    Raises Misconfigured for a job that removes nothing, QueryFailed, Transient.
    """
    job = asked.job
    if not isinstance(job, MaintenanceJob):
        raise Misconfigured(
            f"job {job.code!r} is a {type(job).__name__}: --dry-run tells what a MaintenanceJob would remove"
        )
    if job.code.startswith(RESERVED):
        raise Misconfigured(
            f"job {job.code!r} is Tidegate's own upkeep, which goes by {job.retention}; --dry-run asks the query of a "
            "job of the application"
        )
    clock = SystemClock()
    async with open_resources(app, settings, jobs=0, clock=clock) as resources:
        hands = hands_of(app, job, resources, stop=stop)
        told = []
        for scope in await _scopes(job, asked, resources.deps):
            if stop.is_set():
                break
            told.append(await preview(hands, job, Supposed(scope=scope, at=asked.at, parameters=asked.parameters)))
        return told


async def _scopes(job: MaintenanceJob, asked: RunRequest, deps: object) -> Sequence[Scope]:
    if asked.scope != NO_SCOPE or isinstance(job.scopes, AcrossScopes):
        check_request(asked)
        return [asked.scope]
    return await scopes_of(job.code, job.scopes, deps)
