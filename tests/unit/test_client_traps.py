"""The Kafka client's own fetch buffer, fed with real record batches: each trap that it sets is sprung and survived.

No broker: the answers that a broker would send are made here and go through the client's real code.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.consumer.fetcher import READ_COMMITTED, Fetcher, OffsetResetStrategy
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from aiokafka.structs import TopicPartition as ClientPartition

from consumers.fetching import Fetching, Unreadable
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import KafkaSource, consumer_options
from tidegate_kernel.kafka_metadata import TopicIds
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import CorruptBatch, SourceFailure, UnreadableRecord

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
_FETCH_BYTES = 1024
_BAD_NAME = b"\xc3\x28"
_CONTROL = 0x20
_COMMIT_MARKER = b"\x00\x00\x00\x01"

Headers = Sequence[tuple[str, bytes]]


class Batch:
    """A record batch as a broker stores it."""

    def __init__(self, base: int, *records: tuple[bytes, Headers], key: bytes | None = None) -> None:
        self.base, self.last = base, base + len(records) - 1
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=0,
            batch_size=1_000_000,
        )
        for number, (value, headers) in enumerate(records):
            builder.append(number, timestamp=1, key=key, value=value, headers=list(headers))
        self.raw = bytearray(builder.build())
        self.raw[0:8] = struct.pack(">q", base)

    def with_bad_header_name(self) -> Batch:
        """Its header `kk` has a name that is no UTF-8; the checksum is right."""
        self.raw = self.raw.replace(b"kk", _BAD_NAME)
        return self._sealed()

    def rotten(self) -> Batch:
        """Its checksum is wrong."""
        self.raw[-1] ^= 0xFF
        return self

    def as_control(self) -> Batch:
        """Brokers alone write such batches."""
        self.raw[22] |= _CONTROL
        return self._sealed()

    def _sealed(self) -> Batch:
        self.raw[17:21] = struct.pack(">I", calc_crc32c(bytes(self.raw[21:])))
        return self


def plain(base: int, *values: bytes) -> Batch:
    return Batch(base, *((value, []) for value in values))


def marker(base: int) -> Batch:
    """Where a transaction was committed: an offset without a record."""
    return Batch(base, (b"\x00\x00\x00\x00\x00\x00", []), key=_COMMIT_MARKER).as_control()


class OfflineClient:
    """The client's Fetcher and its subscription, without connections: answers come from `batches`."""

    def __init__(self, batches: Mapping[TopicPartition, Sequence[Batch]]) -> None:
        self._batches = batches
        self._subscription = SubscriptionState()
        self._subscription.assign_from_user([ClientPartition(*p) for p in batches])
        self._client = SimpleNamespace(send=self._answer, cluster=SimpleNamespace(leader_for_partition=lambda _: 0))
        self._fetcher: Any = Fetcher.__new__(Fetcher)  # its constructor would start to talk to a broker
        self._fetcher.__dict__.update(
            _subscriptions=self._subscription,
            _client=self._client,
            _client_rack=None,
            _check_crcs=True,
            _closed=False,
            _default_reset_strategy=OffsetResetStrategy.NONE,
            _isolation_level=READ_COMMITTED,
            _key_deserializer=None,
            _value_deserializer=None,
            _max_partition_fetch_bytes=_FETCH_BYTES,
            _preferred_read_replica={},
            _prefetch_backoff=0,
            _records={},
            _wait_consume_future=None,
            _notify=lambda _: None,
        )

    def assignment(self) -> frozenset[ClientPartition]:
        return frozenset(self._subscription.assigned_partitions())

    def seek(self, partition: ClientPartition, offset: int) -> None:
        self._fetcher.seek_to(partition, offset)

    async def getmany(self, *partitions: ClientPartition, timeout_ms: int, max_records: int) -> Any:
        assignment = self._subscription.subscription.assignment
        wanted = [
            (p.partition, assignment.state_value(p).position, _FETCH_BYTES)
            for p in sorted(self.assignment())
            if p not in self._fetcher._records
        ]
        await self._fetcher._proc_fetch_request(assignment, 0, SimpleNamespace(topics=[("t", wanted)]))
        return await self._fetcher.fetched_records(partitions, 0, max_records=max_records)

    async def _answer(self, _: int, request: Any) -> Any:
        """As a broker: whole batches from the one that holds the offset on, cut off at the client's limit."""
        parts = []
        for partition, offset, limit in request.topics[0][1]:
            batches = self._batches[TopicPartition("t", partition)]
            raw = b"".join(bytes(batch.raw) for batch in batches if batch.last >= offset)
            end = batches[-1].last + 1
            parts.append((partition, 0, end, end, 0, None, -1, raw[:limit]))
        return SimpleNamespace(API_VERSION=11, topics=[("t", parts)])


