"""Runs in Postgres, as their holders see them: claimed under a token, moved and ended only under that token.

The token is that of the lease `lock_name`. Whoever writes for a run locks the lease's row FOR SHARE and names the
token, in the transaction of the work: a process that was frozen past its lease writes nothing once another has taken
it, or the run was found without a holder. That a lease has ended by the clock is no obstacle by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, NewType
from uuid import UUID

import asyncpg

from dlq.letters import text_for_postgres
from tidegate_kernel.errors import LeaseLost
from tidegate_kernel.event import JobId, Scope
from tidegate_kernel.lease import Token
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)

HEARTBEAT = timedelta(seconds=10)
"""A process at work gives a sign of life at least so often: its leases last half as long again, and are renewed in
thirds. Runs without a holder are looked for twice as often, so that one is found within two heartbeats."""

LEASE_TTL = HEARTBEAT * 1.5

ClockRunId = NewType("ClockRunId", int)
"""Number of a run of a job by the clock."""


class RunState(StrEnum):
    """How a run stands. The first two have not ended."""

    DUE = "due"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STALLED = "stalled"
    CANCELLED = "cancelled"
    SKIPPED_OVERLAP = "skipped_overlap"


class Trigger(StrEnum):
    """What a run was made by."""

    SCHEDULE = "schedule"
    MANUAL = "manual"
    RETRY = "retry"


class Tally(NamedTuple):
    """What became of items: done, done before, failed."""

    processed: int = 0
    skipped: int = 0
    failed: int = 0

    def plus(self, other: Tally) -> Tally:
        return Tally(*(mine + more for mine, more in zip(self, other, strict=True)))


NOTHING_DONE = Tally()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedRun:
    """A run in the hands of a holder. `first_run`: the run that it goes on with; its own number if it is no retry.

    `started_at`: when it was first claimed, by the database. `tally`: what was done of it before, if it was put back.
    `is_replay`: it does what was a dead letter, nothing else.
    """

    id: ClockRunId
    job: JobId
    scope: Scope
    scheduled_at: datetime
    started_at: datetime
    trigger: Trigger
    lock_name: str
    missed: int
    attempt: int
    first_run: ClockRunId
    parameters: Mapping[str, str]
    correlation_id: UUID
    token: Token
    tally: Tally = NOTHING_DONE
    is_replay: bool = False

    @property
    def fence(self) -> tuple[int, str, int]:
        """What every write of the run names."""
        return self.id, self.lock_name, self.token


class Claim(NamedTuple):
    """Runs that have become a holder's. `has_more`: others may be due of scopes that none of these is of."""

    runs: Sequence[ClaimedRun]
    has_more: bool


class Wish(NamedTuple):
    """What somebody wants of a run meanwhile."""

    cancelled_by: str | None
    is_paused: bool


class Found(NamedTuple):
    """What there is to do: how many runs of each job are due, when the next is, and tokens of runs without a holder.

    `now` is the database's.
    """

    now: datetime
    next_due_at: datetime | None
    due: Mapping[JobId, int]
    gone: Mapping[int, int]


class Stalled(NamedTuple):
    """A run whose process is gone; `is_over`: somebody wanted it to end anyway."""

    id: ClockRunId
    job: JobId
    scope: Scope
    attempt: int
    is_over: bool
    correlation_id: UUID


def names_of(code: str, run: ClaimedRun | Stalled) -> dict[str, str | int]:
    """By what a run is found in logs and traces, whoever tells of it."""
    return {
        "job": code,
        "run": run.id,
        "correlation_id": str(run.correlation_id),
        "tenant": run.scope.tenant,
        "brand": run.scope.brand,
    }


async def look(connection: Connection, jobs: Sequence[JobId], *, now: datetime) -> Found:
    """Returns what there is to do for `jobs`: all that an idle scheduler asks."""
    row = await connection.fetchrow(_QUERIES["look"], list(jobs), now)
    assert row is not None
    due = {JobId(number): runs for number, runs in zip(row["jobs"], row["runs"], strict=True)}
    return Found(row["now"], row["next_due_at"], due, dict(zip(row["gone"], row["tokens"], strict=True)))


async def claim_runs(
    connection: Connection, jobs: Sequence[JobId], *, now: datetime, limit: int, holder: str, ttl: timedelta = LEASE_TTL
) -> Claim:
    """At most `limit` runs that are due are the holder's, for as long as it keeps their leases.

    Any number of holders at once: none waits for another, and no run is two's.
    """
    arguments = (list(jobs), now, limit, holder, ttl.total_seconds())
    rows = await connection.fetch(_QUERIES["claim_runs"], *arguments)
    return Claim([_claimed(row) for row in rows], bool(rows) and rows[0]["candidates"] == limit)


