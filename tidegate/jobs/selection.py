"""Which part of which jobs somebody means: whole jobs, one partition, or what belongs to one tenant."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from consumers.intents import Intent
from tidegate.app import App
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.scopes import AcrossScopes
from tidegate.jobs.declaration import Job
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.permissions import Action, Deed


@dataclass(frozen=True, slots=True)
class Selection:
    """A part of one job, or of all jobs of the service at once (`service_wide`).

    `topic` None with a partition: that partition of every topic of the job.
    """

    app: App
    jobs: Sequence[Job | ClockJob]
    service_wide: bool = False
    topic: str | None = None
    partition: int | None = None
    tenant: str | None = None

    @property
    def part(self) -> tuple[str | None, int | None, str | None]:
        """Topic, partition and tenant, as an intent has them."""
        return self.topic, self.partition, self.tenant

    def deed(self, action: Action, reason: str, **parameters: object) -> Deed:
        """What has to be permitted: only a tenant's part lies within the scope of a token for that tenant."""
        named = {"topic": self.topic, "partition": self.partition, "tenant": self.tenant, **parameters}
        told = {name: value for name, value in named.items() if value is not None}
        target = f"{self.app.service}.*" if self.service_wide else self.app.group(self.jobs[0].job_code)
        return Deed(action, target, reason, told, tenant=self.tenant)

    def require_one_of(self, known: Sequence[TopicPartition]) -> None:
        """Raises Misconfigured for a partition that is none of the `known`, if any are: it is a typing error."""
        if self.partition is None or not known:
            return
        if not any(each.partition == self.partition and self.topic in (None, each.topic) for each in known):
            asked = str(self.partition) if self.topic is None else f"{self.topic}:{self.partition}"
            there = ", ".join(f"{topic}:{partition}" for topic, partition in known)
            raise Misconfigured(f"job {self.jobs[0].code!r} has no partition {asked}; it has {there}")


def select(
    app: App, code: str | None, *, all_jobs: bool = False, place: str | None = None, tenant: str | None = None
) -> Selection:
    """Returns what the words of a command mean; `place` is `TOPIC:N`, or `N` for every topic of the job.

    Raises Misconfigured for words that mean nothing.
    """
    if all_jobs == (code is not None):
        known = ", ".join(sorted(app.codes))
        raise Misconfigured(f"name a job, or say --all; the jobs of service {app.service!r}: {known}")
    if place is not None and (tenant is not None or code is None):
        raise Misconfigured("--partition takes a whole partition of one job: it goes with neither --tenant nor --all")
    named = [*app.jobs, *app.clock_jobs] if code is None else [app.any_job(code)]
    jobs = _with_tenants(named, tenant)
    topic, partition = (None, None) if place is None else parse_place(jobs[0], place)
    return Selection(app, jobs, service_wide=code is None, topic=topic, partition=partition, tenant=tenant)


def parse_place(job: Job | ClockJob, text: str) -> tuple[str | None, int]:
    """Returns topic (None: every topic of the job) and partition. Raises Misconfigured."""
    if isinstance(job, ClockJob):
        raise Misconfigured(f"job {job.code!r} runs by the clock: it has no partitions")
    topic, _, number = text.rpartition(":")
    if not (number.isascii() and number.isdigit()) or len(number) > 9:
        raise Misconfigured(f"partition {text!r} is neither a number nor TOPIC:NUMBER")
    if topic and topic not in {each.name for each in job.topics}:
        known = ", ".join(sorted(each.name for each in job.topics))
        raise Misconfigured(f"job {job.code!r} does not read topic {topic!r}; it reads {known}")
    return topic or None, int(number)


def part_of(intent: Intent) -> str:
    """What of a job an intent means, for a person."""
    if intent.tenant is not None:
        return f"tenant {intent.tenant!r}"
    if intent.partition is None:
        return "all of it" if intent.topic is None else intent.topic
    return f"partition {intent.partition}" if intent.topic is None else f"{intent.topic}:{intent.partition}"


def resume_command(job: str, intent: Intent) -> str:
    """What ends this pause, to copy."""
    words = f"tidegate resume {job}"
    if intent.tenant is not None:
        return f"{words} --tenant {shlex.quote(intent.tenant)}"
    if intent.partition is None:
        return words
    place = str(intent.partition) if intent.topic is None else f"{intent.topic}:{intent.partition}"
    return f"{words} --partition {place}"


def _with_tenants(jobs: Sequence[Job | ClockJob], tenant: str | None) -> Sequence[Job | ClockJob]:
    """The jobs that can tell a tenant's events; all of them where no tenant is meant. Raises Misconfigured for none."""
    if tenant is None:
        return jobs
    if not tenant or "\0" in tenant:
        raise Misconfigured("--tenant needs a tenant's name; what has no tenant cannot be paused by one")
    telling = [job for job in jobs if _tells_tenants(job)]
    if not telling:
        codes = ", ".join(repr(job.code) for job in jobs)
        raise Misconfigured(
            f"--tenant: no topic of {codes} says where its events' tenant stands; declare Topic(scope=ScopeFields(…))"
        )
    return telling


def _tells_tenants(job: Job | ClockJob) -> bool:
    if isinstance(job, ClockJob):
        return not isinstance(job.scopes, AcrossScopes)
    return any(topic.scope.tenant is not None for topic in job.topics)