class Outcome:
    """What became of every offset, as a lane would do it."""

    def __init__(self, client: OfflineClient, partitions: Sequence[TopicPartition]) -> None:
        self.positions = dict.fromkeys(partitions, 0)
        self.handled: dict[TopicPartition, list[bytes | None]] = {p: [] for p in partitions}
        self.dead: list[tuple[TopicPartition, int, str]] = []
        self.blocked: dict[TopicPartition, SourceFailure] = {}
        self.source = KafkaSource(client, TopicIds(None))
        self._fetching = Fetching(self.source, self, max_records=100)
        for partition in partitions:
            self.source.seek(partition, 0)

    def resume_offsets(self) -> Mapping[TopicPartition, int]:
        return self.positions

    async def rounds(self, count: int) -> None:
        for _ in range(count):
            ready = [p for p in self.positions if p not in self.blocked]
            for partition, found in (await self._fetching.fetch(ready, timeout=0)).items():
                match found:
                    case Unreadable(offset=offset, error=error):
                        self.dead.append((partition, offset, error.reason))
                        self.positions[partition] = offset + 1
                    case SourceFailure():
                        self.blocked[partition] = found
                    case records:
                        fresh = [r for r in records if r.offset >= self.positions[partition]]
                        self.handled[partition] += [r.value for r in fresh]
                        self.positions[partition] = max(
                            [r.offset + 1 for r in fresh], default=self.positions[partition]
                        )


def outcome(batches: Mapping[TopicPartition, Sequence[Batch]]) -> Outcome:
    return Outcome(OfflineClient(batches), list(batches))


async def test_bytes_that_no_text_are_handed_over_like_all_others() -> None:
    """Case 1: with a deserializer in the client one bad value would hide its whole batch for ever."""
    traps = outcome({P0: [plain(0, b"a", b"b", b"c", b"\xff\xfe", b"e")]})

    await traps.rounds(1)

    assert traps.handled[P0] == [b"a", b"b", b"c", b"\xff\xfe", b"e"]


async def test_the_client_alone_never_gets_past_a_bad_header_name() -> None:
    """Why the partition is fetched once more and parsed by us: seeking behind the record brings its batch again."""
    client = OfflineClient({P0: [Batch(0, (b"x", [("kk", b"v")]), (b"good", [])).with_bad_header_name()]})
    for offset in (0, 1):
        client.seek(ClientPartition(*P0), offset)
        with pytest.raises(UnicodeDecodeError):
            await client.getmany(ClientPartition(*P0), timeout_ms=0, max_records=10)


@pytest.mark.parametrize("bad", [0, 1, 3, 4])
async def test_a_bad_header_name_costs_only_its_own_record(bad: int) -> None:
    """Cases 1, 4 and 6: it is a dead letter once, its neighbours are handled once, the position passes all five."""
    records = [(b"%d" % n, [("kk", b"v")] if n == bad else [("ok", b"v")]) for n in range(5)]
    traps = outcome({P0: [Batch(0, *records).with_bad_header_name()]})

    await traps.rounds(4)

    assert traps.handled[P0] == [b"%d" % n for n in range(5) if n != bad]
    assert traps.dead == [(P0, bad, "client_parse")]
    assert traps.positions[P0] == 5


async def test_the_client_alone_loses_what_it_drained_before_a_failure() -> None:
    """Why every partition is sought after any failure: the next call does not bring a1 and a2 again."""
    client = OfflineClient({P0: [plain(0, b"a1", b"a2")], P1: [plain(0, b"x").rotten()]})
    for partition in (P0, P1):
        client.seek(ClientPartition(*partition), 0)

    with pytest.raises(Exception, match="CRC"):
        await client.getmany(timeout_ms=0, max_records=10)

    assert client._subscription.subscription.assignment.state_value(ClientPartition(*P0)).position == 2


async def test_a_bad_checksum_does_not_lose_what_was_drained_from_others() -> None:
    """Case 2: the healthy partition's records are handled once, the rotten batch blocks its own partition."""
    traps = outcome({P0: [plain(0, b"a1", b"a2")], P1: [plain(0, b"x").rotten()]})

    await traps.rounds(3)

    assert traps.handled == {P0: [b"a1", b"a2"], P1: []}
    assert isinstance(traps.blocked[P1], CorruptBatch)
    assert traps.positions == {P0: 2, P1: 0}


