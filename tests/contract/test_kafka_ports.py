"""What Kafka promises to the loop and the relay through its ports, in memory and on the real broker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any, Protocol
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition as ClientPartition

from tests import client_deaths
from tidegate.stack.names import StackAddresses
from tidegate.testing.memory import MemoryBroker, MemorySource
from tidegate_kernel.event import Record, TopicPartition
from tidegate_kernel.kafka import KafkaSource, create_topics, join_group, open_reader, open_writer
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import (
    Assigned,
    LogRange,
    MessageTooLarge,
    NotAcknowledged,
    NotAssigned,
    OffsetOutOfRange,
    Outgoing,
    RecordSource,
    RecordWriter,
    Revoked,
    SourceFailure,
)

_DEADLINE_SECONDS = 20.0
# Ten seconds, below.
_LONG_BEFORE_THE_SESSION_ENDS = 6.0


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Asks until it is so: a broker tells of no change by itself."""
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while not await condition():
            await asyncio.sleep(0.05)  # there is no event to wait for


class Transaction(Protocol):
    """An open producer's transaction."""

    async def write(self, records: Sequence[Outgoing]) -> None: ...
    async def commit(self) -> None: ...
    async def abort(self) -> None: ...


class Cluster(Protocol):
    """One Kafka under test."""

    async def create_topic(self, name: str, partitions: int = 1) -> None: ...
    async def recreate_topic(self, name: str) -> None: ...
    async def trim(self, partition: TopicPartition, start: int) -> None:
        """Retention removes all below `start`."""

    def kill(self, source: RecordSource, task: str) -> None:
        """The client of `source` dies, by an error in one of its own tasks."""

    def join(
        self, group: str, topics: Sequence[str], on_assigned: Assigned, on_revoked: Revoked
    ) -> AbstractAsyncContextManager[RecordSource]: ...
    def reader(self, partitions: Iterable[TopicPartition] = ()) -> AbstractAsyncContextManager[RecordSource]: ...
    def writer(self) -> AbstractAsyncContextManager[RecordWriter]: ...
    def transaction(self) -> AbstractAsyncContextManager[Transaction]: ...


class MemoryCluster:
    def __init__(self) -> None:
        self.broker = MemoryBroker()

    async def create_topic(self, name: str, partitions: int = 1) -> None:
        self.broker.create_topic(name, partitions)

    async def recreate_topic(self, name: str) -> None:
        self.broker.recreate_topic(name)

    async def trim(self, partition: TopicPartition, start: int) -> None:
        log = self.broker.log(partition)
        assert log is not None
        log.trim(start)

    def kill(self, source: RecordSource, task: str) -> None:  # it has none
        assert isinstance(source, MemorySource)
        source.die()

    def join(
        self, group: str, topics: Sequence[str], on_assigned: Assigned, on_revoked: Revoked
    ) -> AbstractAsyncContextManager[RecordSource]:
        return self.broker.join(group, topics, on_assigned, on_revoked)

    def reader(self, partitions: Iterable[TopicPartition] = ()) -> AbstractAsyncContextManager[RecordSource]:
        return self.broker.reader(partitions)

    @asynccontextmanager
    async def writer(self) -> AsyncIterator[RecordWriter]:
        yield self.broker.writer()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        yield self.broker.transaction()


class ClientTransaction:
    def __init__(self, producer: Any) -> None:
        self._producer = producer

    async def write(self, records: Sequence[Outgoing]) -> None:
        for record in records:
            await self._producer.send_and_wait(record.topic, record.value, partition=record.partition)

    async def commit(self) -> None:
        await self._producer.commit_transaction()

    async def abort(self) -> None:
        await self._producer.abort_transaction()


