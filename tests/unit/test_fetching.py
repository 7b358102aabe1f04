"""Fetching over a client that fails: nothing is lost, and only what cannot be read stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from consumers.fetching import Fetching, Found, Unreadable
from tidegate.testing.memory import MemoryBroker, MemorySource
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.source import CorruptBatch, OffsetOutOfRange, SourceFailure, UnreadableRecord

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Handled:
    """Plays the lane: handles what is found, and knows the next unhandled offset of every partition."""

    def __init__(self, **starts: int) -> None:
        self.positions = {P0: starts.get("p0", 0), P1: starts.get("p1", 0)}
        self.values: dict[TopicPartition, list[bytes | None]] = {P0: [], P1: []}
        self.unreadable: list[tuple[TopicPartition, int]] = []
        self.blocked: dict[TopicPartition, SourceFailure] = {}

    def resume_offsets(self) -> Mapping[TopicPartition, int]:
        return self.positions

    def take(self, fetched: Mapping[TopicPartition, Found]) -> None:
        for partition, found in fetched.items():
            match found:
                case Unreadable(offset=offset):
                    self.unreadable.append((partition, offset))
                    self.positions[partition] = offset + 1
                case SourceFailure():
                    self.blocked[partition] = found
                case records:
                    for record in records:
                        if record.offset >= self.positions[partition]:
                            self.values[partition].append(record.value)
                            self.positions[partition] = record.offset + 1


class Rig:
    """A reader of both partitions at offset 0, and what was handled of them."""

    def __init__(self, broker: MemoryBroker, source: MemorySource, max_records: int) -> None:
        self.broker, self.source, self.handled = broker, source, Handled()
        self.fetching = Fetching(source, self.handled, max_records=max_records)
        for partition in (P0, P1):
            source.seek(partition, 0)

    async def rounds(self, count: int) -> None:
        for _ in range(count):
            ready = [p for p in (P0, P1) if p not in self.handled.blocked]
            self.handled.take(await self.fetching.fetch(ready, timeout=0))


class Quick(SystemClock):
    """Waits pass at once: nothing here is about how long they take."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def monotonic(self) -> float:
        return self._seconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self._seconds += seconds


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker(Quick())
    broker.create_topic("t", 2)
    return broker


def fill(broker: MemoryBroker, partition: TopicPartition, *values: bytes) -> None:
    for value in values:
        broker.put(partition, value)


def break_at(broker: MemoryBroker, partition: TopicPartition, offset: int, failure: SourceFailure) -> None:
    log = broker.log(partition)
    assert log is not None
    log.faults[offset] = failure


async def test_records_drained_before_a_failure_are_handled_once(broker: MemoryBroker) -> None:
    """Case 2: the client drops what it had drained from a healthy partition when a later one fails."""
    fill(broker, P0, b"a1", b"a2")
    fill(broker, P1, b"bad", b"b2")
    break_at(broker, P1, 0, UnreadableRecord("bad header"))
    async with broker.reader([P0, P1]) as source:
        rig = Rig(broker, source, 10)

        await rig.rounds(3)

    assert rig.handled.values == {P0: [b"a1", b"a2"], P1: [b"b2"]}
    assert rig.handled.unreadable == [(P1, 0)]


async def test_an_unreadable_record_is_found_alone_between_its_neighbours(broker: MemoryBroker) -> None:
    """Cases 1 and 6: the records before it are handled first, it is told once, those after it go on."""
    fill(broker, P0, b"0", b"1", b"2", b"bad", b"4")
    break_at(broker, P0, 3, UnreadableRecord("bad header"))
    async with broker.reader([P0, P1]) as source:
        rig = Rig(broker, source, 10)
        await rig.rounds(1)
        assert rig.handled.values[P0] == [b"0", b"1", b"2"]
        assert rig.handled.unreadable == []

        await rig.rounds(3)

    assert rig.handled.values[P0] == [b"0", b"1", b"2", b"4"]
    assert rig.handled.unreadable == [(P0, 3)]
    assert rig.handled.positions[P0] == 5


async def test_a_corrupt_batch_lets_the_records_before_it_pass_and_blocks_its_partition(broker: MemoryBroker) -> None:
    """Case 3: skipping it would lose what it holds, and nobody knows how much that is."""
    fill(broker, P0, b"a", b"b", b"rotten", b"d")
    fill(broker, P1, b"x")
    break_at(broker, P0, 2, CorruptBatch("checksum"))
    async with broker.reader([P0, P1]) as source:
        rig = Rig(broker, source, 10)
        await rig.rounds(3)
        fill(broker, P1, b"y")
        await rig.rounds(1)

    assert rig.handled.values == {P0: [b"a", b"b"], P1: [b"x", b"y"]}
    assert isinstance(rig.handled.blocked[P0], CorruptBatch)
    assert rig.handled.positions[P0] == 2


