"""The application: everything it runs, in one place, checked before anything starts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

from consumers.topics import RecordTime, Topic
from projections.folds.codec import StateCodec
from projections.sink import NO_SINK
from tidegate.jobs.clockwork.checking import check_clock_job, check_providers
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.maintenance_job import MaintenanceJob
from tidegate.jobs.clockwork.maintenance_upkeep import RESERVED, upkeep_jobs
from tidegate.jobs.commands import commands_of
from tidegate.jobs.declaration import ConsumerJob, Dependency, FoldJob, Job, OnceJob, ProjectionJob, SinkJob, Tier
from tidegate.jobs.handlers import Handler
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import JobCode

# Kafka's own rule for topic names, which service and code become part of.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_SINK_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


@dataclass(frozen=True, kw_only=True)
class App:
    """A service's jobs and handlers. Constructing it checks them all; raises Misconfigured naming job and field.

    Of a projection with several sinks, `jobs` holds one job for each of them from then on. `lifespan` opens what
    handlers need and yields it as `ctx.deps`. `migrations` is a folder of the service's own `.sql` files, run in name
    order by `tidegate migrate`. `version` is told with dead letters and traces.
    `clock_jobs`: what runs by the clock or by hand, beside the consumers of `jobs`.
    """

    service: str
    owner: str
    jobs: Sequence[Job] = ()
    handlers: Sequence[Handler] = ()
    lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None
    dependencies: Sequence[Dependency] = ()
    migrations: Path | None = None
    version: str = ""
    clock_jobs: Sequence[ClockJob] = ()

    def __post_init__(self) -> None:
        for job in self.jobs:
            _check_reads_topics(job)
            if isinstance(job, ProjectionJob):
                _check_sinks(job)
        object.__setattr__(self, "jobs", _one_for_each_sink(self.jobs))
        _check_name("App.service", self.service)
        if not self.owner:
            raise Misconfigured("App.owner is missing; it names who answers for the service")
        _check_unique("job code", (job.code for job in (*self.jobs, *self.clock_jobs)))
        _check_not_ours(self.codes)
        _check_unique("handler of command", (_full_name(handler.command) for handler in self.handlers))
        _check_unique("dependency", (dependency.name for dependency in self.dependencies))
        for job in self.jobs:
            self._check(job)
        check_providers(self.clock_jobs)
        for clock_job in self.clock_jobs:
            _check_name(f"job {clock_job.code!r}: code", clock_job.code)
            check_clock_job(clock_job, self.commands, {dependency.name for dependency in self.dependencies})

    @property
    def upkeep_jobs(self) -> Sequence[MaintenanceJob]:
        """Tidegate's own jobs, which every worker runs beside those of the application."""
        return upkeep_jobs([job.code for job in self.jobs if isinstance(job, ProjectionJob | FoldJob)])

    @property
    def codes(self) -> Sequence[str]:
        """The codes of all jobs, in their order, those by the clock last; without Tidegate's own."""
        return [job.code for job in (*self.jobs, *self.clock_jobs)]

    def any_job(self, code: str) -> Job | ClockJob:
        """Returns the job with that code, whatever its kind. Raises Misconfigured as `job`."""
        for job in (*self.clock_jobs, *self.upkeep_jobs):
            if job.code == code:
                return job
        return self.job(code)

    def clock_job(self, code: str) -> ClockJob:
        """Returns the job by the clock with that code. Raises Misconfigured listing the codes there are."""
        for job in (*self.clock_jobs, *self.upkeep_jobs):
            if job.code == code:
                return job
        known = ", ".join(sorted(job.code for job in self.clock_jobs)) or "none"
        raise Misconfigured(f"service {self.service!r} has no job {code!r} by the clock; those are: {known}")

    def job(self, code: str) -> Job:
        """Returns the job with that code. Raises Misconfigured listing the codes there are."""
        for job in self.jobs:
            if job.code == code:
                return job
        if any(job.code == code for job in self.upkeep_jobs):
            raise Misconfigured(f"job {code!r} is Tidegate's own upkeep: every worker runs it")
        if any(job.code == code for job in self.clock_jobs):
            raise Misconfigured(
                f"job {code!r} runs by the clock and reads no topic; 'tidegate jobs runs {code}' shows it"
            )
        if several := [job.code for job in self.jobs if job.code.startswith(f"{code}.")]:
            raise Misconfigured(
                f"job {code!r} has several sinks, and each of them is a job of its own: name {' or '.join(several)}"
            )
        known = ", ".join(sorted(self.codes)) or "none"
        raise Misconfigured(f"service {self.service!r} has no job {code!r}; its jobs: {known}")

    def group(self, code: JobCode) -> str:
        """The Kafka consumer group of a job."""
        return f"{self.service}.{code}"

    def dlq_topic(self, code: JobCode) -> str:
        """The topic that a job's dead letters are published to."""
        return f"{self.service}.{code}.dlq"

    @property
    def dlq_topics(self) -> Sequence[str]:
        """The topics of dead letters: of every job, but for those by the clock that make none."""
        jobs = [*self.jobs, *(job for job in self.clock_jobs if job.partial_failure == "quarantine")]
        return [self.dlq_topic(job.job_code) for job in jobs]

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Every topic that some job reads, by name."""
        return {topic.name: topic for job in self.jobs for topic in job.topics}

    @property
    def commands(self) -> Mapping[type[Any], Handler]:
        """Handlers by the command they take."""
        return {handler.command: handler for handler in self.handlers}

    def handlers_of(self, job: ConsumerJob) -> Sequence[Handler]:
        """The handlers that the job's events may come to: all of them, where a mapping function does not tell."""
        commands = [commands_of(route.function) for route in job.events]
        if not all(commands):
            return self.handlers
        mine = {command for of in commands for command in of}
        return [handler for handler in self.handlers if handler.command in mine]

    def _check(self, job: Job) -> None:
        _check_name(f"job {job.code!r}: code", job.code)
        _require(job, "topics", job.topics)
        _require(job, "events", job.events)
        _require(job, "runbook", job.runbook)
        _check_words(job)
        if job.unlisted not in ("skip", "dead_letter"):
            raise Misconfigured(f"job {job.code!r}: unlisted must be 'skip' or 'dead_letter', not {job.unlisted!r}")
        if job.batch_size is not None and job.batch_size < 1:
            raise Misconfigured(f"job {job.code!r}: batch_size must be at least 1, not {job.batch_size}")
        if job.dedupe_horizon is not None and job.dedupe_horizon <= timedelta(0):
            raise Misconfigured(f"job {job.code!r}: dedupe_horizon must be positive, not {job.dedupe_horizon}")
        for name in job.subjects:
            if not name.isidentifier():
                raise Misconfigured(f"job {job.code!r}: subjects names {name!r}; it may hold letters, digits and '_'")
        _check_unique(f"job {job.code!r}: topic", (topic.name for topic in job.topics))
        _check_unique(f"job {job.code!r}: event type", (route.type for route in job.events))
        match job:
            case ConsumerJob():
                self._check_consumer(job)
            case ProjectionJob():
                _check_projection(job)
            case FoldJob():
                _check_fold(job)

    def _check_consumer(self, job: ConsumerJob) -> None:
        if not timedelta(0) < job.handler_timeout < job.silence_limit:
            raise Misconfigured(
                f"job {job.code!r}: handler_timeout ({job.handler_timeout}) must be positive and below silence_limit "
                f"({job.silence_limit}), at which Postgres ends the transaction"
            )
        _check_order(job)
        unknown = sorted(set(job.needs) - {dependency.name for dependency in self.dependencies})
        if unknown:
            raise Misconfigured(f"job {job.code!r}: needs {unknown} but App.dependencies does not name them")
        for route in job.events:
            for command in commands_of(route.function):
                if command not in self.commands:
                    raise Misconfigured(
                        f"job {job.code!r}: event {route.type!r} becomes {command.__name__}, which no handler takes; "
                        f"add handle({command.__name__}, …) to App.handlers"
                    )