async def cursor_of(connection: Connection, run: ClaimedRun, *, is_carried_on: bool) -> str | None:
    """The key of the last item that was dealt with: by the run that this one goes on with, or by any before it."""
    since = None if is_carried_on else run.first_run
    found: str | None = await connection.fetchval(
        _QUERIES["read_checkpoint"], run.job, run.scope.tenant, run.scope.brand, since
    )
    return found


async def items_of_replay(connection: Connection, run: ClaimedRun, *, limit: int) -> Sequence[tuple[str, str | None]]:
    """What a replay has yet to do: by what each is done once, and the key behind which its page began."""
    rows = await connection.fetch(_QUERIES["items_of_replay"], run.first_run, limit)
    return [(row["key"], row["page_after"]) for row in rows]


async def is_outbox_full(connection: Connection, limit: int) -> bool:
    """Whether `limit` records wait for Kafka; reads no more than that."""
    return bool(await connection.fetchval(_QUERIES["is_outbox_full"], limit))


async def settle_unit(connection: Connection, run: ClaimedRun, tally: Tally, *, cursor: str | None) -> Wish:
    """In the transaction that did the items: the run has come so far. Raises LeaseLost if it is not the holder's."""
    row = await connection.fetchrow(_QUERIES["settle_unit"], *run.fence, *tally, cursor)
    if row is None:
        raise _lost(run)
    return Wish(row["cancel_asked_by"], row["is_paused"])


async def progress_of(connection: Connection, run: ClaimedRun) -> tuple[Tally, Wish]:
    """How far the run has come. Raises LeaseLost if it is not the holder's."""
    row = await connection.fetchrow(_QUERIES["progress_of_run"], run.id, run.token)
    if row is None:
        raise _lost(run)
    tally = Tally(row["processed"], row["skipped"], row["failed"])
    return tally, Wish(row["cancel_asked_by"], row["is_paused"])


async def end_run(
    connection: Connection, run: ClaimedRun, state: RunState, *, error: tuple[str, str] | None = None
) -> bool:
    """The run has ended; `error`: class and message. Returns whether somebody has asked for its end.

    Raises LeaseLost if it is not the holder's.
    """
    told = [None, None] if error is None else [text_for_postgres(text) for text in error]
    row = await connection.fetchrow(_QUERIES["end_run"], *run.fence, state, *told)
    if row is None:
        raise _lost(run)
    return row["cancel_asked_by"] is not None


async def put_back(connection: Connection, run: ClaimedRun, *, due_at: datetime) -> None:
    """The run is due again at `due_at`, for whoever is first. Raises LeaseLost if it is not the holder's."""
    if await connection.fetchval(_QUERIES["put_back"], *run.fence, due_at) is None:
        raise _lost(run)


async def state_under(connection: Connection, run: ClaimedRun) -> RunState | None:
    """How the run stands as far as its holder decided: for a COMMIT whose answer was lost. None: another has it."""
    state = await connection.fetchval(_QUERIES["state_under"], run.id, run.token)
    return None if state is None else RunState(state)


async def end_stalled(connection: Connection, gone: Mapping[int, int]) -> Sequence[Stalled]:
    """Runs that `look` found without a holder have ended, if nothing has become of them since. Returns them."""
    rows = await connection.fetch(_QUERIES["end_stalled"], list(gone), list(gone.values()))
    return [
        Stalled(
            ClockRunId(row["id"]),
            JobId(row["job"]),
            Scope(row["tenant"], row["brand"]),
            row["attempt"],
            row["cancel_asked_by"] is not None,
            row["correlation_id"],
        )
        for row in rows
    ]


async def give_back_items(connection: Connection, run: ClockRunId) -> None:
    """In the transaction in which a run ends for good: of a replay the items that it has not come to are as they were.

    They can be asked for again, and this asking does not count among their replays. Of another run nothing changes.
    """
    await connection.execute(_QUERIES["give_back_items"], run)


async def retry_run(connection: Connection, run: ClockRunId, *, due_at: datetime) -> ClockRunId:
    """In the transaction in which the run ends badly: another one goes on with it at `due_at`."""
    return ClockRunId(await connection.fetchval(_QUERIES["retry_run"], run, due_at))


def _lost(run: ClaimedRun) -> LeaseLost:
    return LeaseLost(f"run {run.id}: it has another holder by now, or has ended; token {run.token} is worth nothing")


def _claimed(row: asyncpg.Record) -> ClaimedRun:
    return ClaimedRun(
        id=ClockRunId(row["id"]),
        job=JobId(row["job"]),
        scope=Scope(row["tenant"], row["brand"]),
        scheduled_at=row["scheduled_at"],
        started_at=row["started_at"],
        trigger=Trigger(row["trigger"]),
        lock_name=row["lock_name"],
        missed=row["missed"],
        attempt=row["attempt"],
        first_run=ClockRunId(row["first_run"]),
        parameters=json.loads(row["parameters"]),
        correlation_id=row["correlation_id"],
        token=Token(row["token"]),
        tally=Tally(row["processed"], row["skipped"], row["failed"]),
        is_replay=row["is_replay"],
    )
