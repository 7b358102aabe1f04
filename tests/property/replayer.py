"""A process that works off a run over dead letters, as an operator starts it beside the live ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, cast
from uuid import UUID

from consumers.replay import Replay
from consumers.replay_verdicts import Taken, Verdicts
from dlq.runs import Hold, Outcome, RunKind, Wish, resume_run, start_run
from tests.property import schedule
from tests.property.application import RETRY
from tests.property.process import FaultySink, Process
from tidegate.assembly import replay_hands
from tidegate.jobs.declaration import ConsumerJob
from tidegate_kernel.errors import AlreadyRunning, LeaseLost, Misconfigured, Transient
from tidegate_kernel.event import JobId, ReplayId
from tidegate_kernel.postgres import Pool, translated_errors

if TYPE_CHECKING:
    from tests.property.world import World

MOST_REPLAYS = 2
# A schedule has a few dozen letters and parked events, and time stands still for whoever never waits.
_MOST_BATCHES = 200
# A runner may be told of these; everything else is a defect.
EXPECTED = (Transient, AlreadyRunning, LeaseLost, Misconfigured)
_SILENCE_LIMIT = timedelta(seconds=60)

_CHOSEN = """
SELECT d.id FROM tidegate.dead_letter AS d JOIN tidegate.job AS j ON j.id = d.job
WHERE j.service = $1 AND d.state = ANY ($2::text[]) ORDER BY d.topic, d.partition, d."offset"
"""
# Its runner was not heard of for too long; not one that is just saying what it has done, which nobody waits for here.
_UNFINISHED = """
WITH newest AS (
    SELECT r.id, r.kind FROM tidegate.replay AS r JOIN tidegate.job AS j ON j.id = r.job
    WHERE j.service = $1 AND r.state = ANY ($2::text[]) ORDER BY r.id DESC LIMIT 1
),
idle AS (
    SELECT r.id FROM tidegate.replay AS r JOIN newest AS n ON n.id = r.id WHERE r.lease_until IS NOT NULL
    FOR UPDATE OF r SKIP LOCKED
),
ended AS (UPDATE tidegate.replay AS r SET lease_until = now() FROM idle AS i WHERE r.id = i.id)
SELECT n.id, n.kind FROM newest AS n
"""


@dataclass(frozen=True, slots=True)
class Told:
    """What a runner says that became of a letter, once it is final."""

    held: Hold
    letter: UUID
    outcome: Outcome


@dataclass(slots=True)
class Replays:
    """What runners of a world have said. `mended` are the runs on which a runner with the mended job worked."""

    told: list[Told] = field(default_factory=list)
    mended: set[int] = field(default_factory=set)
    defects: list[BaseException] = field(default_factory=list)


async def unfinished(
    world: World, *, states: Sequence[str] = ("running", "stopped")
) -> tuple[ReplayId, RunKind] | None:
    """The newest run in one of these states, whose lease is over by now."""
    rows = await world.ask(_UNFINISHED, world.service, list(states))
    return (ReplayId(rows[0]["id"]), RunKind(rows[0]["kind"])) if rows else None


class Replayer(Process):
    """Begins what is asked for, or resumes what was interrupted. Ends with the run, or with the first error."""

    def __init__(self, world: World, name: str, asked: schedule.Replay | schedule.Resume) -> None:
        super().__init__(world, name)
        self._asked = asked
        self._batches = 0
        self._replay: Replay | None = None

    @property
    def stays(self) -> bool:
        return False

    async def _live(self) -> None:
        self._inner = asyncio.create_task(self._run_once(), name=f"{self.name}-run")
        await asyncio.wait([self._inner])
        if not self._inner.cancelled() and (error := self._inner.exception()) is not None:
            self.world.note_restart(error)
            if not isinstance(error, EXPECTED):
                self.world.replays.defects.append(error)

    async def _run_once(self) -> None:
        await self.gate()
        found = await unfinished(self.world) if isinstance(self._asked, schedule.Resume) else None
        if isinstance(self._asked, schedule.Resume) and found is None:
            return
        kind = found[1] if found is not None else RunKind(cast("schedule.Replay", self._asked).run)
        sink = FaultySink(self) if self.world.has_sink else None
        app = self.world.mended_app if self._asked.is_mended else self.world.app
        ledger, hands = await replay_hands(app, app.jobs[0], self.resources, sink=sink, kind=kind)
        held = await self._begin(ledger.origin.job, kind, None if found is None else found[0])
        if self._asked.is_mended:
            self.world.replays.mended.add(held.run)
        silence_limit = self.job.silence_limit if isinstance(self.job, ConsumerJob) else _SILENCE_LIMIT
        verdicts = Verdicts(ledger, held, MOST_REPLAYS, self.name, "tests", silence_limit)
        self._replay = Replay(
            hands, verdicts, policy=RETRY, clock=self.world.clock, on_taken=lambda taken: self._note(held, taken)
        )
        watcher = asyncio.create_task(self._pass_stop_on(self._replay.stop))
        try:
            await self._replay.run()
        finally:
            watcher.cancel()

    async def _begin(self, job: JobId, kind: RunKind, found: ReplayId | None) -> Hold:
        pool = cast("Pool", self.pool)
        wish = await self._wish(kind)
        with translated_errors("begin"):
            async with pool.acquire() as connection, connection.transaction():
                if found is not None:
                    return await resume_run(connection, job, found, holder=self.name)
                return await start_run(connection, job, wish, holder=self.name)

    async def _wish(self, kind: RunKind) -> Wish:
        asked, letters, is_forced = self._asked, list[UUID](), False
        if isinstance(asked, schedule.Replay):
            is_forced = asked.is_forced
            states = ["dead", "quarantined"] if is_forced else ["dead"]
            letters = [row["id"] for row in await self.world.ask(_CHOSEN, self.world.service, states)]
            letters = letters if asked.half is None else letters[asked.half :: 2]
        return Wish(kind=kind, letters=letters, digest="", reason="tests", asked_by=self.name, is_forced=is_forced)

    def _note(self, held: Hold, taken: Taken) -> None:
        self.world.replays.told += [Told(held, letter, outcome) for letter, outcome in taken.outcomes.items()]
        self._batches += 1
        assert self._batches < _MOST_BATCHES, "a run goes round and round"
        stops_after = self._asked.batches if isinstance(self._asked, schedule.Replay) else None
        if self._replay is not None and stops_after is not None and self._batches >= stops_after:
            self._replay.stop()
