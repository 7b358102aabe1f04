"""Runs over dead letters: which letters a run has, who works on it, and what became of each.

A letter belongs to one unfinished run at most: taking it is its own change of state, `dead` to `replaying`. A run has
one runner at a time, which holds it by a lease and a token; every transaction that decides about letters renews the
lease under the token, so whoever lost the run decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import asyncpg

from dlq.outcomes import Decided
from dlq.states import LetterState
from tidegate_kernel.errors import AlreadyRunning, Denied, LeaseLost, Misconfigured
from tidegate_kernel.event import JobId
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries("dlq")

LEASE_SECONDS = 30.0
"""A runner that is not heard of for so long is taken for dead. Above the default time limit of a handler."""


class RunKind(StrEnum):
    """What a run does with its letters. Events parked behind them are handled either way."""

    REPLAY = "replay"
    DISCARD = "discard"


class RunState(StrEnum):
    """`waiting`: for a second person. A `stopped` run can be resumed."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPED = "stopped"
    DONE = "done"


class Outcome(StrEnum):
    """What became of a letter in a run. After the first four it has come to its end."""

    RESOLVED = "resolved"
    ALREADY_PROCESSED = "already_processed"
    SUPERSEDED = "superseded"
    DISCARDED = "discarded"
    FAILED = "failed"
    REFUSED = "refused"
    BEHIND = "behind"
    NOT_TRIED = "not_tried"


ENDED = (Outcome.RESOLVED, Outcome.ALREADY_PROCESSED, Outcome.SUPERSEDED, Outcome.DISCARDED)
"""With each of these a letter has come to its end."""

# Resuming tries these again: nothing was found out about them.
_LEFT = (Outcome.BEHIND, Outcome.NOT_TRIED)


@dataclass(frozen=True, slots=True)
class Hold:
    """A run in the hands of a runner."""

    job: JobId
    run: int
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody wants to be done with some letters of a job."""

    kind: RunKind
    letters: Sequence[UUID]
    digest: str
    reason: str
    asked_by: str
    is_forced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as it stands. `is_stalled`: it has a runner that has not been heard of for too long.

    `parked`: events behind its letters that were dealt with, of which `failed_events` are dead letters now.
    """

    id: int
    job: str
    kind: RunKind
    state: RunState
    digest: str
    letters: int
    parked: int
    failed_events: int
    is_forced: bool
    reason: str
    asked_by: str
    approved_by: str | None
    stop_asked_by: str | None
    holder: str | None
    created_at: datetime
    finished_at: datetime | None
    is_stalled: bool
    outcomes: Mapping[Outcome, int]

    @property
    def undecided(self) -> int:
        """How many of its letters nothing has become of yet; with the outcomes they add up to `letters`."""
        return self.letters - sum(self.outcomes.values())

    @property
    def left(self) -> int:
        """How many letters a resumed run would still try."""
        return self.undecided + sum(self.outcomes.get(outcome, 0) for outcome in _LEFT)

    @property
    def is_clean(self) -> bool:
        """Whether every letter has come to its end, and nothing behind them has failed."""
        return sum(self.outcomes.get(outcome, 0) for outcome in ENDED) == self.letters and not self.failed_events


class Place(NamedTuple):
    """An outstanding letter, and where its record stands."""

    letter: UUID
    topic: str
    topic_id: UUID
    partition: int
    offset: int


class FailureGroup(NamedTuple):
    """Letters of a run that failed again in the same way; the error is that of the `sample`."""

    reason: str
    fingerprint: str
    error_class: str
    error_message: str
    letters: int
    sample: UUID


# Whoever asks for a run, in the transaction in which it is permitted and audited.


async def start_run(connection: Connection, job: JobId, wish: Wish, *, holder: str) -> Hold:
    """The letters are the run's, and the run the holder's. Raises AlreadyRunning where another has one of them."""
    run = await _insert(connection, job, wish, RunState.RUNNING)
    return await _take(connection, job, run, holder)


async def propose_run(connection: Connection, job: JobId, wish: Wish) -> int:
    """The letters are the run's, which waits for a second person. Raises AlreadyRunning as `start_run`."""
    return await _insert(connection, job, wish, RunState.WAITING)


