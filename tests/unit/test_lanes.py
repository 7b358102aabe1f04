"""Lanes and ownership over Kafka in memory: what waits, what goes on, what a revoke leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest

from consumers.batch import Batch, Outcome
from consumers.caution import Solitude
from consumers.failure import RetryPolicy
from consumers.flood import Floods
from consumers.intents import Intent, Intents
from consumers.lane import LaneSettings
from consumers.loop import ConsumerLoop
from consumers.meter import Meter
from consumers.outages import Outages, Probe
from consumers.pipeline import Pipeline
from consumers.positions import Position, Positions
from consumers.presence import Presence, State, Told
from consumers.steward import Steward
from consumers.watch import Watch
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import StaleOwner, Transient
from tidegate_kernel.event import LIVE, Fence, JobCode, JobId, Record, TopicPartition
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Connections
from tidegate_kernel.source import RecordSource

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
_DEADLINE_SECONDS = 10.0
_SOON = RetryPolicy(first_delay=timedelta(milliseconds=1), longest_delay=timedelta(milliseconds=2))
_NEVER = RetryPolicy(first_delay=timedelta(hours=1), longest_delay=timedelta(hours=1))


class Rows(Positions):
    """The rows of `tidegate.position`, without a database; shared by all loops of a test."""

    def __init__(self) -> None:
        self.rows: dict[TopicPartition, Position] = {}
        self.released: set[TopicPartition] = set()

    async def begin(self, starts: Mapping[TopicPartition, Position]) -> None:
        for partition, start in starts.items():
            self.rows.setdefault(partition, start)

    async def take_over(self, partition: TopicPartition) -> Position | None:
        row = self.rows.get(partition)
        if row is not None:
            self.rows[partition] = replace(row, epoch=row.epoch + 1)
        return self.rows.get(partition)

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
        self.trouble: Callable[[Batch], Awaitable[None]] = _no_trouble
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


async def _no_trouble(_: Batch) -> None:
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

    def loop(
        self, *, lanes: int = 1, retry: RetryPolicy = _SOON, drain_seconds: float = 5, metrics: Metrics | None = None
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
            watch=Watch(self.wishes, self.voice, self.work, clock, at_work=lambda _: None),
        )

    def fill(self, partition: TopicPartition, count: int) -> None:
        for _ in range(count):
            self.broker.put(partition, b"x")

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while not condition():
                self.work.news.clear()
                try:
                    async with asyncio.timeout(0.02):  # not everything a test waits for is the work's news
                        await self.work.news.wait()
                except TimeoutError:
                    continue

    async def stands_at(self, partition: TopicPartition, offset: int) -> None:
        await self.until(lambda: partition in self.rows.rows and self.rows.rows[partition].next_offset == offset)


@pytest.fixture
def rig() -> Rig:
    return Rig()


@asynccontextmanager
async def running(loop: ConsumerLoop) -> AsyncIterator[RecordSource]:
    """Yields the loop's source once it owns something; stops it gracefully afterwards."""
    task = asyncio.create_task(loop.run())
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while not loop.holdings.owned:
            await asyncio.sleep(0)
    assert loop.source is not None
    try:
        yield loop.source
    finally:
        loop.stop()
        await task


async def test_a_batch_held_back_does_not_stop_the_other_partitions_of_its_lane(rig: Rig) -> None:
    """An event that waits for its dependency must not make everything else late."""

    async def p0_is_away(batch: Batch) -> None:
        if batch.fence.partition == 0:
            raise Transient("away")

    rig.work.trouble = p0_is_away
    rig.fill(P0, 1)
    rig.fill(P1, 1)
    async with running(rig.loop(lanes=1, retry=_NEVER)):
        await rig.stands_at(P1, 1)
        rig.fill(P1, 2)
        await rig.stands_at(P1, 3)
        rig.fill(P0, 5)  # what comes behind the batch that waits is not fetched past it
        await rig.stands_at(P0, 0)

    assert [call for call in rig.work.calls if call[0] == 0] == [(0, [0])]


async def test_a_batch_held_back_is_tried_again_whole_and_its_partition_goes_on(rig: Rig) -> None:
    """The same batch, with what is remembered of its attempts, then the records behind it."""
    tries: list[int] = []

    async def away_twice(batch: Batch) -> None:
        tries.append(batch.attempts.tries)
        if len(tries) < 3:
            raise Transient("away")

    rig.work.trouble = away_twice
    rig.fill(P0, 2)
    async with running(rig.loop()):
        await rig.stands_at(P0, 2)
        rig.fill(P0, 1)
        await rig.stands_at(P0, 3)

    assert tries == [0, 1, 2, 0]
    assert rig.work.calls == [(0, [0, 1])] * 3 + [(0, [2])]


