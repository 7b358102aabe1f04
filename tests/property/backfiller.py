"""A process that re-reads the job's topics from their beginning, beside the live ones."""

from __future__ import annotations

import asyncio
from typing import cast

from consumers.backfill import Backfill
from consumers.backfill_lease import BackfillLease
from consumers.positions import Position, Positions
from tests.property.process import GatedSource, Process
from tidegate.assembly import JobParts
from tidegate_kernel.event import RunId, TopicPartition
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool


class Backfiller(Process):
    """Starts a backfill, or resumes the one that was interrupted. Ends with it, or with the first error."""

    @property
    def stays(self) -> bool:
        return False

    async def _live(self) -> None:
        self._inner = asyncio.create_task(self._run_once(), name=f"{self.name}-run")
        await asyncio.wait([self._inner])
        if not self._inner.cancelled() and (error := self._inner.exception()) is not None:
            self.world.note_restart(error)

    async def _run_once(self) -> None:
        await self.gate()
        pool = cast("Pool", self.pool)
        live = await self._assemble()
        actor = Actor(self.name, Role.OPERATOR)
        lease = BackfillLease(pool, job=live.id, code="backfill", holder=self.name, actor=actor)
        run = await self._start_or_resume(lease)
        if run is None:
            return
        parts = await self._assemble(run)
        positions = await Positions(pool, job=live.id, run=run, owner=self.name).all()
        async with self.world.broker.reader(positions) as source:
            backfill = self._backfill(GatedSource(source, self), parts)
            watcher = asyncio.create_task(self._pass_stop_on(backfill.stop))
            try:
                is_done = await backfill.run(positions, lease, run)
            finally:
                watcher.cancel()
        if is_done:
            await lease.finish(run, records=0, dead_letters=0)
        else:
            await lease.release(run)

    async def _start_or_resume(self, lease: BackfillLease) -> RunId | None:
        unfinished = await lease.unfinished()
        if unfinished is None:
            self.world.backfills += 1
            return await lease.start("beginning", self._starts())
        return unfinished.run if await lease.resume(unfinished) else None

    def _starts(self) -> dict[TopicPartition, Position]:
        broker = self.world.broker
        starts: dict[TopicPartition, Position] = {}
        for partition in self.world.partitions:
            log = broker.log(partition)
            assert log is not None
            start, end = log.range()
            starts[partition] = Position(0, start, broker.topic_id(partition.topic), end_offset=end)
        return starts

    def _backfill(self, source: GatedSource, parts: JobParts) -> Backfill:
        return Backfill(
            source,
            parts.pipeline,
            parts.steward,
            settings=parts.lanes,
            clock=self.world.clock,
            meter=parts.meter,
            outages=parts.outages,
            solitude=parts.solitude,
        )
