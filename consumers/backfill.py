"""A backfill reads a fixed range of offsets through the job's own pipeline, beside the live group.

Ends are captured at the start; what is produced later is the live consumer's. Progress stands in positions of the
backfill's own run, so that after a crash it resumes where its last batch settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

import structlog

from consumers.backfill_lease import LEASE_SECONDS, BackfillLease
from consumers.batch import Batch, Outcome
from consumers.caution import Solitude
from consumers.host import LaneSettings
from consumers.lane import Lane
from consumers.meter import Meter
from consumers.outages import Outages
from consumers.ownership import Hold, Holdings
from consumers.pipeline import Pipeline
from consumers.positions import Position
from consumers.steward import Steward, Survey
from consumers.watchdog import watch_client
from tidegate_kernel import logs
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import LeaseLost, Misconfigured, StaleOwner, Transient
from tidegate_kernel.event import RunId, TopicPartition
from tidegate_kernel.source import ClientDied, RecordSource

_log = structlog.get_logger(__name__)

_LOOK_SECONDS = 0.1


class Progress(NamedTuple):
    """Offsets passed and offsets in the whole range."""

    done: int
    total: int


class Backfill:
    """One process's work on one backfill. Use once."""

    def __init__(
        self,
        source: RecordSource,
        pipeline: Pipeline,
        steward: Steward,
        *,
        settings: LaneSettings,
        clock: Clock,
        meter: Meter,
        outages: Outages,
        solitude: Solitude,
    ) -> None:
        self._outages, self.solitude = outages, solitude
        self._source, self._pipeline, self._steward = source, pipeline, steward
        self.settings, self.clock, self.meter = settings, clock, meter
        self._holdings = Holdings(settings.lanes)
        self._starts: dict[TopicPartition, int] = {}
        self._stopping = asyncio.Event()
        self._lost: TopicPartition | None = None
        self._died: ClientDied | None = None

    # What lanes ask and tell their host, beside settings, clock and meter.

    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    async def note_settled(self, batch: Batch, outcome: Outcome) -> None:
        """Whoever started it sees its dead letters counted, and can end it."""

    def note_trouble(self, error: Transient) -> None:
        if not isinstance(error, ClientDied):
            self._outages.suspect(error)
        elif not self._stopping.is_set():
            self._died = error
            self._stopping.set()

    def note_lost(self, partition: TopicPartition, *, is_assigned: bool) -> None:  # noqa: ARG002  # no group here
        """Another process works on this backfill: this one has to end."""
        self._lost = partition
        self._stopping.set()

    # The work.

    def stop(self) -> None:
        """Asks it to end after the batches in hand; it can be resumed. Idempotent."""
        self._stopping.set()

    def progress(self) -> Progress:
        """How far it is now."""
        held = self._holdings.all()
        ends = {h.partition: h.position.end_offset or 0 for h in held}
        done = sum(
            (ends[h.partition] if h.is_finished else h.position.next_offset) - self._starts[h.partition] for h in held
        )
        return Progress(done, sum(ends.get(p, start) - start for p, start in self._starts.items()))

    async def run(self, positions: Mapping[TopicPartition, Position], lease: BackfillLease, run: RunId) -> bool:
        """Reads every partition to its end; whether it got there (False after `stop`).

        Raises LeaseLost or StaleOwner if another process took it, Misconfigured for a partition that cannot be read on,
        ClientDied where it can be read on with a new client.
        """
        self._starts = {partition: position.next_offset for partition, position in positions.items()}
        survey = await self._steward.survey(self._source, sorted(positions))
        for partition in positions:
            await self._take(partition, survey)
        lanes = [
            Lane(number, self._source, self._pipeline, self._steward, holdings=self._holdings, host=self)
            for number in range(self.settings.lanes)
        ]
        try:
            async with asyncio.TaskGroup() as tasks:
                upkeep = [
                    tasks.create_task(self._keep_lease(lease, run), name="backfill-lease"),
                    tasks.create_task(self._outages.watch(self._source, self._holdings), name="breakers"),
                    tasks.create_task(watch_client(self._source, self.clock, self.note_trouble), name="client-watch"),
                ]
                for lane in lanes:
                    tasks.create_task(lane.run(), name=f"lane-{lane.number}")
                await self._until_done_or_stopped()
                self._stopping.set()
                for task in upkeep:
                    task.cancel()
        except ExceptionGroup as group:
            raise group.exceptions[0] from group  # whoever failed first ended the others
        await self._steward.release(self._holdings.all())
        self._raise_if_lost()
        if self._died is not None and not self._is_done():
            raise self._died
        return self._is_done()

    async def _take(self, partition: TopicPartition, survey: Survey) -> None:
        position = await self._steward.take(partition, survey)
        held = self._holdings.add(partition, position, await self._steward.corrections(partition, position))
        held.suspect_next(self.settings.batch_size)
        if (obstacle := survey.obstacle(partition, position)) is not None:
            held.block(obstacle, self._source)
        held.is_finished = position.end_offset is not None and position.next_offset >= position.end_offset
        if not held.is_finished:
            self._source.seek(partition, position.next_offset)

    async def _until_done_or_stopped(self) -> None:
        while not self._stopping.is_set() and not self._is_done():
            self._raise_if_blocked()
            await self.clock.sleep(_LOOK_SECONDS)

    def _is_done(self) -> bool:
        return all(held.is_finished for held in self._holdings.all())

    def _raise_if_blocked(self) -> None:
        for held in self._holdings.all():
            if (why := held.blocked or held.holds.get(Hold.PARKING)) is not None:
                where = f"{held.partition}@{held.position.next_offset}"
                raise Misconfigured(f"backfill stopped at {where}: {why}")

    def _raise_if_lost(self) -> None:
        if self._lost is not None:
            raise StaleOwner(f"{self._lost}: another process works on this backfill")

    async def _keep_lease(self, lease: BackfillLease, run: RunId) -> None:
        """Renews at a third of the lease; without a renewal the work stops before the lease can be another's."""
        renewed = self.clock.monotonic()
        while True:
            await self.clock.sleep(LEASE_SECONDS / 3)
            try:
                await lease.renew(run)
                renewed = self.clock.monotonic()
            except Transient as error:
                _log.warning(logs.LEASE_RENEWAL_FAILED, run=run, error=str(error))
                if self.clock.monotonic() - renewed > LEASE_SECONDS * 0.8:
                    raise LeaseLost(f"backfill {run}: its lease could not be renewed in time") from error
