"""Pauses: what an operator wants of jobs. Stored with who, why and until when; workers obey within two seconds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from consumers.intents import Intent, intent_of
from inbox.store import register_job
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.scheduler import CLAIM_RULE
from tidegate.jobs.declaration import Job
from tidegate.jobs.selection import Selection
from tidegate_kernel.audit import permitted
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import JobId, TopicPartition
from tidegate_kernel.permissions import Action, Actor
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries("tidegate.jobs")
_READ = load_queries("consumers")

_LONGEST = timedelta(days=366)


class Paused(NamedTuple):
    """One job's answer: the pause that stands, and whether it was made just now.

    `earlier` are older pauses of the same part that end sooner. `backfill` is a run under way: pauses hold back live
    consumers alone, so it goes on.
    """

    job: str
    pause: Intent
    is_new: bool
    earlier: Sequence[Intent]
    backfill: int | None


class Resumed(NamedTuple):
    """One job's answer: the pauses that were ended, and what still makes parts of it rest."""

    job: str
    ended: Sequence[Intent]
    remaining: Sequence[Intent]


class _Terms(NamedTuple):
    reason: str
    actor: str
    seconds: float | None


async def pause(
    database: Connection | Pool, actor: Actor, selection: Selection, *, reason: str, lasting: timedelta | None = None
) -> list[Paused]:
    """Every selected job has a standing pause that lasts for `lasting`, or until somebody resumes it.

    One that lasts as long already stays as it is, with its own reason. Raises Denied, Misconfigured, Transient.
    """
    if lasting is not None and not timedelta(0) < lasting <= _LONGEST:
        raise Misconfigured(f"a pause may last up to {_LONGEST.days} days; without an end it lasts until it is resumed")
    seconds = None if lasting is None else lasting.total_seconds()
    terms = _Terms(reason.strip(), actor.name, seconds)
    async with permitted(database, actor, selection.deed(Action.JOB_PAUSE, reason, seconds=seconds)) as connection:
        return [await _pause(connection, selection, job, terms) for job in selection.jobs]


async def resume(database: Connection | Pool, actor: Actor, selection: Selection, *, reason: str) -> list[Resumed]:
    """The pauses of exactly this part have ended; those of other parts stand. Nothing to end is no error.

    A job by its name ends also what was paused for the whole service; the whole service leaves what was paused by
    name. Raises Denied, Misconfigured, Transient.
    """
    async with permitted(database, actor, selection.deed(Action.JOB_RESUME, reason)) as connection:
        return [await _resume(connection, selection, job, by=actor.name) for job in selection.jobs]


async def standing_intents(connection: Connection, service: str) -> dict[str, list[Intent]]:
    """What is wanted now of each job of the service that something is wanted of. Raises Transient."""
    with translated_errors("read intents"):
        rows = await connection.fetch(_QUERIES["service_intents"], service)
    found: dict[str, list[Intent]] = {}
    for row in rows:
        found.setdefault(row["code"], []).append(intent_of(row))
    return found


async def _pause(connection: Connection, selection: Selection, job: Job | ClockJob, terms: _Terms) -> Paused:
    number = await _number(connection, selection, job)
    part = (number, *selection.part, selection.service_wide)
    rows = await connection.fetch(_QUERIES["pauses_of_part"], *part, terms.seconds)
    lasting = [intent_of(row) for row in rows if row["lasts"]]
    earlier = [intent_of(row) for row in rows if not row["lasts"]]
    backfill = await connection.fetchval(_QUERIES["backfill_at_work"], number)
    if lasting:
        return Paused(job.code, lasting[0], is_new=False, earlier=earlier, backfill=backfill)
    row = await connection.fetchrow(_QUERIES["start_pause"], *part, *terms)
    assert row is not None
    return Paused(job.code, intent_of(row), is_new=True, earlier=earlier, backfill=backfill)


async def _resume(connection: Connection, selection: Selection, job: Job | ClockJob, *, by: str) -> Resumed:
    number = await _number(connection, selection, job)
    rows = await connection.fetch(_QUERIES["end_pauses"], number, *selection.part, selection.service_wide, by)
    ended = sorted((intent_of(row) for row in rows), key=lambda intent: intent.id)
    remaining = await connection.fetch(_READ["standing_intents"], number)
    return Resumed(job.code, ended, [intent_of(row) for row in remaining])


async def _number(connection: Connection, selection: Selection, job: Job | ClockJob) -> JobId:
    """The job's number, also of one that never started: a job can be deployed paused.

    Its row is locked by that, so that what is wanted of a job is decided one after the other. What has expired by now
    is closed. Raises Misconfigured for a partition that the job does not have.
    """
    rule = CLAIM_RULE if isinstance(job, ClockJob) else job.claim_rule.spell()
    number = await register_job(connection, service=selection.app.service, code=job.job_code, claim_rule=rule)
    rows = await connection.fetch(_QUERIES["partitions_of_job"], number)
    selection.require_one_of([TopicPartition(row["topic"], row["partition"]) for row in rows])
    await connection.execute(_QUERIES["close_expired"], number)
    return number
