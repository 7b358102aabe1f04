"""What is told of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import asyncpg

from dlq.runs.run import FailureGroup, Outcome, Run, RunKind, RunState
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import ReplayId
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)


async def read_run(connection: Connection, service: str, run: ReplayId) -> Run:
    """Raises Misconfigured if the service has no such run."""
    row = await connection.fetchrow(_QUERIES["read_run"], service, run)
    if row is None:
        raise Misconfigured(f"service {service!r} has no run {run}; 'tidegate dlq runs' shows which it has")
    return _run(row, await _outcomes(connection, run))


async def recent_runs(connection: Connection, service: str, *, code: str | None, limit: int) -> Sequence[Run]:
    """Returns the newest runs first."""
    rows = await connection.fetch(_QUERIES["recent_runs"], service, code, limit)
    return [_run(row, await _outcomes(connection, row["id"])) for row in rows]


async def failures_of(connection: Connection, run: ReplayId, *, limit: int = 20) -> Sequence[FailureGroup]:
    """Returns how letters failed that failed again, the most frequent first."""
    rows = await connection.fetch(_QUERIES["failures_of_run"], run, limit)
    return [FailureGroup(**row) for row in rows]


def _run(row: asyncpg.Record, outcomes: Mapping[Outcome, int]) -> Run:
    return Run(**{**row, "kind": RunKind(row["kind"]), "state": RunState(row["state"])}, outcomes=outcomes)


async def _outcomes(connection: Connection, run: ReplayId) -> Mapping[Outcome, int]:
    rows = await connection.fetch(_QUERIES["outcomes_of_run"], run)
    return {Outcome(row["outcome"]): row["letters"] for row in rows if row["outcome"] is not None}
