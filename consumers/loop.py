"""A job's life on Kafka: join the group, own partitions, take batches to their end, leave.

What the group gives us is taken (`Taking`): the position's row gets a new epoch before the first fetch. Lanes work side
by side (`Lane`), each on its own share of the owned partitions, and hand their batches to the job's pipeline. What has
settled is told to the group (`Commits`). Beside them run the looks at what may be in the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import structlog

from consumers.batch import Batch, Outcome
from consumers.caution import Solitude
from consumers.commits import Commits
from consumers.flood import Floods
from consumers.host import LaneSettings
from consumers.lags import lags_of
from consumers.lane import Lane
from consumers.meter import Meter
from consumers.outages import Outages
from consumers.ownership import Holding, Holdings
from consumers.pipeline import Pipeline
from consumers.recreation import watch_topics
from consumers.steward import Steward
from consumers.taking import Taking
from consumers.watch import Watch
from consumers.watchdog import Watchdog, watch_client
from tidegate_kernel import logs
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.source import Assigned, ClientDied, RecordSource, Revoked

Join = Callable[[Assigned, Revoked], AbstractAsyncContextManager[RecordSource]]
"""Joins the job's group on its topics; the two listeners are called by the client."""

_log = structlog.get_logger(__name__)

# A cancellation can be lost: `asyncio.wait_for` of Python 3.11 returns instead where the answer comes in the same tick.
_CANCELLATIONS = 5
_BETWEEN_CANCELLATIONS_SECONDS = 1.0


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
        self._taking = Taking(steward, watch, self)
        self._commits = Commits(clock, self.note_trouble)
        self._stopping = asyncio.Event()
        self._died: ClientDied | None = None
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
        """Returns after `stop`, with finished work settled and the group left. Raises what ended the loop early.

        A client that died (ClientDied) ends it as gently as `stop`.
        """
        async with self._join(self._note_assigned, self._drain) as source:
            self.source = source
            self.has_joined = True
            self._note_assigned(source.assignment())
            self.meter.watch(lambda: lags_of(self.holdings, source, self.clock.now(), self.meter.unseen))
            try:
                await self._run_joined(source)
            finally:
                self.meter.unwatch()
                self.source = None

    async def _run_joined(self, source: RecordSource) -> None:
        async with asyncio.TaskGroup() as tasks:
            upkeep = [
                tasks.create_task(self._taking.run(source), name="ownership"),
                tasks.create_task(self._commits.run(source, self.holdings), name="commits"),
                tasks.create_task(
                    watch_topics(source, self.holdings, self.clock, self.note_trouble, job=self._steward.job),
                    name="topic-watch",
                ),
                tasks.create_task(self._outages.watch(source, self.holdings), name="breakers"),
                tasks.create_task(
                    Watchdog(source, self.holdings, self.clock, self.note_trouble).watch(), name="watchdog"
                ),
                tasks.create_task(watch_client(source, self.clock, self.note_trouble), name="client-watch"),
                tasks.create_task(self._watch.run(self), name="intents"),
            ]
            self._running = self._lanes(source)
            lanes = [tasks.create_task(lane.run(), name=f"lane-{lane.number}") for lane in self._running]
            await self._until_stopped([*upkeep, *lanes])
            await self._finish(lanes)
            await _end(upkeep)
        if self._died is None:
            await self._commits.tell(source, self.holdings.settled())
        await self._steward.release(self.holdings.all())
        await self._watch.leave()
        if self._died is not None:
            raise self._died

    async def _until_stopped(self, running: Sequence[asyncio.Task[None]]) -> None:
        """Raises RuntimeError if one of `running` ends before: a TaskGroup says nothing of one that is cancelled."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([stopping, *running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        if not self._stopping.is_set():
            raise RuntimeError(f"{' and '.join(task.get_name() for task in running if task.done())} ended by itself")

    async def _finish(self, lanes: Sequence[asyncio.Task[None]]) -> None:
        """Batches in hand are settled within the drain time-out, or cut off and left for redelivery."""
        _, unfinished = await asyncio.wait(lanes, timeout=self.settings.drain_timeout.total_seconds())
        for lane in unfinished:
            lane.cancel()

    def _note_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._taking.note_assigned(partitions)
        if self.source is not None:
            # Nothing may be fetched before the position's row is ours and says where to begin.
            self.source.pause(partitions)

    async def _drain(self, revoked: frozenset[TopicPartition]) -> None:
        """Work in flight on `revoked` is settled or given up within the drain time-out, and its offsets are told."""
        self._taking.note_revoked(revoked)
        dropped = self.holdings.drop(revoked)
        try:
            async with asyncio.timeout(self.settings.drain_timeout.total_seconds()):
                for held in dropped:
                    await held.idle.wait()
        except TimeoutError:
            _log.warning(logs.DRAIN_TIMED_OUT, partitions=[str(p) for p in sorted(revoked)])
            for held in dropped:
                held.cut_off()
        if self.source is not None and dropped:
            await self._commits.tell(self.source, {held.partition: held.position.next_offset for held in dropped})
            await self._steward.release(dropped)
        self._commits.forget(revoked)

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

    def note_taken(self) -> None:
        self.meter.taken()

    def note_trouble(self, error: Transient) -> None:
        if not isinstance(error, ClientDied):
            self._outages.suspect(error)
        elif not self._stopping.is_set():
            # No outage: nothing comes back by waiting. What is in hand can settle, then a new client is needed.
            self._died = error
            self._stopping.set()

    def note_lost(self, partition: TopicPartition, *, is_assigned: bool) -> None:
        self._taking.note_lost(partition, is_assigned=is_assigned)

    # What the taking asks.

    async def let_go(self, partition: TopicPartition) -> None:
        for lane in self._running:
            await lane.let_go(partition)

    # What the watch asks and tells.

    async def moved(self) -> Sequence[Holding]:
        epochs = await self._steward.epochs()
        return [
            held
            for held in self.holdings.all()
            # Greater: the rows may have been read before a takeover of ours.
            if epochs.get(held.partition, held.position.epoch) > held.position.epoch
        ]

    def being_taken(self) -> Mapping[TopicPartition, str]:
        return self._taking.missing()

    async def give_up(self, held: Holding) -> None:
        await self._running[held.lane].give_up(held)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    """The tasks, each of which goes on until it is cancelled, have ended."""
    left = set(tasks)
    for _ in range(_CANCELLATIONS):
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(tasks, timeout=_BETWEEN_CANCELLATIONS_SECONDS)
        if not left:
            return