class RealCluster:
    def __init__(self, bootstrap: str) -> None:
        # Members hear of a rebalance with their next heartbeat.
        self.settings = KafkaSettings(
            bootstrap=bootstrap, heartbeat_interval=timedelta(seconds=0.2), session_timeout=timedelta(seconds=10)
        )

    async def create_topic(self, name: str, partitions: int = 1) -> None:
        await create_topics(self.settings, {name: partitions})

    async def recreate_topic(self, name: str) -> None:
        async with self._admin() as admin, self.reader() as reader:
            partitions = len(await reader.partitions_of(name))
            await admin.delete_topics([name])

            async def is_gone() -> bool:
                return not await reader.partitions_of(name)

            async def is_created() -> bool:
                return bool(await create_topics(self.settings, {name: partitions}))

            async def is_there() -> bool:
                return len(await reader.partitions_of(name)) == partitions

            for condition in (is_gone, is_created, is_there):
                await until(condition)

    async def trim(self, partition: TopicPartition, start: int) -> None:
        async with self._admin() as admin:
            await admin.delete_records({ClientPartition(*partition): RecordsToDelete(before_offset=start)})

    def kill(self, source: RecordSource, task: str) -> None:
        assert isinstance(source, KafkaSource)
        client_deaths.ALL[task](source._consumer)

    def join(
        self, group: str, topics: Sequence[str], on_assigned: Assigned, on_revoked: Revoked
    ) -> AbstractAsyncContextManager[RecordSource]:
        return join_group(self.settings, group=group, topics=topics, on_assigned=on_assigned, on_revoked=on_revoked)

    def reader(self, partitions: Iterable[TopicPartition] = ()) -> AbstractAsyncContextManager[RecordSource]:
        return open_reader(self.settings, partitions)

    def writer(self) -> AbstractAsyncContextManager[RecordWriter]:
        return open_writer(self.settings)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.settings.bootstrap,
            transactional_id=f"contract-{uuid4()}",
        )
        await producer.start()
        try:
            await producer.begin_transaction()
            yield ClientTransaction(producer)
        finally:
            await producer.stop()

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.settings.bootstrap)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()


@pytest.fixture(params=["memory", "kafka"])
def cluster(request: pytest.FixtureRequest, stack: StackAddresses) -> Cluster:
    return MemoryCluster() if request.param == "memory" else RealCluster(stack.kafka_bootstrap)


@pytest.fixture
async def topic(cluster: Cluster, unique_name: Callable[[str], str]) -> str:
    """A topic of two partitions."""
    name = unique_name("topic")
    await cluster.create_topic(name, 2)
    return name


@pytest.fixture
def group(unique_name: Callable[[str], str]) -> str:
    return unique_name("group")


class Hearing:
    """What a member's listeners heard."""

    def __init__(self) -> None:
        self.assigned: list[frozenset[TopicPartition]] = []
        self.revoked: list[frozenset[TopicPartition]] = []
        self.on_revoke: Callable[[], Any] | None = None
        self._news = asyncio.Event()

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.assigned.append(partitions)
        self._news.set()

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.revoked.append(partitions)
        if self.on_revoke is not None:
            await self.on_revoke()
        self._news.set()

    async def until_assigned(self, count: int) -> None:
        """The newest assignment has `count` partitions."""
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while not self.assigned or len(self.assigned[-1]) != count:
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def member(cluster: Cluster, group: str, topic: str) -> AsyncIterator[tuple[RecordSource, Hearing]]:
    hearing = Hearing()
    async with cluster.join(group, [topic], hearing.on_assigned, hearing.on_revoked) as source:
        yield source, hearing


async def write(cluster: Cluster, partition: TopicPartition, *values: bytes, timestamp: int | None = None) -> None:
    records = [Outgoing(partition.topic, v, partition=partition.partition, timestamp=timestamp) for v in values]
    async with cluster.writer() as writer:
        assert await writer.write(records) == [None] * len(records)


async def read(
    source: RecordSource, partitions: Collection[TopicPartition], count: int, *, max_records: int = 100
) -> list[Record]:
    """The next `count` records, however many fetches they take."""
    found: list[Record] = []
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while len(found) < count:
            for records in (await source.fetch(partitions, max_records=max_records, timeout=0.5)).values():
                assert len(records) <= max_records
                found += records
    return found


async def drain(source: RecordSource, partition: TopicPartition, end: int) -> list[Record]:
    """Everything up to where nothing is left."""
    found: list[Record] = []
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while source.drained_to(partition) != end:
            for records in (await source.fetch([partition], max_records=100, timeout=0.2)).values():
                found += records
    return found


