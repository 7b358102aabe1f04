"""The registry: what every job of an App is, told from its declaration alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.app import App
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.scopes import AcrossScopes
from tidegate.jobs.commands import commands_of
from tidegate.jobs.declaration import ConsumerJob, FoldJob, Job


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryEntry:
    """A job as the registry has it; every text is for people. None: the kind has no such thing."""

    code: str
    kind: str
    owner: str
    tier: str
    trigger: str
    query: str | None
    command: str
    scopes: str
    idempotency_key: str
    lock_key: str
    checkpoint: str
    unit: str
    batch_size: str
    max_duration: str | None
    retry: str
    partial_failure: str
    freshness_sla: str | None
    runbook: str


def registry(app: App) -> Sequence[RegistryEntry]:
    """Returns an entry for every job, in the order of their declaration."""
    return [entry_of(app, job) for job in (*app.jobs, *app.clock_jobs)]


def entry_of(app: App, job: Job | ClockJob) -> RegistryEntry:
    """What the registry says of a job."""
    return _of_clock(app, job) if isinstance(job, ClockJob) else _of_topics(app, job)


def _of_clock(app: App, job: ClockJob) -> RegistryEntry:
    lock, own = job.lock_key or job.code, job.idempotency_key
    return RegistryEntry(
        code=job.code,
        kind=type(job).__name__,
        owner=job.owner or app.owner,
        tier=job.tier,
        trigger="by hand" if job.trigger is None else f"{job.trigger}, or by hand",
        query=_requests(job.query),
        command=_requests(job.command),
        scopes=_scopes(job),
        idempotency_key="the item's key, once for each occasion"
        if own is None
        else f"{own.__qualname__}(item, occasion)",
        lock_key=f"job:{app.service}/{lock}/{{tenant}}/{{brand}}",
        checkpoint=(
            "key of the last item; each occasion begins at the start"
            if job.checkpoint == "run"
            else "key of the last item; each run goes on where the last one ended"
        ),
        unit=job.unit,
        batch_size=str(job.batch_size),
        max_duration=str(job.max_duration),
        retry=f"an item {job.retry.attempts} times ({job.retry.name}), a run {job.run_attempts} times",
        partial_failure=job.partial_failure,
        freshness_sla=None,
        runbook=job.runbook,
    )


def _of_topics(app: App, job: Job) -> RegistryEntry:
    acts_once = isinstance(job, ConsumerJob | FoldJob)
    order = "waits behind it" if job.order == "park" else "passes"
    return RegistryEntry(
        code=job.code,
        kind=type(job).__name__,
        owner=job.owner or app.owner,
        tier=job.tier,
        trigger="topics " + ", ".join(topic.name for topic in job.topics),
        query=None,
        command=", ".join(_requests(route.function) for route in job.events),
        scopes="those of the events",
        idempotency_key="the event's id, claimed" if acts_once else "the document's version",
        lock_key="ownership of a partition, by epoch",
        checkpoint="position in each partition",
        unit="batch of one partition",
        batch_size="by default" if job.batch_size is None else str(job.batch_size),
        max_duration=str(job.handler_timeout) if isinstance(job, ConsumerJob) else None,
        retry=f"{job.retry.attempts} times ({job.retry.name})",
        partial_failure=f"dead letter; what follows of its key {order}" if acts_once else "dead letter",
        freshness_sla=None if isinstance(job, ConsumerJob) else str(job.freshness_sla),
        runbook=job.runbook,
    )


def _requests(function: object) -> str:
    """The classes that a function makes, or its name where it does not tell."""
    assert callable(function)
    made = commands_of(function)
    return " or ".join(each.__name__ for each in made) or str(getattr(function, "__qualname__", function))


def _scopes(job: ClockJob) -> str:
    match job.scopes:
        case AcrossScopes(reason=reason):
            return f"all at once: {reason}"
        case scopes if callable(scopes):
            return f"{scopes.__qualname__}(deps), one at a time" if hasattr(scopes, "__qualname__") else "asked for"
        case scopes:
            return ", ".join(sorted({"/".join(filter(None, (each.tenant, each.brand))) for each in scopes}))