def _check_order(job: OnceJob) -> None:
    if job.order not in ("park", "skip"):
        raise Misconfigured(
            f"job {job.code!r}: order must be 'park' or 'skip', not {job.order!r}; neither a handler nor a fold can "
            "tell which of two events is the newer one, as a projection's versions do"
        )
    if job.order == "skip" and job.order_key is not None:
        raise Misconfigured(f"job {job.code!r}: order_key has no meaning with order='skip'; leave one of them out")


def _one_for_each_sink(jobs: Sequence[Job]) -> Sequence[Job]:
    return [each for job in jobs for each in (job.of_each_sink() if isinstance(job, ProjectionJob) else [job])]


def _check_reads_topics(job: object) -> None:
    """Nothing but a type checker keeps a job by the clock out of the wrong list."""
    if isinstance(job, ClockJob):
        raise Misconfigured(f"job {job.code!r} runs by the clock; list it in App.clock_jobs")


def _check_sinks(job: ProjectionJob) -> None:
    if (job.sink is NO_SINK) != bool(job.sinks):
        raise Misconfigured(f"job {job.code!r}: declare either sink or sinks; a projection writes to one or to several")
    for name in job.sinks:
        if not _SINK_NAME.fullmatch(name):
            raise Misconfigured(
                f"job {job.code!r}: sinks names {name!r}, which becomes part of a job's code; it may hold lower-case "
                "letters, digits, '_' and '-', at most 40"
            )