def values(records: Iterable[Record]) -> list[bytes | None]:
    return [record.value for record in records]


# Fetching.


async def test_records_come_in_offset_order_and_never_more_than_asked_for(cluster: Cluster, topic: str) -> None:
    """A batch larger than asked for would overrun the settle; another order would break the order per key."""
    partition = TopicPartition(topic, 0)
    await write(cluster, partition, *(b"%d" % n for n in range(7)))
    async with cluster.reader([partition]) as source:
        source.seek(partition, 0)

        found = await read(source, [partition], 7, max_records=3)

    assert [record.offset for record in found] == list(range(7))
    assert values(found) == [b"%d" % n for n in range(7)]
    assert {(record.topic, record.partition) for record in found} == {partition}


async def test_the_bound_holds_over_all_partitions_of_a_fetch(cluster: Cluster, topic: str) -> None:
    """Memory is bounded by what a lane asks for, not by how many partitions it owns."""
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    for partition in partitions:
        await write(cluster, partition, b"a", b"b", b"c")
    async with cluster.reader(partitions) as source:
        for partition in partitions:
            source.seek(partition, 0)
        got = 0
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while got < 6:
                fetched = await source.fetch(partitions, max_records=4, timeout=0.5)
                size = sum(map(len, fetched.values()))
                got += size

                assert size <= 4

    assert got == 6


async def test_a_fetch_returns_nothing_after_its_time(cluster: Cluster, topic: str) -> None:
    """A lane looks after retries between fetches: one that never came back would stall them."""
    partition = TopicPartition(topic, 0)
    async with cluster.reader([partition]) as source:
        source.seek(partition, 0)
        async with asyncio.timeout(_DEADLINE_SECONDS):
            assert await source.fetch([partition], max_records=10, timeout=0.05) == {}
            assert await source.fetch([partition], max_records=10, timeout=0) == {}


async def test_a_waiting_fetch_wakes_when_a_record_arrives(cluster: Cluster, topic: str) -> None:
    """Freshness is milliseconds, not the length of a wait."""
    partition = TopicPartition(topic, 0)
    async with cluster.reader([partition]) as source:
        source.seek(partition, 0)
        waiting = asyncio.create_task(source.fetch([partition], max_records=10, timeout=_DEADLINE_SECONDS))

        await write(cluster, partition, b"late")
        async with asyncio.timeout(_DEADLINE_SECONDS / 2):
            fetched = await waiting

    assert values(fetched[partition]) == [b"late"]


async def test_seek_decides_what_comes_next(cluster: Cluster, topic: str) -> None:
    """After any client failure all partitions are sought to what is not handled yet."""
    partition = TopicPartition(topic, 0)
    await write(cluster, partition, b"a", b"b", b"c", b"d")
    async with cluster.reader([partition]) as source:
        source.seek(partition, 2)
        assert values(await read(source, [partition], 2)) == [b"c", b"d"]

        source.seek(partition, 1)
        again = await read(source, [partition], 1, max_records=1)
        source.seek(partition, 0)  # records of the first answer are still buffered in the client
        first = await read(source, [partition], 1, max_records=1)

    assert values(again) == [b"b"]
    assert values(first) == [b"a"]


async def test_seeking_what_is_not_assigned_is_told(cluster: Cluster, topic: str) -> None:
    """A partition can be revoked between taking it over and seeking it."""
    async with cluster.reader([TopicPartition(topic, 0)]) as source:
        with pytest.raises(NotAssigned):
            source.seek(TopicPartition(topic, 1), 0)


async def test_two_tasks_fetch_disjoint_partitions_at_once(cluster: Cluster, topic: str) -> None:
    """Lanes share one source: none may get, wait for, or lose what belongs to another."""
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    async with cluster.reader(partitions) as source:
        for partition in partitions:
            source.seek(partition, 0)
        reading = [asyncio.create_task(read(source, [p], 40, max_records=3)) for p in partitions]
        for n in range(4):
            for partition in partitions:
                await write(cluster, partition, *(b"%d-%d" % (partition.partition, 10 * n + m) for m in range(10)))

        zero, one = await asyncio.gather(*reading)

    assert values(zero) == [b"0-%d" % n for n in range(40)]
    assert values(one) == [b"1-%d" % n for n in range(40)]


