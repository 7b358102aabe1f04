"""The registry: what every job of an App is, told from its declaration alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidegate.app import App
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.maintenance_job import MaintenanceJob
from tidegate.jobs.clockwork.maintenance_upkeep import is_upkeep
from tidegate.jobs.clockwork.provider.declaration import ProviderSyncJob
from tidegate.jobs.clockwork.scopes import AcrossScopes
from tidegate.jobs.commands import commands_of
from tidegate.jobs.declaration import ConsumerJob, FoldJob, Job, ProjectionJob, SinkJob, acts_once, batch_size_of
from tidegate.jobs.docs import of_clock, of_topics
from tidegate.jobs.docs.requests import function_name, requests_of, work_of
from tidegate.jobs.docs.sections import type_of
from tidegate.jobs.docs.sheet import Sheet, kind_of
from tidegate.jobs.text import Language, in_language
from tidegate_kernel.event import JobCode

_TYPES: Mapping[str, str] = {
    "cron": "Scheduled",
    "every": "Recurring",
    "manual": "One-off",
    "topics": "Queue worker",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryEntry:
    """A job as the registry has it; every text is for people. None: the kind has no such thing, or none was declared.

    `batch_size` is in records of a partition or in items; `max_duration_seconds` of a claim of a run, or of a call of a
    handler on topics. `kind_needs`: what the standard asks of its kind, and how the declaration meets it; its words are
    no field's.
    """

    code: str
    kind: str
    type: str
    purpose: str
    service: str
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
    batch_size: int | None
    max_duration_seconds: float | None
    retry: str
    partial_failure: str
    freshness_sla_seconds: float | None
    runbook: str
    kind_needs: Mapping[str, str]


def registry(app: App) -> Sequence[RegistryEntry]:
    """Returns an entry for every job, in the order of their declaration."""
    return [entry_of(app, job) for job in (*app.jobs, *app.clock_jobs)]


def upkeep_registry(app: App) -> Sequence[RegistryEntry]:
    """Returns an entry for every job of Tidegate's own upkeep of the service."""
    return [entry_of(app, job) for job in app.upkeep_jobs]


def unchecked_requests(app: App) -> Sequence[str]:
    """Sentences about functions that do not say what they make: whether it has a handler shows when they run."""
    consumers = [job for job in app.jobs if isinstance(job, ConsumerJob)]
    functions: list[tuple[str, Callable[..., Any]]] = [
        (job.code, each.function) for job in consumers for each in job.events
    ]
    functions += [(job.code, each) for job in app.clock_jobs for each in (job.query, job.command)]
    return [
        f"job {code!r}: {function_name(function)} does not say what it makes, so that its handler is not checked; "
        "annotate what it returns"
        for code, function in functions
        if not commands_of(function)
    ]


def entry_of(app: App, job: Job | ClockJob) -> RegistryEntry:
    """What the registry says of a job."""
    if not isinstance(job, ClockJob):
        return _of_topics(app, job)
    return _of_upkeep(app, job) if is_upkeep(job) else _of_clock(app, job)


def _of_upkeep(app: App, job: ClockJob) -> RegistryEntry:
    """Upkeep asks no handler, and has no items: the defaults of its declaration mean nothing."""
    return replace(
        _of_clock(app, job),
        query=None,
        command="a round of its own",
        idempotency_key="none: what is gone is not removed twice",
        checkpoint="none: each run begins its round at the start",
        unit="chunk of its round",
        batch_size=None,
        retry=f"a run {job.run_attempts} times",
        partial_failure="stop",
    )


def _of_clock(app: App, job: ClockJob) -> RegistryEntry:
    return RegistryEntry(
        code=job.code,
        kind=type(job).__name__,
        type=_TYPES[type_of(job)],
        purpose=purpose_of(job),
        service=app.service,
        owner=job.owner or app.owner,
        tier=job.tier,
        trigger="by hand" if job.trigger is None else f"{job.trigger}, or by hand",
        query=requests_of(job.query),
        command=requests_of(job.command),
        scopes=_scopes(job),
        idempotency_key=_key_of_items(job),
        lock_key=of_clock.lock_of(app, job),
        checkpoint=_checkpoint(job),
        unit=job.unit,
        batch_size=job.batch_size,
        max_duration_seconds=job.max_duration.total_seconds(),
        retry=f"an item {job.retry.attempts} times ({job.retry.name}), a run {job.run_attempts} times",
        partial_failure=job.partial_failure,
        freshness_sla_seconds=None if job.freshness_sla is None else job.freshness_sla.total_seconds(),
        runbook=job.runbook,
        kind_needs=_clock_needs(app, job),
    )


