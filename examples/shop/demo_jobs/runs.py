"""Runs as the database has them: asked for by command, watched, and the holder of one killed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from examples.shop.demo.place import TrialFailed
from examples.shop.demo.workers import Worker
from examples.shop.demo_dlq.commands import Console
from examples.shop.demo_jobs.app import CATALOGUE, EXPORTS, RECONCILIATION
from tidegate import Scope

_LOOK_SECONDS = 0.2
_CODES = (RECONCILIATION, EXPORTS, CATALOGUE)

_CLAIMS = """
SELECT r.holder, count(*) AS runs
FROM tidegate.job_run AS r
JOIN tidegate.job AS j ON j.id = r.job
WHERE j.code = ANY($1::text[]) AND r.started_at > $2
GROUP BY r.holder
"""
_RUN = "SELECT state, holder, processed, started_at, finished_at FROM tidegate.job_run WHERE id = $1"
_CHAIN = "SELECT state FROM tidegate.job_run WHERE $1 IN (id, first_run) ORDER BY id"
_GONE_ON = "SELECT min(started_at) FROM tidegate.job_run WHERE first_run = $1"
# From when to when runs were at work: one that was killed to its last sign of life, which is before anybody found it.
# $1 codes.
_AT_WORK = """
SELECT
    r.id, r.lock_name, r.due_at, r.started_at,
    CASE r.state WHEN 'stalled' THEN r.moved_at ELSE r.finished_at END AS ended_at
FROM tidegate.job_run AS r
JOIN tidegate.job AS j ON j.id = r.job
WHERE j.code = ANY($1::text[]) AND r.started_at IS NOT NULL AND r.finished_at IS NOT NULL
ORDER BY r.lock_name, r.started_at
"""
_DOUBLE = """
SELECT count(*)
FROM (
    SELECT FROM tidegate.job_run AS r
    WHERE r.trigger = 'schedule'
    GROUP BY r.job, r.tenant, r.brand, r.scheduled_at
    HAVING count(*) > 1
) AS twice
"""
_UNFINISHED = """
SELECT count(*)
FROM tidegate.job_run AS r
JOIN tidegate.job AS j ON j.id = r.job
WHERE j.service = $1 AND j.code = $2 AND r.state IN ('due', 'running')
"""


@dataclass(frozen=True)
class Runs:
    """Runs of the shop's jobs by the clock."""

    database: Any
    console: Console

    async def ask(self, scope: Scope, *, key: str = "", **parameters: int) -> Mapping[str, Any]:
        """Somebody asks for a reconciliation of the scope, for the reason that this is a demo."""
        words = ["jobs", "run", RECONCILIATION, "--tenant", scope.tenant, "--brand", scope.brand]
        words += ["--key", key] if key else []
        words += [word for name, value in parameters.items() for word in ("--param", f"{name}={value}")]
        typed = await self.console.type(*words, "--reason", "the demo", "--json")
        told: Mapping[str, Any] = typed.as_json
        return told

    async def held_back(self, verb: str) -> None:
        """Reconciliations are paused, or resumed: what is asked for between comes due at once."""
        await self.console.type(verb, RECONCILIATION, "--reason", "the demo")

    async def claims(self, workers: Sequence[Worker], since: Any) -> dict[str, int]:
        """How many runs each of the workers has claimed."""
        rows = await self.database.fetch(_CLAIMS, list(_CODES), since)
        by_holder = {row["holder"]: row["runs"] for row in rows}
        return {worker.name: by_holder.get(worker.owner, 0) for worker in workers}

    async def states(self, run: int) -> Sequence[str]:
        """Of the run and those that went on with it, in their order."""
        return [row["state"] for row in await self.database.fetch(_CHAIN, run)]

    async def side_by_side(self) -> int:
        """How many runs began while another of their scope was at work."""
        rows = await self.database.fetch(_AT_WORK, list(_CODES))
        return sum(
            one["lock_name"] == later["lock_name"] and later["started_at"] < one["ended_at"]
            for one, later in pairwise(rows)
        )

    async def one_waited(self, first: int, second: int) -> bool:
        """Whether the two were due together, and the later began when the earlier had ended."""
        rows = await self.database.fetch(_AT_WORK, list(_CODES))
        earlier, later = (row for row in rows if row["id"] in (first, second))
        return bool(later["due_at"] < earlier["ended_at"] <= later["started_at"])

    async def double(self) -> int:
        """How many occasions have more than one run."""
        return int(await self.database.fetchval(_DOUBLE))

    async def of(self, run: int) -> Any:
        return await self.database.fetchrow(_RUN, run)

    async def kill_holder(self, run: int, workers: Sequence[Worker], *, after: int) -> Worker:
        """The worker that has the run's lease is dead, in the middle of the run: frozen, looked at, killed."""
        await self.until(lambda: self._has_done(run, after), what=f"run {run} to be in its middle")
        holder = (await self.of(run))["holder"]
        (worker,) = [each for each in workers if each.owner == holder]
        worker.signal(signal.SIGSTOP)
        if (await self.of(run))["state"] != "running":
            worker.signal(signal.SIGCONT)
            raise TrialFailed(f"run {run} was over before its holder could be killed")
        worker.signal(signal.SIGKILL)
        await worker.process.wait()
        return worker

    async def found_after(self, run: int) -> float:
        """Seconds from the last sign of the dead holder to the run that goes on. Raises TrialFailed."""

        async def is_over() -> bool:
            states = await self.states(run)
            return len(states) > 1 and states[-1] == "done"

        await self.until(is_over, what=f"run {run} to be gone on with")
        moved = await self.database.fetchval("SELECT moved_at FROM tidegate.job_run WHERE id = $1", run)
        began = await self.database.fetchval(_GONE_ON, run)
        return float((began - moved).total_seconds())

    async def until_idle(self) -> None:
        """No reconciliation is due or at work."""

        async def is_idle() -> bool:
            return not await self.database.fetchval(_UNFINISHED, f"{self.console.place.prefix}shop", RECONCILIATION)

        await self.until(is_idle, what="reconciliations to end")

    async def until(self, is_so: Callable[[], Awaitable[bool]], *, what: str, seconds: float = 120) -> None:
        """Raises TrialFailed after that time."""
        try:
            async with asyncio.timeout(seconds):
                while not await is_so():  # noqa: ASYNC110  # rows in a database tell nobody of their change
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise TrialFailed(f"waited {seconds:.0f} s for {what}") from None

    async def _has_done(self, run: int, count: int) -> bool:
        row = await self.of(run)
        return bool(row["processed"] >= count)