def _check_projection(job: ProjectionJob) -> None:
    if job.order != "latest-wins":
        raise Misconfigured(
            f"job {job.code!r}: order must be 'latest-wins', not {job.order!r}: a projection's writes are versioned, "
            "and out before anything could be parked"
        )
    _check_freshness(job)
    for topic in job.topics:
        if topic.compacted and topic.tombstone is None:
            raise Misconfigured(
                f"job {job.code!r}: topic {topic.name!r} is compacted, so records without a value delete; "
                "give the topic a tombstone function"
            )
        if isinstance(topic.tombstone_version, RecordTime) and not job.versions_are_times:
            raise Misconfigured(
                f"job {job.code!r}: topic {topic.name!r} gives records without a value their time as version, which "
                "only times can be compared with; declare versions_are_times=True if all versions of the job are times "
                "in that unit, or tombstone_version=VersionHeader(…)"
            )


def _check_fold(job: FoldJob[Any]) -> None:
    _check_order(job)
    _check_freshness(job)
    try:
        StateCodec(job.state)
    except Misconfigured as error:
        raise Misconfigured(f"job {job.code!r}: {error}") from error
    if job.across_tenants is not None and not job.across_tenants.strip():
        raise Misconfigured(f"job {job.code!r}: across_tenants has to say why its states may mix tenants")


def _check_freshness(job: SinkJob) -> None:
    if job.freshness_sla.total_seconds() <= 0:
        raise Misconfigured(f"job {job.code!r}: freshness_sla must be positive")
    if not 0 < job.freshness_objective < 1:
        raise Misconfigured(
            f"job {job.code!r}: freshness_objective must lie between 0 and 1, as 0.99, not {job.freshness_objective}; "
            "1 would leave no budget to burn"
        )


def _check_words(job: Job) -> None:
    if job.tier not in get_args(Tier):
        raise Misconfigured(f"job {job.code!r}: tier must be one of {', '.join(get_args(Tier))}, not {job.tier!r}")
    if job.purpose is not None and not str(job.purpose).strip():
        raise Misconfigured(f"job {job.code!r}: purpose is empty: say what the job is for, or leave it to its kind")


def _full_name(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _require(job: Job, name: str, value: object) -> None:
    if not value:
        raise Misconfigured(f"job {job.code!r}: {name} is missing; every job has to declare it")


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise Misconfigured(f"{what} {name!r} may hold lower-case letters, digits, '.', '_' and '-', at most 100")


def _check_not_ours(codes: Iterable[str]) -> None:
    for code in codes:
        if code.startswith(RESERVED):
            raise Misconfigured(f"job {code!r}: codes that begin with {RESERVED!r} are those of Tidegate's own upkeep")


def _check_unique(what: str, names: Iterable[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise Misconfigured(f"{what} {twice[0]!r} is declared twice")