async def test_an_offset_that_the_log_does_not_hold_stops_its_partition_alone(cluster: Cluster, topic: str) -> None:
    """Jumping to what is left would lose records silently, and the neighbours have nothing to do with it."""
    lost, healthy = TopicPartition(topic, 0), TopicPartition(topic, 1)
    await write(cluster, lost, b"a", b"b", b"c")
    await write(cluster, healthy, b"x")
    await cluster.trim(lost, 2)
    async with cluster.reader([lost, healthy]) as source:
        source.seek(lost, 0)
        source.seek(healthy, 0)

        with pytest.raises(OffsetOutOfRange, match=f"{topic}:0") as raised:
            await read(source, [lost], 1)
        source.seek(healthy, 0)
        found = await read(source, [healthy], 1)

    assert raised.value.is_about_a_record
    assert values(found) == [b"x"]


async def test_a_partition_without_any_offset_is_not_guessed(cluster: Cluster, topic: str, group: str) -> None:
    """Where reading starts is decided by the position row alone: neither earliest nor latest (Case 11)."""
    await write(cluster, TopicPartition(topic, 0), b"a")
    async with member(cluster, group, topic) as (source, _):
        with pytest.raises(SourceFailure):
            await read(source, [TopicPartition(topic, 0)], 1)


# Pausing.


async def test_a_paused_partition_is_silent_and_stays_ours(cluster: Cluster, topic: str, group: str) -> None:
    """An outage pauses partitions; leaving the group instead would rebalance everyone for nothing."""
    paused, running = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with member(cluster, group, topic) as (source, hearing):
        for partition in (paused, running):
            source.seek(partition, 0)
        source.pause([paused, TopicPartition("elsewhere", 9)])
        await write(cluster, paused, b"held")
        await write(cluster, running, b"goes on")

        found = await read(source, [paused, running], 1)
        assert values(found) == [b"goes on"]
        assert await source.fetch([paused], max_records=10, timeout=0.3) == {}
        assert source.assignment() == {paused, running}
        source.resume([paused, TopicPartition("elsewhere", 9)])

        assert values(await read(source, [paused, running], 1)) == [b"held"]
        assert hearing.revoked in ([], [frozenset()])


async def test_pausing_keeps_what_was_buffered(cluster: Cluster, topic: str) -> None:
    """A batch held back pauses its partition in the middle of what the client had fetched."""
    partition = TopicPartition(topic, 0)
    await write(cluster, partition, b"a", b"b", b"c")
    async with cluster.reader([partition]) as source:
        source.seek(partition, 0)
        assert values(await read(source, [partition], 1, max_records=1)) == [b"a"]

        source.pause([partition])
        assert await source.fetch([partition], max_records=10, timeout=0.1) == {}
        source.resume([partition])

        assert values(await read(source, [partition], 2)) == [b"b", b"c"]


# Holes, ends, transactions.


async def test_a_transaction_in_flight_hides_its_records_and_all_after_them(cluster: Cluster, topic: str) -> None:
    """The end that lag is measured against is the last stable offset, else an open transaction shows as lag."""
    partition = TopicPartition(topic, 0)
    await write(cluster, partition, b"before")
    async with cluster.transaction() as transaction, cluster.reader([partition]) as source:
        await transaction.write([Outgoing(topic, b"inside", partition=0)])
        await write(cluster, partition, b"after")
        source.seek(partition, 0)

        assert values(await read(source, [partition], 1)) == [b"before"]
        assert await source.fetch([partition], max_records=10, timeout=0.3) == {}
        assert source.known_end(partition) == 1
        assert (await source.ranges([partition]))[partition] == LogRange(0, 1)
        await transaction.commit()

        assert values(await read(source, [partition], 2)) == [b"inside", b"after"]


