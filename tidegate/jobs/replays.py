"""Runs over dead letters, as somebody asks for them: begun, resumed, stopped, approved; permitted and audited.

A deed lies in a tenant's scope if all letters of the run do. A letter without a tenant may be anybody's, and so it
concerns all; so for brands.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from uuid import UUID

from dlq import runs
from dlq.runs import Hold, RunKind, Wish
from tidegate_kernel.audit import permitted, refuse_early
from tidegate_kernel.errors import Conflict, Misconfigured
from tidegate_kernel.event import JobCode, JobId, ReplayId, Scope
from tidegate_kernel.permissions import Action, Actor, Deed
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries("tidegate.jobs")

_ACTIONS = {RunKind.REPLAY: Action.DLQ_REPLAY, RunKind.DISCARD: Action.DLQ_DISCARD}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What somebody asks for: which letters of a job, and why.

    `where` says how they were chosen, for the audit. `scopes`: whose events are parked behind them, as the plan has it.
    """

    code: JobCode
    kind: RunKind
    letters: Sequence[UUID]
    digest: str
    reason: str
    is_forced: bool = False
    where: Mapping[str, Any] = field(default_factory=dict)
    scopes: Sequence[Scope] = ()


class Begun(NamedTuple):
    """A run that has its letters. `held` is None where it waits for a second person."""

    run: ReplayId
    held: Hold | None


class FoundRun(NamedTuple):
    """A run as far as it has to be known to permit something about it."""

    id: ReplayId
    job: JobId
    code: str
    kind: RunKind
    reason: str
    asked_by: str
    letters: int
    scope: Scope


async def refuse_asked(database: Connection | Pool, actor: Actor, asked: Asked) -> None:
    """Nothing happens if the actor may begin what is asked for; else as `begin`, and audited as by it."""
    await refuse_early(database, actor, await _deed(database, asked, {}))


async def begin(
    database: Connection | Pool,
    actor: Actor,
    asked: Asked,
    *,
    job: JobId,
    holder: str,
    approval_above: int | None = None,
) -> Begun:
    """The letters are the run's, and the run the holder's; one of more letters waits for a second person.

    Raises Denied, AlreadyRunning where one of the letters is another run's or decided by now, Transient.
    """
    wish = Wish(
        kind=asked.kind,
        letters=asked.letters,
        digest=asked.digest,
        reason=asked.reason,
        asked_by=actor.name,
        is_forced=asked.is_forced,
    )
    told: dict[str, Any] = {}
    async with permitted(database, actor, await _deed(database, asked, told)) as connection:
        if approval_above is not None and len(asked.letters) > approval_above:
            begun = Begun(await runs.propose_run(connection, job, wish), None)
        else:
            held = await runs.start_run(connection, job, wish, holder=holder)
            begun = Begun(held.run, held)
        # The audit's row is written at the end of the block, with the number that the run has got.
        told |= {"run": begun.run, "waits": begun.held is None}
    return begun


async def permit_rehearsal(database: Connection | Pool, actor: Actor, asked: Asked) -> None:
    """The audit tells that the letters are rehearsed. It needs the permission of a replay, whose handlers it runs and
    whose errors it shows, and no reason: nothing is changed. Raises Denied, Transient.
    """
    told: dict[str, Any] = {}
    deed = await _deed(database, replace(asked, reason=asked.reason or "rehearsal: nothing is changed"), told)
    told["what"] = "rehearse"
    async with permitted(database, actor, deed):
        pass


async def refuse_taken(database: Connection | Pool, actor: Actor, asked: Asked, why: str) -> None:
    """Raises Conflict with `why`: nothing of what is asked for can be had. The audit tells of it as of `begin`."""
    async with permitted(database, actor, await _deed(database, asked, {})):
        raise Conflict(why)


async def find_run(database: Connection | Pool, service: str, run: ReplayId) -> FoundRun:
    """Raises Misconfigured if the service has no such run, Transient."""
    with translated_errors("read a run"):
        row = await database.fetchrow(_QUERIES["run_of_letters"], service, run)
    if row is None:
        raise Misconfigured(f"service {service!r} has no run {run}; 'tidegate dlq runs' shows which it has")
    return FoundRun(
        id=ReplayId(row["id"]),
        job=JobId(row["job"]),
        code=row["code"],
        kind=RunKind(row["kind"]),
        reason=row["reason"],
        asked_by=row["asked_by"],
        letters=row["letters"],
        scope=_common_scope(row["tenants"], row["brands"]),
    )


async def refuse_resuming(database: Connection | Pool, actor: Actor, run: FoundRun, *, reason: str = "") -> None:
    """Nothing happens if the actor may resume the run; else as `resume`, and audited as by it."""
    await refuse_early(database, actor, _deed_on(run, "resume", reason or run.reason))


async def resume(database: Connection | Pool, actor: Actor, run: FoundRun, *, holder: str, reason: str = "") -> Hold:
    """The run is the holder's, with all that it has not decided. Without a reason its own is the reason.

    Raises Denied, AlreadyRunning while its runner lives, Misconfigured where nothing is left or it waits for a second
    person, Transient.
    """
    async with permitted(database, actor, _deed_on(run, "resume", reason or run.reason)) as connection:
        return await runs.resume_run(connection, run.job, run.id, holder=holder)


async def stop(database: Connection | Pool, actor: Actor, run: FoundRun, *, reason: str) -> bool:
    """The run ends: at once where nobody works on it (True), else after its runner's batch in hand (False).

    Raises Denied, Misconfigured for one that has ended, Transient.
    """
    async with permitted(database, actor, _deed_on(run, "stop", reason)) as connection:
        return await runs.stop_run(connection, run.job, run.id, by=actor.name)


async def approve(database: Connection | Pool, actor: Actor, run: FoundRun, *, reason: str) -> None:
    """A second person agrees: the run can be resumed, which begins it.

    Raises Denied, also for the one who asked for it, Misconfigured for a run that waits for nobody, Transient.
    """
    async with permitted(database, actor, _deed_on(run, "approve", reason)) as connection:
        await runs.approve_run(connection, run.job, run.id, by=actor.name)


async def _deed(database: Connection | Pool, asked: Asked, told: dict[str, Any]) -> Deed:
    with translated_errors("read dead letters"):
        row = await database.fetchrow(_QUERIES["scopes_of_letters"], list(asked.letters))
    assert row is not None
    told |= {
        "what": "begin",
        "letters": len(asked.letters),
        "digest": asked.digest,
        "where": dict(asked.where),
        "forced": asked.is_forced,
    }
    tenants = {*row["tenants"], *(scope.tenant for scope in asked.scopes)}
    brands = {*row["brands"], *(scope.brand for scope in asked.scopes)}
    scope = _common_scope(tenants, brands)
    return Deed(
        _ACTIONS[asked.kind], asked.code, asked.reason, told, tenant=scope.tenant or None, brand=scope.brand or None
    )


def _deed_on(run: FoundRun, what: str, reason: str) -> Deed:
    told = {"what": what, "run": run.id, "letters": run.letters}
    scope = run.scope
    return Deed(_ACTIONS[run.kind], run.code, reason, told, tenant=scope.tenant or None, brand=scope.brand or None)


def _common_scope(tenants: Collection[str | None], brands: Collection[str | None]) -> Scope:
    """What all have in common; empty where they differ, or one has none."""
    return Scope(*((next(iter(names)) or "") if len(names) == 1 else "" for names in (tenants, brands)))
