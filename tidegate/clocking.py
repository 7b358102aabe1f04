"""Jobs by the clock of an App, put together for one process and kept running in it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import structlog

from consumers.failure import RetryPolicy
from consumers.judging import Judge
from consumers.outages import POSTGRES, Outages, Probe
from tidegate.app import App
from tidegate.jobs.clockwork.checking import handlers_of
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.host import RUNS_AT_ONCE, ClockHost, Pace
from tidegate.jobs.clockwork.letters import LetterHome
from tidegate.jobs.clockwork.provider.calling import Supply, gate_of
from tidegate.jobs.clockwork.provider.declaration import ProviderSyncJob
from tidegate.jobs.clockwork.provider.road import ProviderRoad
from tidegate.jobs.clockwork.scheduler import Scheduler
from tidegate.jobs.clockwork.success import Successes
from tidegate.jobs.clockwork.units import RunHands
from tidegate.jobs.mediator import Mediator
from tidegate.resources import Resources
from tidegate.supervision import is_set_within
from tidegate.vitals import Vitals
from tidegate_kernel import logs
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.postgres import is_writable

_log = structlog.get_logger(__name__)

CONNECTIONS = 2 * RUNS_AT_ONCE + 2
"""What runs side by side hold at most: each a transaction, and the renewal of its lease; beside them the scheduler."""

_RESTART = RetryPolicy(name="restart")


async def open_clock(app: App, jobs: Sequence[ClockJob], resources: Resources, *, stop: asyncio.Event) -> ClockHost:
    """Registers the jobs and returns what runs them, by the clock of `resources`.

    Raises Misconfigured where they cannot start.
    """
    pace = Pace(grace=resources.settings.drain_timeout)
    scheduler = Scheduler(
        resources.pool,
        resources.clock,
        service=app.service,
        holder=resources.owner,
        deps=resources.deps,
        ttl=pace.lease_ttl,
    )
    try:
        await scheduler.begin(jobs)
    except Transient as error:
        raise Misconfigured(f"jobs by the clock cannot start: {error}") from error
    return ClockHost(
        scheduler,
        {number: hands_of(app, job, resources, stop=stop) for number, job in scheduler.jobs.items()},
        clock=resources.clock,
        metrics=resources.metrics,
        pace=pace,
        successes=Successes(resources.pool, scheduler.jobs, scheduler.known_scopes, resources.metrics),
    )


async def run_clock(host: ClockHost, vitals: Vitals, *, stop: asyncio.Event) -> None:
    """Returns after `stop`; a host that ends before that with an error is started anew after a pause."""
    vitals.watch_clock(lambda: host.last_sign)
    restarts = 0
    while not stop.is_set():
        try:
            await host.run(stop)
        except Exception as error:
            restarts += 1
            delay = _RESTART.delay(restarts, error)
            _log.error(logs.CLOCK_RESTARTED, restarts=restarts, wait_seconds=round(delay, 1), exc_info=error)
            await is_set_within(delay, stop)


def hands_of(app: App, job: ClockJob, resources: Resources, *, stop: asyncio.Event) -> RunHands:
    """What runs of the job are worked off with."""
    needed = [dependency for dependency in app.dependencies if dependency.name in job.needs]
    mediator = Mediator(
        job.job_code,
        {handler.command: handler for handler in handlers_of(job, app.handlers)},
        deps=resources.deps,
        clock=resources.clock,
        timeout=job.handler_timeout,
        threads=resources.threads,
        dependencies=needed,
    )
    probes: dict[str, Probe] = {POSTGRES: partial(is_writable, resources.settings.postgres_dsn.get_secret_value())}
    probes |= {dependency.name: dependency.probe for dependency in needed}
    gate = gate_of(app.service, job, resources.pool) if isinstance(job, ProviderSyncJob) else None
    outages = Outages(
        job.code,
        probes if gate is None else probes | {gate.provider: gate.is_closed},
        clock=resources.clock,
        metrics=resources.metrics,
        connections=resources.connections,
    )
    judge = Judge(job.retry, outages.all_answer)
    topic, most_replays = app.dlq_topic(job.job_code), resources.settings.max_replays
    letters = LetterHome(app.service, job.code, topic, app.version, most_replays)
    return RunHands(
        job,
        resources.pool,
        mediator,
        judge,
        resources.clock,
        resources.metrics,
        stop,
        letters,
        resources.settings.outbox_limit,
        road=None if gate is None else partial(ProviderRoad, Supply(app.service, gate)),
        outages=outages,
    )
