"""Whether a job by the clock has in its App what it needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tidegate.jobs.clockwork.declaration import ClockJob, ScheduledJob
from tidegate.jobs.clockwork.maintenance_job import MaintenanceJob
from tidegate.jobs.clockwork.provider.declaration import ProviderSyncJob
from tidegate.jobs.commands import commands_of
from tidegate.jobs.handlers import Handler


def check_clock_job(job: ClockJob, handlers: Mapping[type[Any], Handler], dependencies: Collection[str]) -> None:
    """Raises Misconfigured, naming job and field, for a request without a handler, or a need that nothing names."""
    if type(job) not in (ScheduledJob, MaintenanceJob, ProviderSyncJob):
        raise job.wrong("kind", f"{type(job).__name__} is declared, and nothing runs such jobs; use a ScheduledJob")
    unknown = sorted(set(job.needs) - set(dependencies))
    if unknown:
        raise job.wrong("needs", f"{unknown} but App.dependencies does not name them")
    asks = "fetch" if isinstance(job, ProviderSyncJob) else "answer"
    for name, function, verb in (("query", job.query, asks), ("command", job.command, "handle")):
        for request in commands_of(function):
            if request not in handlers:
                raise job.wrong(
                    name,
                    f"becomes {request.__name__}, which no handler takes; "
                    f"add {verb}({request.__name__}, …) to App.handlers",
                )
            if name == "query" and not _answers(handlers[request], asks):
                raise job.wrong(name, f"becomes {request.__name__}, which another kind of handler takes; use {asks}(…)")


def check_providers(jobs: Sequence[ClockJob]) -> None:
    """Raises Misconfigured where two jobs call one provider by different rules: they share rate and circuit."""
    first: dict[str, ProviderSyncJob] = {}
    for job in jobs:
        if not isinstance(job, ProviderSyncJob):
            continue
        other = first.setdefault(job.provider, job)
        for name in ("rate_limit", "circuit"):
            if getattr(job, name) != getattr(other, name):
                raise job.wrong(name, f"differs from that of job {other.code!r}, which calls the same provider")


def _answers(handler: Handler, asks: str) -> bool:
    if asks == "fetch":
        return handler.fetches
    return not (handler.takes_group or handler.prepare is not None)


def handlers_of(job: ClockJob, handlers: Sequence[Handler]) -> Sequence[Handler]:
    """The handlers that the job's requests may come to: all of them, where its functions do not tell."""
    requests = [commands_of(job.query), commands_of(job.command)]
    if not all(requests):
        return handlers
    mine = {request for of in requests for request in of}
    return [handler for handler in handlers if handler.command in mine]