def _of_topics(app: App, job: Job) -> RegistryEntry:
    is_once = acts_once(job)
    order = "waits behind it" if job.order == "park" else "passes"
    return RegistryEntry(
        code=job.code,
        kind=type(job).__name__,
        type=_TYPES[type_of(job)],
        purpose=purpose_of(job),
        service=app.service,
        owner=job.owner or app.owner,
        tier=job.tier,
        trigger="topics " + ", ".join(topic.name for topic in job.topics),
        query=None,
        command=", ".join(dict.fromkeys(work_of(job, route) for route in job.events)),
        scopes="those of the events",
        idempotency_key="the event's id, claimed" if is_once else "the document's version",
        lock_key=of_topics.lock_of(app, job),
        checkpoint="position in each partition",
        unit="batch of one partition",
        batch_size=batch_size_of(job),
        max_duration_seconds=job.handler_timeout.total_seconds() if isinstance(job, ConsumerJob) else None,
        retry=f"{job.retry.attempts} times ({job.retry.name})",
        partial_failure=f"dead letter; what follows of its key {order}" if is_once else "dead letter",
        freshness_sla_seconds=(job.freshness_sla.total_seconds() if isinstance(job, ProjectionJob | FoldJob) else None),
        runbook=job.runbook,
        kind_needs=_topic_needs(app, job),
    )


def purpose_of(job: Job | ClockJob) -> str:
    """What the job is for: as declared, else what its kind is for."""
    if job.purpose is not None:
        return in_language(job.purpose, Language.EN)
    return Sheet.words(Language.EN, f"purpose.{kind_of(job)}", provider=getattr(job, "provider", ""))


def _clock_needs(app: App, job: ClockJob) -> Mapping[str, str]:
    match job:
        case MaintenanceJob():
            audit = "each chunk of removals" if job.is_sensitive else "not sensitive"
            return {"retention policy": str(job.retention), "audit": audit}
        case ProviderSyncJob():
            access = ", ".join(sorted("/".join(filter(None, (each.tenant, each.brand))) for each in job.access))
            limit, circuit = job.rate_limit, job.circuit
            return {
                "access control": f"provider {job.provider!r} for {access}",
                "rate limit": f"{limit.calls} calls in {limit.per} over all processes",
                "circuit breaker": f"after {circuit.failures} failures for {circuit.rest}",
            }
        case _:
            metrics = ", ".join(metric for _, metric in of_clock.metrics(job))
            return {"distributed lock": of_clock.lock_of(app, job), "checkpoint of": job.checkpoint, "metrics": metrics}


def _topic_needs(app: App, job: Job) -> Mapping[str, str]:
    letters = app.dlq_topic(JobCode(job.code))
    if isinstance(job, ConsumerJob):
        return {
            "idempotency": "event ids claimed in the inbox, in the handlers' transaction",
            "retry policy": f"{job.retry.attempts} times ({job.retry.name})",
            "dead-letter policy": f"{letters}, order {job.order!r}",
        }
    sink_job: SinkJob = job
    return {
        "freshness objective": f"{sink_job.freshness_sla} for {sink_job.freshness_objective:.0%} of the time",
        "replay": f"tidegate dlq replay --job {job.code}",
        "backfill": f"tidegate run {job.code} --backfill",
    }


def _checkpoint(job: ClockJob) -> str:
    if isinstance(job, ProviderSyncJob):
        others = "also those of other occasions go" if job.checkpoint == "job" else "its retries go"
        return f"the provider's page, where a run broke off: {others} on there; a cursor moves when all is here"
    if job.checkpoint == "run":
        return "key of the last item; each occasion begins at the start"
    return "key of the last item; each run goes on where the last one ended"


def _key_of_items(job: ClockJob) -> str:
    if job.idempotency_key is not None:
        return f"{function_name(job.idempotency_key)}(item, occasion)"
    if isinstance(job, ProviderSyncJob):
        return "the item's key and version"
    return "the item's key, once for each occasion"


def _scopes(job: ClockJob) -> str:
    match job.scopes:
        case AcrossScopes(reason=reason):
            return f"all at once: {reason}"
        case scopes if callable(scopes):
            return f"{function_name(scopes)}(deps), one at a time"
        case scopes:
            return ", ".join(sorted({"/".join(filter(None, (each.tenant, each.brand))) for each in scopes}))