async def test_holes_of_transactions_are_passed_and_counted_as_drained(cluster: Cluster, topic: str) -> None:
    """Case 38: markers and aborted records take offsets that are never delivered; nothing may wait for them."""
    partition = TopicPartition(topic, 0)
    await write(cluster, partition, b"0", b"1")
    async with cluster.transaction() as aborted:
        await aborted.write([Outgoing(topic, b"never", partition=0), Outgoing(topic, b"never", partition=0)])
        await aborted.abort()
    async with cluster.transaction() as committed:
        await committed.write([Outgoing(topic, b"5", partition=0)])
        await committed.commit()
    async with cluster.reader([partition]) as source:
        source.seek(partition, 0)
        end = (await source.ranges([partition]))[partition].end

        found = await drain(source, partition, end)

        assert [(record.offset, record.value) for record in found] == [(0, b"0"), (1, b"1"), (5, b"5")]
        assert source.drained_to(partition) == source.known_end(partition) == end == 7


async def test_known_end_grows_with_the_log(cluster: Cluster, topic: str) -> None:
    """Lag is this end minus the position: it must be the end of now, not that of the assignment."""
    partition = TopicPartition(topic, 0)
    await write(cluster, partition, b"a")
    async with cluster.reader([partition]) as source:
        assert source.known_end(partition) is None
        assert source.known_end(TopicPartition("elsewhere", 0)) is None
        assert source.drained_to(TopicPartition("elsewhere", 0)) is None
        source.seek(partition, 0)
        await read(source, [partition], 1)
        assert source.known_end(partition) == 1

        await write(cluster, partition, b"b", b"c")
        await read(source, [partition], 2)

        assert source.known_end(partition) == 3
        assert source.drained_to(partition) == 3


# Groups.


async def test_a_member_resumes_at_the_committed_offset(cluster: Cluster, topic: str, group: str) -> None:
    """The hint in Kafka is what other tools, and lag monitors, see of us."""
    partition = TopicPartition(topic, 0)
    await write(cluster, partition, *(b"%d" % n for n in range(5)))
    async with member(cluster, group, topic) as (source, _):
        await source.commit({})
        await source.commit({partition: 3})
    async with member(cluster, group, topic) as (source, _):
        found = await read(source, [partition], 2)

    assert values(found) == [b"3", b"4"]