async def test_redelivery_below_the_position_never_reaches_the_road(rig: Rig) -> None:
    """A rebalance or a client failure brings records again: one comparison drops them, without a statement."""
    rig.fill(P0, 5)
    async with running(rig.loop()) as source:
        await rig.stands_at(P0, 5)
        calls = len(rig.work.calls)

        source.seek(P0, 0)
        await rig.until(lambda: source.drained_to(P0) == 5)
        source.seek(P0, 3)
        rig.fill(P0, 1)
        await rig.stands_at(P0, 6)

    assert rig.work.calls[calls:] == [(0, [5])]


async def test_a_revoke_waits_for_the_batch_in_flight_and_tells_its_offset(rig: Rig) -> None:
    """What ends within the drain window is settled here and not redelivered to the next owner (Case 14)."""
    started, finish = asyncio.Event(), asyncio.Event()

    async def slow(batch: Batch) -> None:
        started.set()
        await finish.wait()

    rig.work.trouble = slow
    rig.fill(P0, 3)
    async with running(rig.loop()):
        await started.wait()
        rebalance = asyncio.create_task(rig.broker.group("g").rebalance())
        await asyncio.sleep(0)
        assert not rebalance.done()
        finish.set()
        await rebalance

        assert rig.broker.group("g").committed == {P0: 3, P1: 0}
        await rig.until(lambda: rig.rows.rows[P0].epoch == 2)
        rig.fill(P0, 1)
        await rig.stands_at(P0, 4)

    assert rig.work.calls == [(0, [0, 1, 2]), (0, [3])]


async def test_a_hanging_batch_holds_a_revoke_no_longer_than_the_drain_timeout(rig: Rig) -> None:
    """Case 16: the group goes on, and what the hanging batch does later changes nothing."""
    started, finish = asyncio.Event(), asyncio.Event()

    async def hangs_once(batch: Batch) -> None:
        if not started.is_set():
            started.set()
            await finish.wait()

    rig.work.trouble = hangs_once
    rig.fill(P0, 1)
    async with running(rig.loop(lanes=2, drain_seconds=0.05)):
        await started.wait()
        async with asyncio.timeout(_DEADLINE_SECONDS):
            await rig.broker.group("g").rebalance()
        await rig.until(lambda: rig.rows.rows[P0].epoch == 2)
        finish.set()
        await rig.stands_at(P0, 1)
        rig.fill(P0, 1)

        await rig.stands_at(P0, 2)


@pytest.mark.parametrize("ending", [StaleOwner("another owner"), Transient("connection ended")])
async def test_the_work_of_an_earlier_ownership_does_not_pause_the_next_one(rig: Rig, ending: Exception) -> None:
    """Case 8: revoked and given back while a batch hung, then its failure: the partition must still be fetched."""
    started, finish, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hangs_once(batch: Batch) -> None:
        if not started.is_set():
            started.set()
            await finish.wait()
            ended.set()
            raise ending

    rig.work.trouble = hangs_once
    rig.fill(P0, 1)
    async with running(rig.loop(lanes=1, drain_seconds=0.05)):
        await started.wait()
        await rig.broker.group("g").rebalance()
        await rig.until(lambda: rig.rows.rows[P0].epoch == 2)
        finish.set()
        await ended.wait()
        rig.fill(P0, 1)

        await rig.stands_at(P0, 2)

    assert sum(len(offsets) for _, offsets in rig.work.calls[1:]) == 2
    assert rig.rows.rows[P0].epoch == 2  # nor does it take the partition from it


async def test_an_answer_that_was_lost_is_read_from_the_row(rig: Rig) -> None:
    """A commit that Postgres did but could not tell: handling the batch again would be a repeat for nothing."""

    async def settles_and_says_no(batch: Batch) -> None:
        rig.work.trouble = _no_trouble
        rig.rows.settle(batch)

    rig.work.trouble = settles_and_says_no
    rig.fill(P0, 2)
    async with running(rig.loop()):
        await rig.stands_at(P0, 2)
        rig.fill(P0, 1)
        await rig.stands_at(P0, 3)

    assert rig.work.calls == [(0, [0, 1]), (0, [2])]


async def test_a_partition_that_another_took_over_is_taken_back_only_with_kafkas_word(rig: Rig) -> None:
    """Two owners would push each other out for ever; the group's generation decides who is right."""
    rig.fill(P0, 1)
    async with running(rig.loop()):
        await rig.stands_at(P0, 1)
        await rig.rows.take_over(P0)  # a zombie, just before it was stopped
        rig.fill(P0, 1)

        await rig.stands_at(P0, 2)

    assert rig.rows.rows[P0].epoch == 3


