"""Kills a worker at a moment when it provably holds unsettled work of both kinds.

The process is frozen first, so that there is time to look. Is a transaction of its open, has it written, which position
does it hold? Does a sink show more of a projection than its position has settled? Only then it is killed; otherwise it
goes on, and the next look is a moment later.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

from examples.shop.demo.ahead import Sinks, Standing
from examples.shop.demo.place import TrialFailed
from examples.shop.demo.produce import First
from examples.shop.demo.workers import Worker

_DEADLINE_SECONDS = 30.0
# A statement that was under way when the process froze, a COMMIT or a settle, is through after this.
_SETTLES_SECONDS = 0.05
_BETWEEN_LOOKS_SECONDS = 0.02

# $1 application name.
_OPEN_TRANSACTION = """
SELECT pid, backend_xid::text AS xid, xact_start
FROM pg_stat_activity
WHERE datname = current_database()
    AND application_name = $1
    AND state = 'idle in transaction'
    AND backend_xid IS NOT NULL
ORDER BY xact_start
"""
# $1 owner.
_OWNED = """
SELECT j.code, p.topic, p.partition, p.next_offset, p.epoch
FROM tidegate.position AS p
JOIN tidegate.job AS j ON j.id = p.job
WHERE p.owner = $1
"""
# Rows that nobody holds: what is owned and not among them is locked by a batch under way. $1 owner.
_OWNED_AND_FREE = """
SELECT j.code, p.partition
FROM tidegate.position AS p
JOIN tidegate.job AS j ON j.id = p.job
WHERE p.owner = $1
FOR UPDATE OF p SKIP LOCKED
"""
# $1 job code, $2 topic, $3 partition.
_POSITION = """
SELECT p.next_offset, p.epoch, p.owner
FROM tidegate.position AS p
JOIN tidegate.job AS j ON j.id = p.job
WHERE j.code = $1 AND p.topic = $2 AND p.partition = $3
"""


@dataclass(frozen=True)
class Applied:
    """A projection's batch that a sink shows and that was not settled when its process was dead.

    The sink knew `first.order`, which no record before `first.offset` tells of.
    """

    standing: Standing
    first: First


@dataclass(frozen=True)
class Kill:
    """What was killed in the middle of what. `transactions` had written and were open, over `batches`."""

    worker: str
    looks: int
    transactions: Sequence[str]
    batches: Sequence[Standing]
    applied: Sequence[Applied]


async def kill_in_flight(workers: Sequence[Worker], database: Any, sinks: Sinks) -> Kill:
    """One of them is dead, killed with batches begun and not settled, in a transaction and in a sink.

    Raises TrialFailed if none ever had both.
    """
    loop = asyncio.get_running_loop()
    deadline, looks = loop.time() + _DEADLINE_SECONDS, 0
    for worker in cycle(workers):
        if loop.time() >= deadline:
            break
        looks += 1
        worker.signal(signal.SIGSTOP)
        found = await _look(worker, database, sinks)
        if found is not None:
            worker.signal(signal.SIGKILL)
            await worker.process.wait()
            return await _confirmed(Kill(worker.name, looks, *found), worker, database)
        worker.signal(signal.SIGCONT)
        await asyncio.sleep(_BETWEEN_LOOKS_SECONDS)
    raise TrialFailed(f"no worker ever had a transaction and a projection's batch in flight, in {looks} looks")


async def unproven(kill: Kill, database: Any) -> Sequence[str]:
    """Sentences about what does not prove that the killed batches were handled again by another owner; none is good."""
    complaints = []
    for xid in kill.transactions:
        status = await database.fetchval("SELECT pg_xact_status($1::text::xid8)", xid)
        if status != "aborted":
            complaints.append(f"the kill's transaction {xid} is {status}, not aborted: it was not unsettled")
    for batch in (*kill.batches, *(each.standing for each in kill.applied)):
        row = await database.fetchrow(_POSITION, batch.job, batch.topic, batch.partition)
        place = f"{batch.job} {batch.topic}:{batch.partition}"
        if row["epoch"] <= batch.epoch:
            complaints.append(f"{place}: no other owner took over after the kill")
        if row["next_offset"] <= batch.next_offset:
            complaints.append(f"{place}: the killed batch at {batch.next_offset} was not handled again")
    return complaints


async def _look(
    worker: Worker, database: Any, sinks: Sinks
) -> tuple[Sequence[str], Sequence[Standing], Sequence[Applied]] | None:
    first = await _open_transactions(worker, database)
    if not first:
        return None
    await asyncio.sleep(_SETTLES_SECONDS)
    open_still = [xid for xid in await _open_transactions(worker, database) if xid in first]
    if not open_still:
        return None
    owned = await _owned(worker, database)
    free = {(row["code"], row["partition"]) for row in await database.fetch(_OWNED_AND_FREE, worker.owner)}
    batches = [each for each in owned if (each.job, each.partition) not in free]
    applied = await _applied(owned, sinks) if batches else []
    return (open_still, batches, applied) if applied else None


async def _applied(owned: Sequence[Standing], sinks: Sinks) -> Sequence[Applied]:
    firsts = await asyncio.gather(*map(sinks.ahead, owned))
    return [Applied(each, first) for each, first in zip(owned, firsts, strict=True) if first is not None]


async def _confirmed(kill: Kill, worker: Worker, database: Any) -> Kill:
    """A settle could have been on its way to Postgres at the last look: what it has reached was not in flight.

    Nobody takes over before the session of the dead has run out, so the positions are still as it left them.
    """
    await asyncio.sleep(_SETTLES_SECONDS)
    left = await _owned(worker, database)
    return replace(kill, applied=[each for each in kill.applied if each.standing in left])


async def _owned(worker: Worker, database: Any) -> Sequence[Standing]:
    return [Standing(*row.values()) for row in await database.fetch(_OWNED, worker.owner)]


async def _open_transactions(worker: Worker, database: Any) -> Sequence[str]:
    rows = await database.fetch(_OPEN_TRANSACTION, f"tidegate {worker.owner}"[:63])
    return [str(row["xid"]) for row in rows]
