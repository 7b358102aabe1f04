"""A job's life on Kafka: join the group, own partitions, take batches to their end, leave.

Lanes work side by side, each on its own share of the owned partitions. The group's listener only notes what changed
(the client swallows what it raises); ownership is taken by the steward, who writes the position's new epoch before the
first fetch of a partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import structlog

from consumers.batch import Batch, Outcome
from consumers.caution import Solitude
from consumers.flood import Floods
from consumers.host import LaneSettings
from consumers.lane import Lane
from consumers.meter import Meter
from consumers.outages import Outages
from consumers.ownership import Holding, Holdings
from consumers.pipeline import Pipeline
from consumers.recreation import watch_topics
from consumers.steward import Steward, Survey
from consumers.watch import Watch
from consumers.watchdog import Watchdog
from tidegate_kernel import logs
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.source import Assigned, NotAssigned, RecordSource, Revoked

Join = Callable[[Assigned, Revoked], AbstractAsyncContextManager[RecordSource]]
"""Joins the job's group on its topics; the two listeners are called by the client."""

_log = structlog.get_logger(__name__)

# The group's offsets are only a hint to tools and to a cold start; a commit a second costs nothing.
_COMMIT_EVERY_SECONDS = 1.0
_TAKEOVER_AGAIN_SECONDS = 1.0