async def test_a_bad_header_name_does_not_lose_what_was_drained_from_others() -> None:
    """Case 2 again, with the failure that is one record's."""
    bad = Batch(0, (b"x", [("kk", b"v")]), (b"y", [])).with_bad_header_name()
    traps = outcome({P0: [plain(0, b"a1", b"a2")], P1: [bad]})

    await traps.rounds(3)

    assert traps.handled == {P0: [b"a1", b"a2"], P1: [b"y"]}
    assert traps.dead == [(P1, 0, "client_parse")]


async def test_a_rotten_second_batch_lets_the_first_one_pass() -> None:
    """Case 3: the first batch is handled, the second is never skipped."""
    traps = outcome({P0: [plain(0, b"a", b"b"), plain(2, b"c").rotten(), plain(3, b"d")]})

    await traps.rounds(3)

    assert traps.handled[P0] == [b"a", b"b"]
    assert isinstance(traps.blocked[P0], CorruptBatch)
    assert traps.positions[P0] == 2


async def test_a_record_above_the_fetch_limit_is_told_by_its_offset() -> None:
    """Case 5: the client raises once, with its position already past the record: the next call would go on silently."""
    traps = outcome({P0: [plain(0, b"a"), plain(1, b"x" * 2 * _FETCH_BYTES), plain(2, b"c")]})

    await traps.rounds(5)

    assert traps.handled[P0] == [b"a", b"c"]
    assert traps.dead == [(P0, 1, "client_parse")]
    assert traps.positions[P0] == 3


async def test_a_bad_header_name_behind_control_records_has_its_own_offset() -> None:
    """Cases 4 and 38: a dead letter with the offset of a marker would name a record that does not exist."""
    markers = [marker(1), marker(2)]
    bad = Batch(3, (b"x", [("kk", b"v")])).with_bad_header_name()
    traps = outcome({P0: [plain(0, b"a"), *markers, bad, plain(4, b"b")]})

    await traps.rounds(4)

    assert traps.handled[P0] == [b"a", b"b"]
    assert traps.dead == [(P0, 3, "client_parse")]


async def test_control_records_at_the_end_count_as_drained() -> None:
    """Case 38: nothing waits for offsets that are never delivered, and they are no lag."""
    traps = outcome({P0: [plain(0, b"a"), marker(1)]})

    await traps.rounds(2)

    assert traps.handled[P0] == [b"a"]
    assert traps.source.drained_to(P0) == traps.source.known_end(P0) == 2


async def test_each_failure_of_the_client_has_a_name_of_ours() -> None:
    """What a lane does next depends on it: bury one record, block a partition, or try again."""
    oversized = outcome({P0: [plain(0, b"x" * 2 * _FETCH_BYTES)]})
    with pytest.raises(UnreadableRecord) as told:
        await oversized.source.fetch([P0], max_records=1, timeout=0)
    assert told.value.offset == 0
    unparsable = outcome({P0: [Batch(0, (b"x", [("kk", b"v")])).with_bad_header_name()]})
    with pytest.raises(UnreadableRecord, match="not UTF-8") as told:
        await unparsable.source.fetch([P0], max_records=1, timeout=0)
    assert told.value.offset == 0
    rotten = outcome({P0: [plain(0, b"x").rotten()]})
    with pytest.raises(CorruptBatch):
        await rotten.source.fetch([P0], max_records=1, timeout=0)


async def test_no_dangerous_default_of_the_client_is_left() -> None:
    """Case 11: auto-commit, a reset to latest and uncommitted reads each lose or invent records."""
    consumer = AIOKafkaConsumer(**consumer_options(KafkaSettings(), group="g"))

    assert consumer._enable_auto_commit is False
    assert consumer._auto_offset_reset == "none"
    assert consumer._isolation_level == "read_committed"
    assert consumer._check_crcs is True
    assert consumer._key_deserializer is None
    assert consumer._value_deserializer is None
    assert consumer._max_poll_records is None
    assert consumer._max_poll_interval_ms >= 3_600_000
    assert consumer._session_timeout_ms > 3 * consumer._heartbeat_interval_ms
    await consumer.stop()


async def test_a_reader_outside_any_group_is_configured_as_carefully() -> None:
    """Case 11: a backfill reads through the same client."""
    live = consumer_options(KafkaSettings(), group="g")
    reader = consumer_options(KafkaSettings(instance_id="pod-1"), group=None)

    differing = {name for name in live if live[name] != reader[name]}

    assert differing == {"group_id"}
