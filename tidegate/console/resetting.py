"""A projection made anew: its index or table emptied, with the declared schema, and filled again from its topics.

Planned first, permitted and audited, with the job paused. Killed anywhere in between, the same command does all of it
again; once the filling has begun, a backfill from the beginning resumes it as well. A fold is filled from its states,
by its workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from consumers.intents import Intent, IntentKind, intent_of
from consumers.presence import State
from tidegate.app import App
from tidegate.backfilling import BackfillOptions, BackfillReport, BackfillStart, run_backfill
from tidegate.console.stands import logs_of
from tidegate.jobs.declaration import FoldJob, Job, ProjectionJob, SinkJob, acts_once
from tidegate.jobs.rerendering import plan_rerender, rerender
from tidegate_kernel.audit import permitted, refuse_early
from tidegate_kernel.errors import Denied, Misconfigured, Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.permissions import Action, Actor, Deed
from tidegate_kernel.postgres import Connection, connect, translated_errors
from tidegate_kernel.queries import load_queries
from tidegate_kernel.settings import Settings
from tidegate_kernel.source import LogRange

_QUERIES = load_queries("tidegate.console")
_ROAD_QUERIES = load_queries("consumers")

# An owner renews what it says every ten seconds; later than this it is gone, or its word is worth nothing.
_FRESH_SECONDS = 30.0
_AT_REST = (
    State.PAUSED,
    State.BLOCKED,
    State.FLOOD,
    State.PARKING,
    State.OUTAGE,
    State.BACKLOG,
    State.RELEASED,
)


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """What a reset would do. `obstacles` are why it would be refused now, each with its remedy."""

    job: SinkJob
    where: str
    documents: int
    logs: Mapping[TopicPartition, LogRange]
    obstacles: Sequence[str]

    @property
    def gaps(self) -> Mapping[str, int]:
        """By partition, how many offsets its log no longer holds: what only they said would be gone."""
        return {str(partition): log.start for partition, log in sorted(self.logs.items()) if log.start > 0}

    @property
    def to_read(self) -> int:
        """How many offsets are read."""
        return sum(log.end - log.start for log in self.logs.values())


async def plan_reset(app: App, settings: Settings, job: Job) -> ResetPlan:
    """Returns what a reset would do now. Raises Misconfigured for a job that is no projection, or if it cannot ask."""
    if not isinstance(job, ProjectionJob | FoldJob):
        raise Misconfigured(f"job {job.code!r} is no projection: it has no index or table")
    if isinstance(job, ProjectionJob) and acts_once(job):
        raise Misconfigured(
            f"job {job.code!r} feeds materialized views by stable batches, and their tables would keep what they have "
            "counted; give the job a new code, and a table of a new name with views of its own"
        )
    try:
        async with connect(settings.postgres_dsn.get_secret_value()) as connection:
            with translated_errors("plan reset"):
                obstacles = await _obstacles(connection, app, job)
        logs = await logs_of(settings, job) if isinstance(job, ProjectionJob) else {}
        async with job.sink.open(settings) as sink:
            documents = await sink.documents()
    except Transient as error:
        raise Misconfigured(f"the reset of {job.code!r} cannot be planned: {error}") from error
    ranges = {partition: log.range for partition, log in logs.items()}
    return ResetPlan(job, job.sink.where(settings), documents, ranges, obstacles)


class ResetReport(NamedTuple):
    """What filled it: a backfill, or of a fold the number of states that its workers have to render."""

    backfill: BackfillReport | None = None
    states: int | None = None

    @property
    def is_done(self) -> bool:
        return self.backfill is None or self.backfill.is_done


async def reset_projection(
    app: App,
    settings: Settings,
    plan: ResetPlan,
    options: BackfillOptions,
    *,
    actor: Actor,
    reason: str,
    stop: asyncio.Event,
) -> ResetReport:
    """The projection is empty, and then filled with what its topics hold up to now, unless `stop` ends that earlier.

    `options` are those of the backfill; its start is the beginning. Raises Denied without permission or reason, or
    while the job is not paused or something else works on it; Misconfigured for a gap that is not accepted; else as
    `run_backfill`. What was done is in the audit before anything is dropped.
    """
    told = {"documents": plan.documents, "accepted_gaps": dict(plan.gaps)}
    deed = Deed(Action.PROJECTION_RESET, app.group(plan.job.job_code), reason.strip(), told)
    dsn = settings.postgres_dsn.get_secret_value()
    async with connect(dsn) as connection:
        await refuse_early(connection, actor, deed)
        _require_accepted(plan, options)
        await _permit(connection, app, plan, actor, deed)
    async with plan.job.sink.open(settings) as sink:
        await sink.reset()
    if isinstance(plan.job, FoldJob):
        return ResetReport(states=await _render_again(app, settings, plan.job, actor, reason))
    options.start, options.abandon = BackfillStart(is_beginning=True), True
    return ResetReport(await run_backfill(app, settings, plan.job.code, options, actor=actor, stop=stop))


async def _permit(connection: Connection, app: App, plan: ResetPlan, actor: Actor, deed: Deed) -> None:
    async with permitted(connection, actor, deed) as transaction:
        number = await transaction.fetchval(_QUERIES["lock_job"], app.service, plan.job.code)
        if obstacles := await _obstacles(transaction, app, plan.job):
            raise Denied(f"the reset of {plan.job.code!r} is refused: {'; '.join(obstacles)}")
        # Before anything is dropped: what is told as visible must never be more than what readers find.
        await transaction.execute(_QUERIES["note_emptied"], number, isinstance(plan.job, ProjectionJob))


async def _render_again(app: App, settings: Settings, job: Job, actor: Actor, reason: str) -> int:
    async with connect(settings.postgres_dsn.get_secret_value()) as connection:
        plan = await plan_rerender(connection, app, job)
        return await rerender(connection, actor, app, plan, reason=reason)


def _require_accepted(plan: ResetPlan, options: BackfillOptions) -> None:
    if plan.gaps and not options.accept_gap:
        told = ", ".join(f"{where} lacks its first {count} offsets" for where, count in plan.gaps.items())
        raise Misconfigured(
            f"gap: {told}: documents that only they made would be gone for good; --accept-gap resets all the same"
        )


async def _obstacles(connection: Connection, app: App, job: SinkJob) -> list[str]:
    rows = await connection.fetch(_QUERIES["newest_generations"], app.service)
    number = next((row["id"] for row in rows if row["code"] == job.code), None)
    if number is None:
        return []  # it has never run: nobody writes
    intents = [intent_of(row) for row in await connection.fetch(_ROAD_QUERIES["standing_intents"], number)]
    if not any(map(_is_pause_of_all, intents)):
        return [f"the job is not paused; run 'tidegate pause {job.code} --reason …' first"]
    return [*await _at_work(connection, app, job), *await _backfills(connection, number, job)]


def _is_pause_of_all(intent: Intent) -> bool:
    return intent.kind is IntentKind.PAUSE and intent.topic is None and intent.tenant is None


async def _at_work(connection: Connection, app: App, job: SinkJob) -> list[str]:
    """A pause takes a second to be heard, and lets the batch in hand end: until then an old release may write."""
    rows = await connection.fetch(_QUERIES["presence_of_job"], app.service, job.code)
    alive = [row for row in rows if row["seen_seconds"] < _FRESH_SECONDS and row["state"] != State.RELEASED]
    if isinstance(job, FoldJob):
        # What is folded already goes on being rendered while the job is paused.
        owners = sorted({row["owner"] for row in alive})
        return [f"worker {owner} still renders the fold; stop its workers first" for owner in owners]
    busy = [row for row in alive if row["state"] not in _AT_REST]
    return [
        f"{row['topic']}:{row['partition']} is not at rest yet ({row['state']}, {row['owner']}); try again in a moment"
        for row in busy[:3]
    ]


async def _backfills(connection: Connection, number: int, job: SinkJob) -> list[str]:
    row = await connection.fetchrow(_ROAD_QUERIES["unfinished_backfill"], number)
    if row is None or row["lease_seconds"] <= 0:
        return []  # an interrupted one is given up: this one reads more
    return [f"backfill {row['id']} of {job.code!r} is at work ({row['holder']}); stop it, or wait for its end"]