async def approve_run(connection: Connection, job: JobId, run: int, *, by: str) -> None:
    """The run can be begun now, by `resume_run`. Raises Misconfigured where it waits for nobody.

    Raises Denied for the one who asked for it.
    """
    row = await _locked(connection, job, run)
    if row["approved_by"] is not None:
        raise Misconfigured(f"run {run} was approved by {row['approved_by']!r}: 'tidegate dlq replay --resume {run}'")
    if row["state"] != RunState.WAITING:
        raise Misconfigured(f"run {run} does not wait for a second person: it is {row['state']}")
    if row["asked_by"] == by:
        raise Denied(f"run {run} was asked for by {by!r}: somebody else has to approve it")
    await connection.execute(_QUERIES["approve_run"], run, by)


async def resume_run(connection: Connection, job: JobId, run: int, *, holder: str) -> Hold:
    """The run is the holder's, with every letter that it has not decided and nobody else has taken meanwhile.

    Raises AlreadyRunning while its runner lives, Misconfigured where nothing is left to do.
    """
    row = await _taken(connection, job, run)
    if row["is_held"]:
        raise AlreadyRunning(
            f"run {run} is in the hands of {row['holder']}; if that was killed, the run is free within "
            f"{LEASE_SECONDS:.0f} s of its last sign of life: try again then"
        )
    if row["state"] == RunState.WAITING and row["approved_by"] is None:
        raise Misconfigured(f"run {run} waits for a second person: 'tidegate dlq approve {run} --reason …'")
    left = [r["letter"] for r in await connection.fetch(_QUERIES["undecided_letters"], run, list(_LEFT))]
    took = await _reserve(connection, run, job, left, is_forced=row["is_forced"]) if left else 0
    if row["state"] == RunState.DONE and not took:
        raise Misconfigured(f"run {run} has ended, and nothing of it is left to be tried")
    return await _take(connection, job, run, holder)


async def stop_run(connection: Connection, job: JobId, run: int, *, by: str) -> bool:
    """The run ends: at once where nobody works on it (True), else at its runner's next batch (False)."""
    row = await _taken(connection, job, run)
    if row["state"] in (RunState.DONE, RunState.STOPPED):
        raise Misconfigured(f"run {run} is {row['state']} already")
    if row["is_held"]:
        await connection.execute(_QUERIES["ask_to_stop"], run, by)
        return False
    await end(connection, run, RunState.STOPPED)
    return True


async def release_stalled(connection: Connection, job: JobId) -> Sequence[int]:
    """Runs of the job whose runners are gone have stopped, and their letters are as they were. Returns the runs."""
    await _letters_first(connection, [row["id"] for row in await connection.fetch(_QUERIES["stalled_runs"], job)])
    stalled = [row["id"] for row in await connection.fetch(_QUERIES["lock_stalled_runs"], job)]
    for run in stalled:
        await end(connection, run, RunState.STOPPED)
    return stalled


async def read_run(connection: Connection, service: str, run: int) -> Run:
    """Raises Misconfigured if the service has no such run."""
    row = await connection.fetchrow(_QUERIES["read_run"], service, run)
    if row is None:
        raise Misconfigured(f"service {service!r} has no run {run}; 'tidegate dlq runs' shows which it has")
    return _run(row, await _outcomes(connection, run))


async def recent_runs(connection: Connection, service: str, *, code: str | None, limit: int) -> Sequence[Run]:
    """Returns the newest runs first."""
    rows = await connection.fetch(_QUERIES["recent_runs"], service, code, limit)
    return [_run(row, await _outcomes(connection, row["id"])) for row in rows]


async def failures_of(connection: Connection, run: int, *, limit: int = 20) -> Sequence[FailureGroup]:
    """Returns how letters failed that failed again, the most frequent first."""
    rows = await connection.fetch(_QUERIES["failures_of_run"], run, limit)
    return [FailureGroup(**row) for row in rows]


# The runner.


async def outstanding(connection: Connection, run: int, *, limit: int) -> Sequence[Place]:
    """Returns letters that are to be decided yet, in the order of their places."""
    rows = await connection.fetch(_QUERIES["outstanding_letters"], run, limit)
    return [Place(*row) for row in rows]


async def hold(connection: Connection, held: Hold, *, parked: int = 0, failed_events: int = 0) -> str | None:
    """In a transaction that decides: the run is still the caller's, and the lease begins anew.

    Returns who asked it to stop, if anybody did. `parked` more events behind its letters have been dealt with, of which
    so many have failed. Raises LeaseLost.
    """
    arguments = (held.run, held.token, LEASE_SECONDS, parked, failed_events)
    row = await connection.fetchrow(_QUERIES["hold_run"], *arguments)
    if row is None:
        raise LeaseLost(f"run {held.run} has another runner, or has ended")
    asked: str | None = row["stop_asked_by"]
    return asked