async def test_a_zombie_drops_the_partition_that_the_group_gave_to_another(rig: Rig) -> None:
    """G9: its client still believes in the assignment; the refused commit tells it the truth."""
    zombie = rig.loop()
    rig.fill(P0, 1)
    async with running(zombie) as source:
        await rig.stands_at(P0, 1)
        rig.broker.group("g").members.clear()  # the coordinator gave it up, and nobody told it
        await rig.rows.take_over(P0)
        rig.fill(P0, 1)
        await rig.until(lambda: P0 not in zombie.holdings.owned)

        assert P0 in source.assignment()
        assert rig.rows.rows[P0].epoch == 2
        assert rig.rows.rows[P0].next_offset == 1


async def test_kafka_being_away_at_the_wrong_moment_does_not_orphan_a_partition(rig: Rig) -> None:
    """Case 8: dropped on a commit that nobody answered, it would be assigned to us and read by no one."""
    rig.fill(P0, 1)
    async with running(rig.loop()):
        await rig.stands_at(P0, 1)

        async def away(batch: Batch) -> None:
            rig.work.trouble = _no_trouble
            await rig.rows.take_over(P0)
            rig.broker.is_down = True
            asyncio.get_running_loop().call_later(0.1, _come_back, rig.broker)

        rig.work.trouble = away
        rig.fill(P0, 1)

        await rig.stands_at(P0, 2)


def _come_back(broker: MemoryBroker) -> None:
    broker.is_down = False


async def test_a_revoked_partition_has_no_lag_series(rig: Rig) -> None:
    """Case 103: a partition that another process works on must not look stuck here."""
    rig.fill(P0, 1)
    async with running(rig.loop()) as source:
        await rig.stands_at(P0, 1)
        await rig.until(lambda: lag_partitions(rig) == {"0", "1"})
        async with running(rig.loop(metrics=Metrics())):
            await rig.until(lambda: len(source.assignment()) == 1)
            (kept,) = source.assignment()

            await rig.until(lambda: lag_partitions(rig) == {str(kept.partition)})
    assert lag_partitions(rig) == set()


def lag_partitions(rig: Rig) -> set[str]:
    (family,) = (f for f in rig.metrics.registry.collect() if f.name == "tidegate_records_behind")
    return {sample.labels["partition"] for sample in family.samples}


async def test_a_re_created_topic_blocks_its_partitions(rig: Rig) -> None:
    """Its offsets mean other records now: going on at the old position would skip some without a word."""
    rig.fill(P0, 2)
    async with running(rig.loop()):
        await rig.stands_at(P0, 2)
    rig.broker.recreate_topic("t")
    rig.fill(P0, 5)
    loop = rig.loop()
    async with running(loop):
        await rig.until(lambda: (held := loop.holdings.get(P0)) is not None and held.blocked is not None)
        held = loop.holdings.get(P0)

    assert held is not None
    assert "re-created: topic 't' has another id" in (held.blocked or "")
    assert rig.rows.rows[P0].next_offset == 2
    assert rig.rows.rows[P0].topic_id != UUID(int=0)


async def test_a_fetch_that_outlives_a_rebalance_takes_nothing_from_the_next_ownership(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1: the partition comes back in another lane; what the old lane's fetch brought would be dropped, and the client
    be past it: the next batch would then step over records that nobody handled."""
    first = running(rig.loop())
    await first.__aenter__()
    async with running(rig.loop(lanes=2)) as source:
        waits = asyncio.Event()
        monkeypatch.setattr(source, "fetch", partial(_patiently, source.fetch, waits))
        await waits.wait()  # lane 0, for records of P1
        await first.__aexit__(None, None, None)  # both partitions are here now, and P1 in lane 1
        await rig.until(lambda: rig.rows.rows[P1].epoch == 3)
        rig.fill(P1, 3)
        await rig.stands_at(P1, 3)

    assert rig.work.calls == [(1, [0, 1, 2])]


async def _patiently(
    fetch: Callable[..., Awaitable[Mapping[TopicPartition, Sequence[Record]]]],
    begun: asyncio.Event,
    partitions: Iterable[TopicPartition],
    *,
    max_records: int,
    timeout: float,
) -> Mapping[TopicPartition, Sequence[Record]]:
    """As `fetch`, but waits a second, and says that it has begun."""
    begun.set()
    return await fetch(partitions, max_records=max_records, timeout=max(timeout, 1.0))
