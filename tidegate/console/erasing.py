"""Erasing one subject from what is kept of a service's failures: first the plan, then, permitted and audited, the deed.

The audit tells how much was erased, by whom and why, and by which kind of field it was sought; of the subject it keeps
nothing, not even a digest: who is sought among ten million people is found by hashing them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from consumers.subjects import SubjectOf, SubjectSeeker
from dlq.forgetting.erasure import (
    Erased,
    Extent,
    Held,
    erase,
    events_in_outbox,
    extent_of,
    held_as_letter,
    held_of_key,
    loose_events,
)
from dlq.letters import Origin
from dlq.sequences import limit_waiting
from tidegate.app import App
from tidegate.console.subject_search import search
from tidegate.jobs.declaration import Job
from tidegate.jobs.decoding import decoder_of
from tidegate_kernel.audit import permitted, refuse_early
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import JobCode, JobId
from tidegate_kernel.permissions import Action, Actor, Deed
from tidegate_kernel.postgres import Connection, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries("tidegate.console")

# Of each a few statements; the sequences of their keys are locked meanwhile.
_CHUNK = 100
# A handler in a replay may hold a sequence for its whole time limit.
_LOCK_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is erased: all of a record's or an item's key, every event whose field says `value`, or a letter."""

    key: bytes | None = None
    field: str = ""
    value: str = ""
    letter: UUID | None = None

    @property
    def kind(self) -> str:
        """How it is sought, for the audit: never what."""
        if self.letter is not None:
            return f"letter {self.letter}"
        return "key" if self.key is not None else f"field {self.field}"


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What one job holds of the subject. `unknown`: letters and parked events that could not be looked into."""

    origin: Origin
    held: Held
    extent: Extent
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class ErasurePlan:
    """`blind`: jobs that declare no such field. `published`: events of the key in the outbox, which are not erased."""

    subject: Subject
    jobs: Sequence[JobPlan]
    blind: Sequence[str]
    published: int

    @property
    def found(self) -> int:
        """How many letters, parked events and items would be erased."""
        return sum(len(each.held) for each in self.jobs)


@dataclass(frozen=True, slots=True)
class JobErased:
    """What was done of one job. `loose`: events that wait with no letter before them, until the next run."""

    erased: Erased
    loose: int


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A job as Postgres knows it; `declared` None: the App has it no more."""

    origin: Origin
    declared: Job | None


async def plan_erasure(connection: Connection, app: App, codes: Sequence[str] | None, subject: Subject) -> ErasurePlan:
    """Returns what an erasure would reach, of some jobs or of all the service has had. Changes nothing.

    Raises Misconfigured for a job that is not there, and where no job declares the field; Transient.
    """
    with translated_errors("plan an erasure"):
        jobs = await _jobs(connection, app, codes)
        seeing = [job for job in jobs if not subject.field or _subject_of(job, subject.field) is not None]
        if not seeing and subject.field:
            raise Misconfigured(_no_such_field(jobs, subject.field))
        plans = [await _plan(connection, job, subject) for job in seeing]
        published = 0 if subject.key is None else await events_in_outbox(connection, subject.key)
    blind = sorted({job.origin.job_code for job in jobs} - {job.origin.job_code for job in seeing})
    return ErasurePlan(subject, plans, blind, published)


async def erase_subject(
    connection: Connection, actor: Actor, app: App, plan: ErasurePlan, *, reason: str
) -> Sequence[JobErased]:
    """What `plan` found is erased, some letters at a time: each time a transaction with its own row in the audit.

    Returns what was done, in the order of the plan's jobs. Raises Denied; Transient, with what was done by then done.
    """
    await refuse_early(connection, actor, _deed(app.service, plan.subject, reason, {}))
    if plan.found == 0:
        # Also that nothing was there is something to show later.
        async with permitted(connection, actor, _deed(app.service, plan.subject, reason, {"letters": {}, "parked": 0})):
            return [JobErased(Erased({}, 0, 0, 0), 0) for _ in plan.jobs]
    return [await _erase_job(connection, actor, app, plan.subject, job, reason=reason) for job in plan.jobs]


