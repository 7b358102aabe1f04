"""Runs over dead letters: which letters a run has, who works on it, and what became of each.

A letter belongs to one unfinished run at most: taking it is its own change of state, `dead` to `replaying`. A run has
one runner at a time, which holds it by a lease and a token; every transaction that decides about letters renews the
lease under the token, so whoever lost the run decides nothing.
"""

from __future__ import annotations

from dlq.runs.asked import approve_run, propose_run, release_stalled, resume_run, start_run, stop_run
from dlq.runs.run import ENDED, LEASE_SECONDS, FailureGroup, Hold, Outcome, Place, Run, RunKind, RunState, Wish
from dlq.runs.told import failures_of, read_run, recent_runs
from dlq.runs.work import decide, decided_in, end, give_back, has_ended, hold, outstanding

__all__ = [
    "ENDED",
    "LEASE_SECONDS",
    "FailureGroup",
    "Hold",
    "Outcome",
    "Place",
    "Run",
    "RunKind",
    "RunState",
    "Wish",
    "approve_run",
    "decide",
    "decided_in",
    "end",
    "failures_of",
    "give_back",
    "has_ended",
    "hold",
    "outstanding",
    "propose_run",
    "read_run",
    "recent_runs",
    "release_stalled",
    "resume_run",
    "start_run",
    "stop_run",
]
