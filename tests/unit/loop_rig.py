"""One job's loop over Kafka in memory, with position rows in memory and work that a test decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial

from consumers.batch import Batch, Outcome
from consumers.caution import Solitude
from consumers.failure import RetryPolicy
from consumers.flood import Floods
from consumers.host import LaneSettings
from consumers.intents import Intent, Intents
from consumers.loop import ConsumerLoop
from consumers.meter import Meter
from consumers.outages import Outages, Probe
from consumers.pipeline import Pipeline
from consumers.positions import Position, Positions
from consumers.presence import Presence, State, Told
from consumers.steward import Steward
from consumers.watch import Watch
from dlq.corrections import Correction
from dlq.parking import OrderKey
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import StaleOwner
from tidegate_kernel.event import LIVE, Fence, JobCode, JobId, TopicPartition
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Connections
from tidegate_kernel.source import RecordSource

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
DEADLINE_SECONDS = 10.0
SOON = RetryPolicy(first_delay=timedelta(milliseconds=1), longest_delay=timedelta(milliseconds=2))
NEVER = RetryPolicy(first_delay=timedelta(hours=1), longest_delay=timedelta(hours=1))


class Rows(Positions):
    """The rows of `tidegate.position`, without a database; shared by all loops of a test."""

    def __init__(self) -> None:
        self.rows: dict[TopicPartition, Position] = {}
        self.released: set[TopicPartition] = set()
        self.decided: dict[TopicPartition, dict[int, Correction]] = {}

    async def begin(self, starts: Mapping[TopicPartition, Position]) -> None:
        for partition, start in starts.items():
            self.rows.setdefault(partition, start)

    async def take_over(self, partition: TopicPartition) -> Position | None:
        row = self.rows.get(partition)
        if row is not None:
            self.rows[partition] = replace(row, epoch=row.epoch + 1)
        return self.rows.get(partition)

    async def corrections(self, partition: TopicPartition, position: Position) -> Mapping[int, Correction]:
        decided = self.decided.get(partition, {})
        return {offset: correction for offset, correction in decided.items() if offset >= position.next_offset}

    async def read(self, partition: TopicPartition) -> Position | None:
        return self.rows.get(partition)

    async def all(self) -> dict[TopicPartition, Position]:
        return dict(self.rows)

    async def release(self, held: Mapping[TopicPartition, Position], attempting: Collection[TopicPartition]) -> None:
        self.released |= held.keys()

    def fence(self, partition: TopicPartition, position: Position) -> Fence:
        return Fence(JobId(1), LIVE, *partition, position.epoch, position.next_offset)

    def settle(self, batch: Batch) -> None:
        """As the fenced UPDATE. Raises StaleOwner."""
        partition = TopicPartition(batch.fence.topic, batch.fence.partition)
        row = self.rows[partition]
        if (row.epoch, row.next_offset) != (batch.fence.epoch, batch.fence.next_offset):
            raise StaleOwner("another owner")
        self.rows[partition] = replace(row, next_offset=batch.next_offset)


class Work(Pipeline):
    """Settles every batch unless `trouble` says otherwise; `calls` are the offsets of each batch, by partition."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.calls: list[tuple[int, list[int]]] = []
        self.trouble: Callable[[Batch], Awaitable[None]] = no_trouble
        self.news = asyncio.Event()

    async def handle(self, batch: Batch) -> Outcome:
        self.calls.append((batch.fence.partition, [record.offset for record in batch.records]))
        self.news.set()
        await self.trouble(batch)
        self._rows.settle(batch)
        self.news.set()
        return Outcome(applied=len(batch.records))


class Wishes(Intents):
    """What a test wants of the job."""

    def __init__(self) -> None:
        super().__init__(None, SystemClock(), job=JobId(1))  # type: ignore[arg-type]  # no database is asked
        self.stand: list[Intent] = []

    async def read(self) -> None:
        self._read = [(intent, None) for intent in self.stand]


class Voice(Presence):
    """What the job says of its partitions, newest last."""

    def __init__(self) -> None:
        self.said: list[tuple[TopicPartition, State]] = []

    async def tell(self, told: Mapping[TopicPartition, Told], now: float) -> None:
        self.said += [(partition, each.state) for partition, each in told.items()]


class Quiet(Floods):
    """Never too many dead letters."""

    def __init__(self) -> None:
        return None

    async def note(self, batch: Batch, outcome: Outcome) -> bool:
        return False


async def no_trouble(_: Batch) -> None:
    return None


class Rig:
    """One job's rows and broker, and loops on them."""

    def __init__(self) -> None:
        self.broker, self.rows, self.metrics = MemoryBroker(), Rows(), Metrics()
        self.broker.create_topic("t", 2)
        self.work = Work(self.rows)
        self.probes: dict[str, Probe] = {}
        self.wishes, self.voice = Wishes(), Voice()
        self.connections = Connections()
        self.room = True

    async def has_room(self, _: OrderKey) -> bool:
        return self.room

    def loop(
        self, *, lanes: int = 1, retry: RetryPolicy = SOON, drain_seconds: float = 5, metrics: Metrics | None = None
    ) -> ConsumerLoop:
        settings = LaneSettings(lanes=lanes, batch_size=10, drain_timeout=timedelta(seconds=drain_seconds), retry=retry)
        clock = SystemClock()
        outages = Outages("job", self.probes, clock=clock, metrics=self.metrics, connections=self.connections)
        return ConsumerLoop(
            partial(self.broker.join, "g", ["t"]),
            self.work,
            Steward(self.rows),
            settings=settings,
            clock=clock,
            meter=Meter(JobCode("job"), metrics or self.metrics, clock),
            outages=outages,
            solitude=Solitude(),
            floods=Quiet(),
            watch=Watch(self.wishes, self.voice, self.work, clock, at_work=lambda _: None, has_room=self.has_room),
        )

    def fill(self, partition: TopicPartition, count: int) -> None:
        for _ in range(count):
            self.broker.put(partition, b"x")

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():
                self.work.news.clear()
                try:
                    async with asyncio.timeout(0.02):  # not everything a test waits for is the work's news
                        await self.work.news.wait()
                except TimeoutError:
                    continue

    async def stands_at(self, partition: TopicPartition, offset: int) -> None:
        await self.until(lambda: partition in self.rows.rows and self.rows.rows[partition].next_offset == offset)


@asynccontextmanager
async def running(loop: ConsumerLoop) -> AsyncIterator[RecordSource]:
    """Yields the loop's source once it owns something; stops it gracefully afterwards."""
    task = asyncio.create_task(loop.run())
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not loop.holdings.owned:
            await asyncio.sleep(0)
    assert loop.source is not None
    try:
        yield loop.source
    finally:
        loop.stop()
        await task
