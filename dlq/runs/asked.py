"""What somebody asks for: a run begun, approved, resumed, stopped; in the transaction in which it is permitted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

import asyncpg

from dlq.runs.run import LEASE_SECONDS, LEFT, Hold, RunState, Wish
from dlq.runs.work import end, letters_first
from dlq.states import LetterState
from tidegate_kernel.errors import AlreadyRunning, Denied, Misconfigured
from tidegate_kernel.event import JobId, ReplayId
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)


async def start_run(connection: Connection, job: JobId, wish: Wish, *, holder: str) -> Hold:
    """The letters are the run's, and the run the holder's. Raises AlreadyRunning where another has one of them."""
    run = await _insert(connection, job, wish, RunState.RUNNING)
    return await _take(connection, job, run, holder)


async def propose_run(connection: Connection, job: JobId, wish: Wish) -> ReplayId:
    """The letters are the run's, which waits for a second person. Raises AlreadyRunning as `start_run`."""
    return await _insert(connection, job, wish, RunState.WAITING)


async def approve_run(connection: Connection, job: JobId, run: ReplayId, *, by: str) -> None:
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


async def resume_run(connection: Connection, job: JobId, run: ReplayId, *, holder: str) -> Hold:
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
    left = [r["letter"] for r in await connection.fetch(_QUERIES["undecided_letters"], run, list(LEFT))]
    took = await _reserve(connection, run, job, left, is_forced=row["is_forced"]) if left else 0
    if row["state"] == RunState.DONE and not took:
        raise Misconfigured(f"run {run} has ended, and nothing of it is left to be tried")
    return await _take(connection, job, run, holder)


async def stop_run(connection: Connection, job: JobId, run: ReplayId, *, by: str) -> bool:
    """The run ends: at once where nobody works on it (True), else at its runner's next batch (False)."""
    row = await _taken(connection, job, run)
    if row["state"] in (RunState.DONE, RunState.STOPPED):
        raise Misconfigured(f"run {run} is {row['state']} already")
    if row["is_held"]:
        await connection.execute(_QUERIES["ask_to_stop"], run, by)
        return False
    await end(connection, run, RunState.STOPPED)
    return True


async def release_stalled(connection: Connection, job: JobId) -> Sequence[ReplayId]:
    """Runs of the job whose runners are gone have stopped, and their letters are as they were. Returns the runs."""
    await letters_first(connection, [row["id"] for row in await connection.fetch(_QUERIES["stalled_runs"], job)])
    stalled = [ReplayId(row["id"]) for row in await connection.fetch(_QUERIES["lock_stalled_runs"], job)]
    for run in stalled:
        await end(connection, run, RunState.STOPPED)
    return stalled


async def _insert(connection: Connection, job: JobId, wish: Wish, state: RunState) -> ReplayId:
    await release_stalled(connection, job)
    arguments = (job, wish.kind, state, wish.digest, len(wish.letters), wish.is_forced, wish.reason, wish.asked_by)
    run = ReplayId(await connection.fetchval(_QUERIES["start_run"], *arguments))
    took = await _reserve(connection, run, job, wish.letters, is_forced=wish.is_forced)
    if took != len(wish.letters):
        others = [row["replay"] for row in await connection.fetch(_QUERIES["runs_of_letters"], list(wish.letters))]
        named = ", ".join(str(other) for other in others if other != run)
        whose = f"run {named} has them" if named else "they were decided"
        raise AlreadyRunning(f"{len(wish.letters) - took} of {len(wish.letters)} letters changed meanwhile: {whose}")
    return run


async def _reserve(
    connection: Connection, run: ReplayId, job: JobId, letters: Collection[UUID], *, is_forced: bool
) -> int:
    states = [LetterState.DEAD, LetterState.QUARANTINED] if is_forced else [LetterState.DEAD]
    took: int = await connection.fetchval(_QUERIES["reserve_letters"], run, job, list(letters), states)
    return took


async def _take(connection: Connection, job: JobId, run: ReplayId, holder: str) -> Hold:
    return Hold(job, run, await connection.fetchval(_QUERIES["take_run"], run, holder, LEASE_SECONDS))


async def _taken(connection: Connection, job: JobId, run: ReplayId) -> asyncpg.Record:
    """As `_locked`, for whoever may take the run from its runner."""
    if not await connection.fetchval(_QUERIES["is_held"], run):
        await letters_first(connection, [run])
    return await _locked(connection, job, run)


async def _locked(connection: Connection, job: JobId, run: ReplayId) -> asyncpg.Record:
    row = await connection.fetchrow(_QUERIES["lock_run"], job, run)
    if row is None:
        raise Misconfigured(f"the job has no run {run}; 'tidegate dlq runs' shows which there are")
    return row