async def _erase_job(
    connection: Connection, actor: Actor, app: App, subject: Subject, job: JobPlan, *, reason: str
) -> JobErased:
    whole = Erased({}, 0, 0, 0)
    for held in _chunks(job.held):
        told: dict[str, Any] = {"by": subject.kind}
        deed = Deed(Action.DLQ_ERASE, app.group(JobCode(job.origin.job_code)), reason, told)
        async with permitted(connection, actor, deed) as transaction:
            await limit_waiting(transaction, _LOCK_TIMEOUT)
            part = await erase(transaction, job.origin, held, reason=reason, made_by=actor.name)
            told |= _told(part)
        whole += part
    with translated_errors("look at what waits behind erased letters"):
        return JobErased(whole, await loose_events(connection, job.origin.job, whole.sequences))


def _told(part: Erased) -> Mapping[str, Any]:
    return {
        "letters": part.letters,
        "parked": part.parked,
        "edits": part.edits,
        "copies": part.copies,
        "items": part.items,
    }


def _deed(target: str, subject: Subject, reason: str, told: Mapping[str, Any]) -> Deed:
    return Deed(Action.DLQ_ERASE, target, reason, {"by": subject.kind, **told})


def _chunks(held: Held) -> Iterator[Held]:
    """The parked events first: what is left behind the letters then is somebody else's."""
    for start in range(0, len(held.parked), _CHUNK):
        yield Held(parked=held.parked[start : start + _CHUNK])
    for start in range(0, len(held.letters), _CHUNK):
        yield Held(letters=held.letters[start : start + _CHUNK])
    for start in range(0, len(held.items), _CHUNK):
        yield Held(items=held.items[start : start + _CHUNK])


async def _jobs(connection: Connection, app: App, codes: Sequence[str] | None) -> Sequence[_Numbered]:
    """Every generation of the jobs that Postgres knows."""
    rows = await connection.fetch(_QUERIES["job_generations"], app.service, codes)
    declared = {job.code: job for job in app.jobs}
    known = {row["code"] for row in rows}
    for code in codes or ():
        if code not in known:
            app.any_job(code)  # says which there are; one that has not started yet has kept nothing
    return [_Numbered(_origin(app, row), declared.get(row["code"])) for row in rows]


def _origin(app: App, row: Any) -> Origin:
    code = JobCode(row["code"])
    return Origin(
        job=JobId(row["id"]),
        job_code=code,
        service=app.service,
        group=app.group(code),
        service_version=app.version,
        dlq_topic=app.dlq_topic(code),
        generation=row["generation"],
    )


def _subject_of(job: _Numbered, field: str) -> SubjectOf | None:
    return None if job.declared is None else job.declared.subjects.get(field)


def _no_such_field(jobs: Sequence[_Numbered], field: str) -> str:
    there = sorted({name for job in jobs if job.declared is not None for name in job.declared.subjects})
    told = f"they declare: {', '.join(there)}" if there else "they declare none: subjects={…} of a job names them"
    return f"none of these jobs declares a field {field!r}; {told}; --key erases by the record's key"


async def _plan(connection: Connection, job: _Numbered, subject: Subject) -> JobPlan:
    if subject.key is not None:
        held, unknown = await held_of_key(connection, job.origin.job, subject.key), 0
    elif subject.letter is not None:
        held, unknown = await held_as_letter(connection, job.origin.job, subject.letter), 0
    else:
        held, unknown = await _sought(connection, job, subject)
    return JobPlan(job.origin, held, await extent_of(connection, job.origin, held), unknown)


async def _sought(connection: Connection, job: _Numbered, subject: Subject) -> tuple[Held, int]:
    """What of a job's letters and parked events is about the subject, and how many of them nobody can tell of."""
    declared, subject_of = job.declared, _subject_of(job, subject.field)
    assert declared is not None
    assert subject_of is not None
    seeker = SubjectSeeker(decoder_of(declared), subject_of, subject.value)
    return await search(connection, job.origin.job, seeker)
