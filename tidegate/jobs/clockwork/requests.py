"""Runs by hand: asked for now or for later, with parameters, and cancelled. Permitted and audited like every deed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.inputs import read_input
from tidegate.jobs.clockwork.provider.declaration import ProviderSyncJob
from tidegate.jobs.clockwork.runs import ClockRunId, RunState, give_back_items
from tidegate.jobs.clockwork.scheduler import register_clock_job
from tidegate.jobs.clockwork.scopes import AcrossScopes, check_scope, is_storable, lock_name
from tidegate_kernel.audit import permitted
from tidegate_kernel.errors import Denied, Misconfigured
from tidegate_kernel.event import NO_SCOPE, JobId, Scope
from tidegate_kernel.permissions import Action, Actor, Deed
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)

_LONGEST_KEY = 200
# What Postgres can number: it is asked for no other, which it would take for a defect of the statement.
_RUN_NUMBERS = range(1, 2**63)
# What lies further off comes back from Postgres as no time at all.
_YEARS = range(1970, 9999)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What somebody wants to be run. `at`: when it is due; one that has passed is made up for, and begins at once.

    `key`: whoever asks twice under one key gets the run that was asked for first.
    """

    job: ClockJob
    scope: Scope
    at: datetime
    parameters: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    reason: str = ""


class Requested(NamedTuple):
    """The run that was asked for; `is_new`: it was made just now."""

    run: ClockRunId
    is_new: bool


class Cancelled(NamedTuple):
    """`is_over`: the run had not begun, and never does; else its process ends it after the unit in hand."""

    run: ClockRunId
    is_over: bool


async def ask_for_run(
    database: Connection | Pool, actor: Actor, service: str, request: RunRequest, *, now: datetime
) -> Requested:
    """The run is due at the time asked for, or at once. Raises Denied, Misconfigured, Transient."""
    check_request(request)
    async with permitted(database, actor, _deed(service, request)) as connection:
        if isinstance(request.job, ProviderSyncJob) and request.scope not in request.job.access:
            raise Denied(request.job.no_access(request.scope))
        number = await register_clock_job(connection, service, request.job)
        made = await connection.fetchval(_QUERIES["ask_for_run"], *_arguments(service, number, request, actor, now))
        if made is not None:
            return Requested(ClockRunId(made), is_new=True)
        return await _earlier(connection, number, request, is_for_later=request.at > now)


async def cancel_run(
    database: Connection | Pool, actor: Actor, service: str, run: int, *, reason: str = ""
) -> Cancelled:
    """The run does not begin, or ends after the unit in hand. Raises Denied, Misconfigured, Transient."""
    deed = await _cancelling(database, service, run, reason)
    async with permitted(database, actor, deed) as connection:
        row = await connection.fetchrow(_QUERIES["lock_clock_run"], service, run)
        if row is None or row["state"] not in (RunState.DUE, RunState.RUNNING):
            raise Misconfigured(f"run {run} has ended already: it is {'gone' if row is None else row['state']}")
        is_over = row["state"] == RunState.DUE
        if is_over:
            await connection.execute(_QUERIES["cancel_due_run"], run, actor.name)
            await give_back_items(connection, ClockRunId(run))
        else:
            await connection.execute(_QUERIES["ask_to_cancel_run"], run, actor.name)
        return Cancelled(ClockRunId(run), is_over)


def check_request(request: RunRequest) -> None:
    """Raises Misconfigured for a run that the job is not declared for, or whose words cannot be kept."""
    _check_scope(request.job, request.scope)
    if request.key is not None and not (0 < len(request.key) <= _LONGEST_KEY and is_storable(request.key)):
        raise Misconfigured(f"an idempotency key has 1 to {_LONGEST_KEY} characters of UTF-8, none of them NUL")
    if not is_storable(request.reason):
        raise Misconfigured("a reason is UTF-8 without NUL: it stands in the audit")
    if request.at.year not in _YEARS:
        raise Misconfigured(f"a run is asked for some time in the years {_YEARS[0]} to {_YEARS[-1]}, not {request.at}")
    read_input(request.job.code, request.job.input, request.parameters)


def _check_scope(job: ClockJob, scope: Scope) -> None:
    if isinstance(job.scopes, AcrossScopes):
        if scope != NO_SCOPE:
            raise Misconfigured(f"job {job.code!r} works on all tenants at once: it takes no tenant")
    elif not scope.tenant:
        raise Misconfigured(f"job {job.code!r} works on one tenant at a time: say which")
    elif callable(job.scopes):
        check_scope(job.code, scope)
    elif scope not in job.scopes:
        known = ", ".join(sorted({each.tenant for each in job.scopes}))
        raise Misconfigured(
            f"job {job.code!r} is not declared for tenant {scope.tenant!r}, brand {scope.brand!r}; for {known}"
        )


def _deed(service: str, request: RunRequest) -> Deed:
    # Names alone: what somebody typed as a value may be anybody's.
    told = {"at": request.at.isoformat(), "parameters": sorted(request.parameters), "key": request.key}
    scope = request.scope
    return Deed(
        Action.RUN_TRIGGER,
        f"{service}.{request.job.code}",
        request.reason,
        {name: value for name, value in told.items() if value},
        tenant=scope.tenant or None,
        brand=scope.brand or None,
    )


def _arguments(service: str, number: JobId, request: RunRequest, actor: Actor, now: datetime) -> tuple[object, ...]:
    scope, job = request.scope, request.job
    return (
        number,
        scope.tenant,
        scope.brand,
        request.at,
        max(request.at, now),
        lock_name(service, job.lock_key or job.code, scope),
        json.dumps(dict(request.parameters), sort_keys=True),
        request.key,
        actor.name,
        request.reason.strip(),
    )


async def _earlier(connection: Connection, number: JobId, request: RunRequest, *, is_for_later: bool) -> Requested:
    scope = request.scope
    row = await connection.fetchrow(_QUERIES["run_of_request"], number, scope.tenant, scope.brand, request.key)
    assert row is not None  # the conflict was with it
    if json.loads(row["parameters"]) != dict(request.parameters):
        raise Misconfigured(
            f"key {request.key!r} was used for run {row['id']}, with other parameters; take another key"
        )
    if is_for_later and row["scheduled_at"] != request.at:
        raise Misconfigured(
            f"key {request.key!r} was used for run {row['id']} at {row['scheduled_at']}; take another key"
        )
    return Requested(ClockRunId(row["id"]), is_new=False)


async def _cancelling(database: Connection | Pool, service: str, run: int, reason: str) -> Deed:
    """What has to be permitted: it lies within the scope of the run."""
    row = None
    if run in _RUN_NUMBERS:
        with translated_errors("read run"):
            row = await database.fetchrow(_QUERIES["scope_of_run"], service, run)
    if row is None:
        raise Misconfigured(f"service {service!r} has no run {run} of a job by the clock")
    tenant, brand = row["tenant"] or None, row["brand"] or None
    return Deed(Action.RUN_CANCEL, f"{service}.{row['code']}", reason, {"run": run}, tenant=tenant, brand=brand)
