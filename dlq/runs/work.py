"""What a runner does with its run: it finds letters, decides about them under its lease, and ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from dlq.outcomes import Decided
from dlq.runs.run import LEASE_SECONDS, Hold, Outcome, Place, RunState
from dlq.states import LetterState
from tidegate_kernel.errors import LeaseLost
from tidegate_kernel.event import ReplayId
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)


async def outstanding(connection: Connection, run: ReplayId, *, limit: int) -> Sequence[Place]:
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


async def decided_in(connection: Connection, run: ReplayId, letters: Sequence[UUID]) -> Mapping[UUID, Outcome]:
    """Returns what has become of those of the letters that the run has decided about."""
    rows = await connection.fetch(_QUERIES["decided_in_run"], run, list(letters))
    return {row["letter"]: Outcome(row["outcome"]) for row in rows}


async def end(connection: Connection, run: ReplayId, state: RunState) -> None:
    """In the caller's transaction: the run has come to an end; undecided letters are as they were before it."""
    await connection.execute(_QUERIES["leave_letters"], run, Outcome.NOT_TRIED)
    await connection.execute(_QUERIES["end_run"], run, state)


async def give_back(connection: Connection, held: Hold, state: RunState) -> None:
    """In the caller's transaction: its run has come to an end, as by `end`. Raises LeaseLost."""
    await letters_first(connection, [held.run])
    await hold(connection, held)
    await end(connection, held.run, state)


async def has_ended(connection: Connection, held: Hold, state: RunState) -> bool:
    """Whether the run has come to its end in that state, and nobody has taken it over from the holder."""
    found: bool = await connection.fetchval(_QUERIES["has_ended"], held.run, held.token, state)
    return found


async def letters_first(connection: Connection, runs: Sequence[ReplayId]) -> None:
    """The letters that the runs have not decided are locked, before the runs are: as a runner does it, who may be at
    work yet, late as he is. In the other order each would wait for the other."""
    if runs:
        await connection.execute(_QUERIES["lock_undecided_letters"], list(runs))
