"""Plays a schedule in a world, heals everything, and waits until the work is done."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import assert_never

from tests.property.backfiller import Backfiller
from tests.property.process import Process, Unsettled
from tests.property.replayer import Replayer, unfinished
from tests.property.schedule import (
    Again,
    Break,
    ClockJump,
    Deed,
    Deliver,
    FetchFails,
    Hole,
    Outage,
    Pass,
    Replay,
    Resume,
    Schedule,
    SinkBreaks,
    Step,
    Strike,
    Thing,
)
from tests.property.world import World
from tidegate_kernel.source import SourceFailure

# A step that waits for points waits no longer than this: an idle world passes none.
_POINTS_SECONDS = 3.0
_LOOK_SECONDS = 0.5
# Retries, breakers, sessions and drains are all over long before that.
_DRAINED_SECONDS = 120.0
_STOPPED_SECONDS = 60.0
_SLOW_SECONDS = 0.3
# What was armed last shall strike, too.
_LAST_SECONDS = 0.5

# To the next owner they look alike: it takes over from one that released nothing.
_DEATHS = frozenset({Deed.KILL, Deed.CANCEL, Deed.EXPEL, Deed.FREEZE})

_UNFINISHED = """
UPDATE tidegate.backfill AS b SET lease_until = now() FROM tidegate.job AS j
WHERE j.id = b.job AND j.service = $1 AND b.state = 'running' RETURNING b.id
"""
# Those of which there is something to be handled.
_REPLAYABLE = """
SELECT d.id FROM tidegate.dead_letter AS d JOIN tidegate.job AS j ON j.id = d.job
WHERE j.service = $1 AND d.state IN ('dead', 'quarantined') AND d.has_payload
"""
_LOOSE = """
SELECT p.id FROM tidegate.parked AS p JOIN tidegate.job AS j ON j.id = p.job
WHERE j.service = $1 AND NOT EXISTS (
    SELECT FROM tidegate.blocking_letter AS l
    WHERE (l.job, l.topic, l.key) = (p.job, p.topic, p.order_key) AND (l.turn, l."offset") <= (p.turn, p."offset")
)
"""
_NO_LETTER = 1_000_000
# One is enough, unless it meets what an earlier one has left.
_MOST_RUNS = 3


class Player:
    """One performance. `struck` counts what struck while records were unsettled."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._names = 0
        self.struck: Counter[str] = Counter()

    async def play(self, schedule: Schedule) -> None:
        for _ in range(schedule.processes):
            self._join()
        for step in schedule.steps:
            await self._step(step)
        await asyncio.sleep(_LAST_SECONDS)
        self._heal()
        await self._until_done()
        await self._until_runs_have_ended()
        if schedule.is_made_good:
            await self._make_good()
        await self._stop()

    async def _step(self, step: Step) -> None:
        world = self._world
        match step:
            case Deliver(specs):
                for spec in specs:
                    world.produced.new(spec)
            case Again(which, is_copy):
                world.produced.again(which, is_copy=is_copy)
            case Hole(partition, offsets):
                self._hole(partition, offsets)
            case Break(fault):
                world.postgres.arm(fault)
            case Outage(thing, seconds, after):
                await self._at_point(after, lambda: self._outage(thing, seconds), f"{thing} away")
            case SinkBreaks(share):
                world.sink_faults.append(share)
            case FetchFails(partition):
                where = None if partition is None else world.partitions[partition]
                world.broker.fail_next_fetch(SourceFailure("injected: the fetch failed"), where)
            case Strike(deed, process, after):
                await self._at_point(after, lambda: self._deed(deed, process), deed)
            case ClockJump(seconds):
                world.clock.jump(timedelta(seconds=seconds))
            case Pass(seconds, points):
                await self._at_point(points, lambda: None, "pass", seconds=seconds)
            case Replay():
                await self._at_point(step.after, lambda: self._replay(step), f"{step.run} of letters")
            case Resume():
                await self._at_point(step.after, lambda: self._replay(step), "run resumed")
            case _:
                assert_never(step)

    async def _at_point(
        self, after: int, strike: Callable[[], object], name: str, *, seconds: float = _POINTS_SECONDS
    ) -> None:
        """`strike` happens at the very point, in the middle of whatever a process does; in an idle world later."""
        struck = asyncio.Event()

        def once() -> None:
            if not struck.is_set():
                struck.set()
                self.struck[name] += 1
                strike()

        if after:
            self._world.after_points(after, once)
            try:
                async with asyncio.timeout(seconds):
                    await struck.wait()
            except TimeoutError:
                self.struck[name] -= 1  # nothing was in hand
        once()

    def _hole(self, partition: int, offsets: int) -> None:
        log = self._world.broker.log(self._world.partitions[partition])
        assert log is not None
        log.skip(offsets)
        self._world.broker.notify()

    # Outages.

    def _outage(self, thing: Thing, seconds: float) -> None:
        world = self._world
        match thing:
            case Thing.POSTGRES:
                world.postgres.go_down(seconds)
                return
            case Thing.KAFKA:
                world.broker.is_down = True
            case Thing.SINK:
                world.sink.is_down = True
            case Thing.PAYMENTS:
                world.is_payments_away = True
        world.loop.call_later(seconds, self._restore, thing)

    def _restore(self, thing: Thing) -> None:
        match thing:
            case Thing.KAFKA:
                self._world.broker.is_down = False
            case Thing.SINK:
                self._world.sink.is_down = False
            case Thing.PAYMENTS:
                self._world.is_payments_away = False

    # Processes.

    def _join(self) -> None:
        self._names += 1
        self._world.processes.append(Process(self._world, f"p{self._names}"))

    def _backfill(self) -> None:
        self._names += 1
        self._world.processes.append(Backfiller(self._world, f"p{self._names}"))

    def _replay(self, asked: Replay | Resume) -> Replayer:
        self._names += 1
        replayer = Replayer(self._world, f"p{self._names}", asked)
        self._world.processes.append(replayer)
        return replayer

    def _deed(self, deed: Deed, number: int) -> None:
        living = self._world.living
        process = living[number % len(living)] if living else None
        match deed:
            case Deed.JOIN:
                self._join()
            case Deed.BACKFILL:
                self._backfill()
            case Deed.REVOKE:
                self._world.later(self._world.group.rebalance())
            case _ if process is not None:
                self._befall(deed, process)

    def _befall(self, deed: Deed, process: Process) -> None:
        self._world.deaths += deed in _DEATHS
        match deed:
            case Deed.LEAVE:
                process.stop()
            case Deed.KILL:
                process.kill()
            case Deed.CANCEL:
                process.cancel()
            case Deed.EXPEL:
                process.expel()
            case Deed.FREEZE:
                process.freeze()
            case Deed.THAW:
                process.thaw()
            case Deed.REJOIN:
                process.thaw()
                process.rejoin()
            case Deed.SLOW_DOWN:
                process.latency = _SLOW_SECONDS - process.latency

    # The end.

    def _heal(self) -> None:
        world = self._world
        world.postgres.heal()
        world.sink_faults.clear()
        for thing in Thing:
            self._restore(thing)
        for process in world.living:
            process.latency = 0.0
            process.thaw()
            process.rejoin()
        if not any(process.stays for process in world.living):
            self._join()

    async def _until_done(self) -> None:
        until = self._world.loop.time() + _DRAINED_SECONDS
        while not await self._world.is_drained():
            if self._world.loop.time() > until:
                raise Unsettled(f"healed, but stuck: {await self._world.positions()}")
            await asyncio.sleep(_LOOK_SECONDS)
        while await self._resume_backfill():
            if self._world.loop.time() > until:
                raise Unsettled("healed, but a backfill does not end")

    async def _resume_backfill(self) -> bool:
        """Whether one was left to be resumed; returns when the process that did it has ended."""
        running = [process for process in self._world.living if isinstance(process, Backfiller)]
        if not running:
            world = self._world
            if not await world.ask(_UNFINISHED, world.service):
                return False
            self._backfill()
            running = [self._world.processes[-1]]  # type: ignore[list-item]  # just made
        await asyncio.wait([process.task for process in running], timeout=_DRAINED_SECONDS)
        return True

    async def _until_runs_have_ended(self) -> None:
        """What was left of runs is done, and so is what a run that was stopped has left parked behind nothing."""
        until = self._world.loop.time() + _DRAINED_SECONDS
        while True:
            if running := [each for each in self._world.living if isinstance(each, Replayer)]:
                await asyncio.wait([process.task for process in running], timeout=_DRAINED_SECONDS)
            elif await unfinished(self._world, states=["running"]) is not None:
                self._replay(Resume())
            elif await self._world.ask(_LOOSE, self._world.service):
                self._replay(Replay(half=_NO_LETTER))
            else:
                return
            if self._world.loop.time() > until:
                raise Unsettled("healed, but a run over dead letters does not end")

    async def _make_good(self) -> None:
        for _ in range(_MOST_RUNS):
            if not await self._world.ask(_REPLAYABLE, self._world.service):
                return
            await asyncio.wait([self._replay(Replay(is_forced=True)).task], timeout=_DRAINED_SECONDS)

    async def _stop(self) -> None:
        living = self._world.living
        for process in living:
            process.stop()
        if living:
            _, left = await asyncio.wait([process.task for process in living], timeout=_STOPPED_SECONDS)
            if left:
                raise Unsettled(f"asked to stop, and still there: {[task.get_name() for task in left]}")
