"""Kills a replay with SIGKILL in the middle: some of its letters are resolved, others are not.

As in `make demo` the process is frozen first, so that there is time to look: best is a moment at which a transaction of
it has written and is not committed. Past the half of its letters any moment will do.
"""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from examples.shop.demo.place import TrialFailed
from examples.shop.demo_dlq.commands import owner_of
from examples.shop.demo_dlq.standing import LEDGER

_DEADLINE_SECONDS = 60.0
_BETWEEN_LOOKS_SECONDS = 0.02
# Before a fifth of the letters nobody would call it the middle.
_EARLIEST = 5

# $1 job code.
_RESOLVED = """
SELECT count(*) FILTER (WHERE l.state = 'resolved') AS resolved, count(*) AS letters
FROM tidegate.dead_letter AS l
JOIN tidegate.job AS j ON j.id = l.job
WHERE j.code = $1
"""
# $1 application name.
_OPEN_TRANSACTIONS = """
SELECT backend_xid::text AS xid
FROM pg_stat_activity
WHERE datname = current_database()
    AND application_name = $1
    AND state = 'idle in transaction'
    AND backend_xid IS NOT NULL
"""
_LEASE_SECONDS = """
SELECT extract(epoch FROM r.lease_until - now())::float8
FROM tidegate.replay AS r
WHERE r.id = $1
"""


@dataclass(frozen=True, slots=True)
class ReplayKill:
    """A replay that was killed. `transactions` had written and were open."""

    resolved: int
    letters: int
    transactions: Sequence[str]


async def kill_in_the_middle(replay: Process, database: Any) -> ReplayKill | None:
    """The process is dead. None: it has ended by itself before it could be killed. Raises TrialFailed."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _DEADLINE_SECONDS
    while replay.returncode is None:
        resolved, letters = await database.fetchrow(_RESOLVED, LEDGER)
        if loop.time() >= deadline:
            replay.kill()
            raise TrialFailed(f"the replay did not come to its middle: {resolved} of {letters} letters are resolved")
        if resolved * _EARLIEST >= letters and (found := await _look(replay, database)) is not None:
            return found
        await asyncio.sleep(_BETWEEN_LOOKS_SECONDS)
    return None


async def _look(replay: Process, database: Any) -> ReplayKill | None:
    """Frozen: what is seen is how it stands. Killed if that is a good moment, else it goes on."""
    if replay.returncode is not None:
        return None
    replay.send_signal(signal.SIGSTOP)
    rows = await database.fetch(_OPEN_TRANSACTIONS, f"tidegate {owner_of(replay)}"[:63])
    resolved, letters = await database.fetchrow(_RESOLVED, LEDGER)
    is_half = resolved >= letters // 2
    if resolved < letters and (rows or is_half):
        replay.send_signal(signal.SIGKILL)
        await replay.wait()
        return ReplayKill(resolved, letters, [row["xid"] for row in rows])
    replay.send_signal(signal.SIGCONT)
    return None


async def unproven(kill: ReplayKill, database: Any) -> Sequence[str]:
    """Sentences about transactions of the killed that came through all the same; none is good."""
    outcomes = {xid: await database.fetchval("SELECT pg_xact_status($1::text::xid8)", xid) for xid in kill.transactions}
    return [
        f"the kill's transaction {xid} is {status}, not aborted"
        for xid, status in outcomes.items()
        if status != "aborted"
    ]


async def until_taken_for_dead(database: Any, run: int) -> None:
    """The lease of the run's dead runner is over: another may take the run."""
    left = await database.fetchval(_LEASE_SECONDS, run)
    while left is not None and left >= 0:
        await asyncio.sleep(min(left + 0.1, 5.0))
        left = await database.fetchval(_LEASE_SECONDS, run)