async def test_an_oversized_record_is_told_by_the_offset_the_client_skipped(broker: MemoryBroker) -> None:
    """Case 5: the client steps over a record above its fetch limit, and the next call would never mention it."""
    fill(broker, P0, b"0", b"giant", b"2")
    break_at(broker, P0, 1, UnreadableRecord("above the fetch limit", offset=1))
    async with broker.reader([P0, P1]) as source:
        rig = Rig(broker, source, 10)

        await rig.rounds(4)

    assert rig.handled.values[P0] == [b"0", b"2"]
    assert rig.handled.unreadable == [(P0, 1)]


async def test_the_place_of_an_unreadable_record_is_the_clients_word_where_it_gives_one(broker: MemoryBroker) -> None:
    """Behind a hole of control records the position is not where the record stands."""
    broker.put(P0, b"0")
    log = broker.log(P0)
    assert log is not None
    log.skip(3)
    broker.put(P0, b"bad")
    break_at(broker, P0, 4, UnreadableRecord("bad header", offset=4))
    async with broker.reader([P0, P1]) as source:
        rig = Rig(broker, source, 10)

        await rig.rounds(3)

    assert rig.handled.unreadable == [(P0, 4)]
    assert rig.handled.positions[P0] == 5


async def test_a_busy_neighbour_does_not_keep_the_failing_partition_from_its_turn(broker: MemoryBroker) -> None:
    """Were partitions asked until one has something, a stream of records would hide the failure for ever."""
    fill(broker, P0, b"a")
    fill(broker, P1, b"bad", b"b")
    break_at(broker, P1, 0, UnreadableRecord("bad header"))
    async with broker.reader([P0, P1]) as source:
        rig = Rig(broker, source, 10)
        for _ in range(3):
            fill(broker, P0, b"more")
            await rig.rounds(1)

    assert rig.handled.unreadable == [(P1, 0)]
    assert rig.handled.values[P1] == [b"b"]
    assert rig.handled.values[P0] == [b"a", b"more", b"more", b"more"]


async def test_healthy_partitions_keep_their_batches_beside_a_failing_one(broker: MemoryBroker) -> None:
    """Reading all of them one by one would make one bad header a slowdown of everything."""
    fill(broker, P0, *(b"%d" % n for n in range(6)))
    fill(broker, P1, b"bad")
    break_at(broker, P1, 0, CorruptBatch("checksum"))
    async with broker.reader([P0, P1]) as source:
        rig = Rig(broker, source, 4)

        fetched = await rig.fetching.fetch([P1, P0], timeout=0)

    assert isinstance(fetched[P1], CorruptBatch)
    assert [record.offset for record in fetched[P0]] == [0, 1, 2, 3]  # type: ignore[union-attr]  # records


async def test_offsets_out_of_range_concern_their_partition_alone(broker: MemoryBroker) -> None:
    """Retention passed one partition by: the others have nothing to do with it."""
    fill(broker, P0, b"a", b"b")
    fill(broker, P1, b"x")
    async with broker.reader([P0, P1]) as source:
        rig = Rig(broker, source, 10)
        log = broker.log(P0)
        assert log is not None
        log.trim(2)

        await rig.rounds(1)

    assert isinstance(rig.handled.blocked[P0], OffsetOutOfRange)
    assert rig.handled.values[P1] == [b"x"]


async def test_a_lost_connection_is_raised_and_every_partition_sought(broker: MemoryBroker) -> None:
    """It is nobody's record: the caller waits and tries again, and nothing was skipped meanwhile."""
    fill(broker, P0, b"a")
    fill(broker, P1, b"x")
    broker.fail_next_fetch(SourceFailure("connection lost"), P1)
    async with broker.reader([P0, P1]) as source:
        rig = Rig(broker, source, 10)

        with pytest.raises(SourceFailure, match="connection lost"):
            await rig.rounds(1)
        assert source.drained_to(P0) == 0
        await rig.rounds(1)

    assert rig.handled.values == {P0: [b"a"], P1: [b"x"]}


async def test_a_connection_lost_while_looking_for_the_bad_record_blocks_nobody(broker: MemoryBroker) -> None:
    """Only what is about a record may stop a partition; the search just begins again."""
    fill(broker, P0, b"bad", b"b")
    break_at(broker, P0, 0, UnreadableRecord("bad header"))
    async with broker.reader([P0, P1]) as source:
        rig = Rig(broker, source, 10)
        for _ in range(2):  # all partitions, then each alone: the third fetch is the first step
            broker.fail_next_fetch(UnreadableRecord("bad header"), P0)
        broker.fail_next_fetch(SourceFailure("connection lost"), P0)

        with pytest.raises(SourceFailure, match="connection lost"):
            await rig.rounds(1)
        await rig.rounds(2)

    assert rig.handled.blocked == {}
    assert rig.handled.unreadable == [(P0, 0)]
    assert rig.handled.values[P0] == [b"b"]