class ConsumerLoop:
    """Runs one job's live consumer until it is asked to stop. Use once."""

    def __init__(
        self,
        join: Join,
        pipeline: Pipeline,
        steward: Steward,
        *,
        settings: LaneSettings,
        clock: Clock,
        meter: Meter,
        outages: Outages,
        watch: Watch,
        solitude: Solitude,
        floods: Floods,
    ) -> None:
        self.solitude, self._floods = solitude, floods
        self._outages, self._watch = outages, watch
        self._join, self._pipeline, self._steward = join, pipeline, steward
        self.settings, self.clock, self.meter = settings, clock, meter
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._committed: dict[TopicPartition, int] = {}
        self._takeover_trouble = ""
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._running: list[Lane] = []
        self._started = clock.monotonic()
        self.holdings = Holdings(settings.lanes)
        self.source: RecordSource | None = None
        self.has_joined = False

    @property
    def last_beat(self) -> float:
        """Monotonic time at which the slowest lane last came round."""
        return min((lane.last_beat for lane in self._running), default=self._started)

    def stop(self) -> None:
        """Asks the loop to finish what is in hand and end. Idempotent."""
        self._stopping.set()

    async def run(self) -> None:
        """Returns after `stop`, with finished work settled and the group left. Raises what ended the loop early."""
        async with self._join(self._note_assigned, self._drain) as source:
            self.source = source
            self.has_joined = True
            self._note_assigned(source.assignment())
            self.meter.watch(lambda: self.holdings.lags(source, self.clock.now()))
            try:
                await self._run_joined(source)
            finally:
                self.meter.unwatch()
                self.source = None

    async def _run_joined(self, source: RecordSource) -> None:
        async with asyncio.TaskGroup() as tasks:
            upkeep = [
                tasks.create_task(self._keep_ownership(source), name="ownership"),
                tasks.create_task(self._keep_committing(source), name="commits"),
                tasks.create_task(
                    watch_topics(source, self.holdings, self.clock, self.note_trouble, job=self._steward.job),
                    name="topic-watch",
                ),
                tasks.create_task(self._outages.watch(source, self.holdings), name="breakers"),
                tasks.create_task(Watchdog(source, self.holdings, self.clock).watch(), name="watchdog"),
                tasks.create_task(self._watch.run(self), name="intents"),
            ]
            self._running = self._lanes(source)
            lanes = [tasks.create_task(lane.run(), name=f"lane-{lane.number}") for lane in self._running]
            await self._stopping.wait()
            await self._finish(lanes)
            for task in upkeep:
                task.cancel()
        await self._commit(source, self.holdings.settled())
        await self._steward.release(self.holdings.all())
        await self._watch.leave()

    def _lanes(self, source: RecordSource) -> list[Lane]:
        return [
            Lane(number, source, self._pipeline, self._steward, holdings=self.holdings, host=self)
            for number in range(self.settings.lanes)
        ]

    # What lanes ask and tell their host, beside settings, clock and meter.

    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    async def note_settled(self, batch: Batch, outcome: Outcome) -> None:
        if await self._floods.note(batch, outcome) and self.source is not None:
            await self._watch.learn()
            for held in self.holdings.all():
                self._watch.obey(held, self.source)

    def note_trouble(self, error: Transient) -> None:
        self._outages.suspect(error)

    def note_lost(self, partition: TopicPartition, *, is_assigned: bool) -> None:
        """A lane found another owner. Where the group still says it is ours, it is taken over again, with a pause."""
        if not is_assigned:
            self._assigned -= {partition}
        self._changed.set()

    # What the watch asks and tells.

    async def moved(self) -> Sequence[Holding]:
        epochs = await self._steward.epochs()
        return [
            held
            for held in self.holdings.all()
            # Greater: the rows may have been read before a takeover of ours.
            if epochs.get(held.partition, held.position.epoch) > held.position.epoch
        ]

    async def give_up(self, held: Holding) -> None:
        await self._running[held.lane].give_up(held)

    # Ownership.

    def being_taken(self) -> Mapping[TopicPartition, str]:
        """What the group gave us and is not ours yet, with what went wrong in the last round."""
        return dict.fromkeys(self._assigned - self.holdings.owned, self._takeover_trouble)

    def _note_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._assigned = partitions
        if self.source is not None:
            # Nothing may be fetched before the position's row is ours and says where to begin.
            self.source.pause(partitions)
        self._changed.set()

    async def _drain(self, revoked: frozenset[TopicPartition]) -> None:
        """Work in flight on `revoked` is settled or given up within the drain time-out, and its offsets are told."""
        self._assigned -= revoked
        dropped = self.holdings.drop(revoked)
        try:
            async with asyncio.timeout(self.settings.drain_timeout.total_seconds()):
                for held in dropped:
                    await held.idle.wait()
        except TimeoutError:
            _log.warning(logs.DRAIN_TIMED_OUT, partitions=[f"{p.topic}:{p.partition}" for p in sorted(revoked)])
        if self.source is not None and dropped:
            await self._commit(self.source, {held.partition: held.position.next_offset for held in dropped})
            await self._steward.release(dropped)
        for partition in revoked:
            self._committed.pop(partition, None)

    async def _keep_ownership(self, source: RecordSource) -> None:
        while True:
            self._changed.clear()
            if missing := sorted(self._assigned - self.holdings.owned):
                await self._take_all(source, missing)
            all_taken = self._assigned <= self.holdings.owned
            await self._wait_for_change(None if all_taken else _TAKEOVER_AGAIN_SECONDS)

    async def _take_all(self, source: RecordSource, partitions: Sequence[TopicPartition]) -> None:
        try:
            survey = await self._steward.survey(source, partitions)
            # Before the first fetch: a paused job must not handle a batch after each rebalance or restart.
            await self._watch.learn()
            for partition in partitions:
                await self._take(source, partition, survey)
            self._takeover_trouble = ""
        except Transient as error:
            self._takeover_trouble = str(error)
            _log.warning(logs.TAKEOVER_FAILED, error=str(error))
            self.note_trouble(error)

    async def _take(self, source: RecordSource, partition: TopicPartition, survey: Survey) -> None:
        for lane in self._running:
            await lane.let_go(partition)
        position = await self._steward.take(partition, survey)
        obstacle = survey.obstacle(partition, position)
        if obstacle is not None:
            # Perhaps the former owner settled what was written after the first look, while we waited for its row.
            obstacle = (await self._steward.survey(source, [partition])).obstacle(partition, position)
        if partition not in self._assigned:
            return  # revoked meanwhile: whoever owns it now raises the epoch after us
        source.seek(partition, position.next_offset)
        held = self.holdings.add(partition, position)
        self._watch.obey(held, source)
        topic, number = partition
        held.suspect_next(self.settings.batch_size)
        if obstacle is not None:
            held.block(obstacle, source)
            return
        held.read_on(source)
        _log.info(logs.PARTITION_OWNED, topic=topic, partition=number, offset=position.next_offset)

    async def _wait_for_change(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    # Commits and the end.

    async def _keep_committing(self, source: RecordSource) -> None:
        while True:
            await self.clock.sleep(_COMMIT_EVERY_SECONDS)
            await self._commit(source, self.holdings.settled())

    async def _commit(self, source: RecordSource, settled: Mapping[TopicPartition, int]) -> None:
        """Tells the group where it would resume. Only a hint: a failure is noted, the next round repeats it."""
        news = {p: offset for p, offset in settled.items() if self._committed.get(p) != offset}
        try:
            await source.commit(news)
            self._committed.update(news)
        except (Transient, NotAssigned) as error:
            offsets = {f"{p.topic}:{p.partition}": offset for p, offset in news.items()}
            _log.warning(logs.COMMIT_FAILED, offsets=offsets, error=str(error))
            self.note_trouble(error)

    async def _finish(self, lanes: Sequence[asyncio.Task[None]]) -> None:
        """Batches in hand are settled within the drain time-out, or cut off and left for redelivery."""
        _, unfinished = await asyncio.wait(lanes, timeout=self.settings.drain_timeout.total_seconds())
        for lane in unfinished:
            lane.cancel()