async def test_members_share_the_partitions_and_who_leaves_hands_over(cluster: Cluster, topic: str, group: str) -> None:
    """Scale-out is Kafka's: every partition has one owner, also while members come and go."""
    everything = {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    async with member(cluster, group, topic) as (first, heard_first):
        await heard_first.until_assigned(2)
        async with member(cluster, group, topic) as (second, heard_second):
            await asyncio.gather(heard_first.until_assigned(1), heard_second.until_assigned(1))

            assert first.assignment() | second.assignment() == everything
            assert not first.assignment() & second.assignment()
            assert everything in heard_first.revoked
        await heard_first.until_assigned(2)

        assert first.assignment() == everything


async def test_finished_work_is_committed_while_partitions_are_being_revoked(
    cluster: Cluster, topic: str, group: str
) -> None:
    """What ended within the drain window must not be redelivered to the next owner (Case 14)."""
    partition = TopicPartition(topic, 0)
    await write(cluster, partition, b"a", b"b", b"c")
    async with member(cluster, group, topic) as (first, heard_first):
        await heard_first.until_assigned(2)
        heard_first.on_revoke = lambda: first.commit({partition: 2})
        async with member(cluster, group, topic) as (second, heard_second):
            await asyncio.gather(heard_first.until_assigned(1), heard_second.until_assigned(1))
            owner = first if partition in first.assignment() else second

            found = await read(owner, [partition], 1)

    assert values(found) == [b"c"]


async def test_a_new_assignment_forgets_positions_and_pauses(cluster: Cluster, topic: str, group: str) -> None:
    """Every partition is taken over anew after a rebalance, also one that stayed: the loop pauses and seeks again."""
    async with member(cluster, group, topic) as (first, heard_first):
        await heard_first.until_assigned(2)
        for partition in first.assignment():
            await write(cluster, partition, b"a")
            first.seek(partition, 0)
        first.pause(first.assignment())
        async with member(cluster, group, topic) as (_, heard_second):
            await asyncio.gather(heard_first.until_assigned(1), heard_second.until_assigned(1))
            (kept,) = first.assignment()
            assert first.drained_to(kept) is None

            first.seek(kept, 0)

            assert values(await read(first, [kept], 1)) == [b"a"]


async def test_a_commit_for_a_lost_partition_is_refused(cluster: Cluster, topic: str, group: str) -> None:
    """Case 26: it would move the next owner's hint back, and its refusal is how a zombie learns what it is. It names
    topic, partition and offset."""
    async with member(cluster, group, topic) as (first, heard_first):
        await heard_first.until_assigned(2)
        async with member(cluster, group, topic) as (second, heard_second):
            await asyncio.gather(heard_first.until_assigned(1), heard_second.until_assigned(1))
            (lost,) = second.assignment()

            with pytest.raises(NotAssigned, match=rf"commit of {lost.topic}:{lost.partition}@1: "):
                await first.commit({lost: 1})
            (kept,) = first.assignment()
            await first.commit({kept: 0})


async def test_a_reader_outside_any_group_cannot_commit(cluster: Cluster, topic: str) -> None:
    """A backfill must not move the live group's offsets, not even by accident."""
    partition = TopicPartition(topic, 0)
    async with cluster.reader([partition]) as source:
        with pytest.raises(NotAssigned, match="no group"):
            await source.commit({partition: 1})


async def test_closing_twice_is_harmless(cluster: Cluster, topic: str, group: str) -> None:
    """Shutdown paths overlap: a signal and an error may both close."""
    async with member(cluster, group, topic) as (source, hearing):
        await source.close()
        await source.close()
        assert len(hearing.revoked) <= 1
    async with cluster.writer() as writer:
        await writer.close()
        await writer.close()


# Questions about topics.


@pytest.mark.parametrize("task", client_deaths.OF_A_MEMBER)
async def test_a_dead_member_leaves(cluster: Cluster, topic: str, group: str, task: str) -> None:
    """It fails late or never by itself: records are not fetched, heartbeats may go on. Whoever closes it gets no error
    of the past, and whoever joins next does not wait for its session to end."""
    async with member(cluster, group, topic) as (source, hearing):
        await hearing.until_assigned(2)
        source.require_alive()
        cluster.kill(source, task)

        await client_deaths.until_dead(source)
    source.require_alive()  # closed, and no longer at fault
    async with asyncio.timeout(_LONG_BEFORE_THE_SESSION_ENDS), member(cluster, group, topic) as (_, hearing):
        await hearing.until_assigned(2)


@pytest.mark.parametrize("task", client_deaths.OF_A_READER)
async def test_a_dead_reader_says_so(cluster: Cluster, topic: str, task: str) -> None:
    """A backfill would wait for ever for records that nobody fetches."""
    partition = TopicPartition(topic, 0)
    async with cluster.reader([partition]) as source:
        source.seek(partition, 0)
        assert await source.fetch([partition], max_records=1, timeout=0.1) == {}
        cluster.kill(source, task)

        await client_deaths.until_dead(source)


async def test_ranges_tell_what_the_log_holds_now(cluster: Cluster, topic: str) -> None:
    """A position below the start is a gap, one beyond the end another incarnation: both are found with this."""
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    await write(cluster, zero, b"a", b"b", b"c")
    await cluster.trim(zero, 2)
    async with cluster.reader() as source:
        assert await source.ranges([zero, one]) == {zero: LogRange(2, 3), one: LogRange(0, 0)}
        assert await source.ranges([]) == {}


async def test_offsets_at_a_time(cluster: Cluster, topic: str) -> None:
    """A backfill from a time starts at the first record as late as that, or has nothing to do."""
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    for second in (1_000, 2_000, 3_000):
        await write(cluster, zero, b"x", timestamp=1_700_000_000_000 + second)
    async with cluster.reader() as source:
        assert await source.offsets_at([zero, one], 1_700_000_001_500) == {zero: 1, one: 0}
        assert await source.offsets_at([zero], 1_700_000_002_000) == {zero: 1}
        assert await source.offsets_at([zero], 1_700_000_009_000) == {zero: 3}
        assert await source.offsets_at([zero], 2**63 - 1) == {zero: 3}


@pytest.mark.parametrize("timestamp_ms", [0, -1, -2, -3, -(2**62)])
async def test_offsets_at_a_time_before_all_times(cluster: Cluster, topic: str, timestamp_ms: int) -> None:
    """To Kafka -1 means the end and -2 the start: a backfill from 1969 must not come to nothing."""
    zero = TopicPartition(topic, 0)
    await write(cluster, zero, b"a", b"b", b"c", timestamp=1_700_000_000_000)
    await cluster.trim(zero, 1)
    async with cluster.reader() as source:
        assert await source.offsets_at([zero], timestamp_ms) == {zero: 1}


async def test_a_recreated_topic_has_another_id(cluster: Cluster, topic: str) -> None:
    """Old offsets mean other records then, and only the id tells."""
    async with cluster.reader() as source:
        before = await source.topic_id(topic)
        assert await source.topic_id(topic) == before
        assert before.int != 0

        await cluster.recreate_topic(topic)

        assert await source.topic_id(topic) not in (before, 0)
        assert len(await source.partitions_of(topic)) == 2


async def test_an_unknown_topic_has_no_partitions_and_no_id(cluster: Cluster, topic: str) -> None:
    """Start-up tells a missing topic by name, before anything is consumed."""
    async with cluster.reader() as source:
        assert await source.partitions_of(topic) == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
        assert await source.partitions_of("no-such-topic") == frozenset()
        assert (await source.topic_id("no-such-topic")).int == 0


# Writing.


async def test_what_was_written_comes_back_byte_for_byte(cluster: Cluster, topic: str) -> None:
    """Dead letters are byte-exact: order, repeats, empty and missing header values, odd bytes (Case 35)."""
    partition = TopicPartition(topic, 1)
    headers = [("k", None), ("k", b"\xc3\x28"), ("", b""), ("k", b"1"), ("ключ", b"\x00")]
    outgoing = [
        Outgoing(topic, b"\x00\xff", key=b"\xfe", headers=headers, timestamp=1_700_000_000_123, partition=1),
        Outgoing(topic, None, key=b"", partition=1),
        Outgoing(topic, b"", key=None, partition=1),
        Outgoing(topic, None, key=None, headers=[("why", b"x")], partition=1),
    ]
    async with cluster.writer() as writer, cluster.reader([partition]) as source:
        assert await writer.write(outgoing) == [None] * 4
        source.seek(partition, 0)

        found = await read(source, [partition], 4)

    assert [(r.key, r.value, list(r.headers)) for r in found] == [(o.key, o.value, list(o.headers)) for o in outgoing]
    assert found[0].timestamp == 1_700_000_000_123
    assert found[1].timestamp > 1_700_000_000_123


async def test_a_key_always_goes_to_the_same_partition_in_order(cluster: Cluster, topic: str) -> None:
    """Order per key holds through the outbox and the relay only if the writer keeps it."""
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    outgoing = [Outgoing(topic, b"%d" % n, key=b"key-%d" % (n % 5)) for n in range(50)]
    async with cluster.writer() as writer, cluster.reader(partitions) as source:
        await writer.write(outgoing[:25])
        await writer.write(outgoing[25:])
        for partition in partitions:
            source.seek(partition, 0)

        found = await read(source, partitions, 50)

    by_key: dict[bytes | None, list[Record]] = {}
    for record in found:
        by_key.setdefault(record.key, []).append(record)
    assert len(by_key) == 5
    for records in by_key.values():
        assert len({record.partition for record in records}) == 1
        numbers = [int(record.value or b"-1") for record in records]
        assert all(earlier < later for earlier, later in pairwise(numbers))


async def test_what_cannot_be_written_is_told_one_by_one(cluster: Cluster, topic: str) -> None:
    """A record for a missing topic, or a giant, must not take its neighbours with it."""
    outgoing = [
        Outgoing(topic, b"fine", partition=0),
        Outgoing("no-such-topic", b"lost"),
        Outgoing(topic, random.randbytes(3_000_000), partition=1),  # compresses to no less,
    ]
    async with cluster.writer() as writer:
        fine, missing, giant = [(await writer.write([record]))[0] for record in outgoing]

    assert fine is None
    assert isinstance(missing, NotAcknowledged)
    assert isinstance(giant, MessageTooLarge)
    assert not isinstance(missing, MessageTooLarge)