async def decide(
    connection: Connection, held: Hold, outcomes: Mapping[UUID, Outcome], *, most_replays: int
) -> Sequence[Decided]:
    """In the caller's transaction, in which it holds the run: this became of its letters. Returns which have ended.

    A letter that has failed in `most_replays` replays is quarantined.
    """
    rows = await connection.fetch(
        _QUERIES["decide_letters"], held.run, list(outcomes), list(outcomes.values()), most_replays
    )
    return [
        Decided(row["id"], row["key"], LetterState(row["state"]), row["decided_at"], row["last_failed_at"])
        for row in rows
    ]


async def decided_in(connection: Connection, run: int, letters: Sequence[UUID]) -> Mapping[UUID, Outcome]:
    """Returns what has become of those of the letters that the run has decided about."""
    rows = await connection.fetch(_QUERIES["decided_in_run"], run, list(letters))
    return {row["letter"]: Outcome(row["outcome"]) for row in rows}


async def end(connection: Connection, run: int, state: RunState) -> None:
    """In the caller's transaction: the run has come to an end; undecided letters are as they were before it."""
    await connection.execute(_QUERIES["leave_letters"], run, Outcome.NOT_TRIED)
    await connection.execute(_QUERIES["end_run"], run, state)


async def give_back(connection: Connection, held: Hold, state: RunState) -> None:
    """In the caller's transaction: its run has come to an end, as by `end`. Raises LeaseLost."""
    await _letters_first(connection, [held.run])
    await hold(connection, held)
    await end(connection, held.run, state)


async def has_ended(connection: Connection, held: Hold, state: RunState) -> bool:
    """Whether the run has come to its end in that state, and nobody has taken it over from the holder."""
    found: bool = await connection.fetchval(_QUERIES["has_ended"], held.run, held.token, state)
    return found


async def _insert(connection: Connection, job: JobId, wish: Wish, state: RunState) -> int:
    await release_stalled(connection, job)
    arguments = (job, wish.kind, state, wish.digest, len(wish.letters), wish.is_forced, wish.reason, wish.asked_by)
    run: int = await connection.fetchval(_QUERIES["start_run"], *arguments)
    took = await _reserve(connection, run, job, wish.letters, is_forced=wish.is_forced)
    if took != len(wish.letters):
        others = [row["replay"] for row in await connection.fetch(_QUERIES["runs_of_letters"], list(wish.letters))]
        named = ", ".join(str(other) for other in others if other != run)
        whose = f"run {named} has them" if named else "they were decided"
        raise AlreadyRunning(f"{len(wish.letters) - took} of {len(wish.letters)} letters changed meanwhile: {whose}")
    return run


async def _reserve(connection: Connection, run: int, job: JobId, letters: Collection[UUID], *, is_forced: bool) -> int:
    states = [LetterState.DEAD, LetterState.QUARANTINED] if is_forced else [LetterState.DEAD]
    took: int = await connection.fetchval(_QUERIES["reserve_letters"], run, job, list(letters), states)
    return took


async def _take(connection: Connection, job: JobId, run: int, holder: str) -> Hold:
    return Hold(job, run, await connection.fetchval(_QUERIES["take_run"], run, holder, LEASE_SECONDS))


async def _taken(connection: Connection, job: JobId, run: int) -> asyncpg.Record:
    """As `_locked`, for whoever may take the run from its runner."""
    if not await connection.fetchval(_QUERIES["is_held"], run):
        await _letters_first(connection, [run])
    return await _locked(connection, job, run)


async def _letters_first(connection: Connection, runs: Sequence[int]) -> None:
    """The letters that the runs have not decided are locked, before the runs are: as a runner does it, who may be at
    work yet, late as he is. In the other order each would wait for the other."""
    if runs:
        await connection.execute(_QUERIES["lock_undecided_letters"], list(runs))


async def _locked(connection: Connection, job: JobId, run: int) -> asyncpg.Record:
    row = await connection.fetchrow(_QUERIES["lock_run"], job, run)
    if row is None:
        raise Misconfigured(f"the job has no run {run}; 'tidegate dlq runs' shows which there are")
    return row


def _run(row: asyncpg.Record, outcomes: Mapping[Outcome, int]) -> Run:
    return Run(**{**row, "kind": RunKind(row["kind"]), "state": RunState(row["state"])}, outcomes=outcomes)


async def _outcomes(connection: Connection, run: int) -> Mapping[Outcome, int]:
    rows = await connection.fetch(_QUERIES["outcomes_of_run"], run)
    return {Outcome(row["outcome"]): row["letters"] for row in rows if row["outcome"] is not None}
