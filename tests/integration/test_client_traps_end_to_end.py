"""Records that the Kafka client cannot hand over, from Kafka through the whole loop to rows in Postgres."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import asyncpg
import msgspec
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.record.util import calc_crc32c
from pydantic import SecretStr
from structlog.testing import capture_logs

from consumers.lags import lags_of
from consumers.loop import ConsumerLoop, Join
from tidegate import App, CloudEvents, ConsumerJob, Context, Event, Json, Topic, handle, on
from tidegate.assembly import assemble, live_loop
from tidegate.jobs.publishing import cloud_event
from tidegate.jobs.relay import OutboxRelay
from tidegate.resources import Resources
from tidegate.stack.names import StackAddresses
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel import logs
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import create_topics, join_group, open_writer
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import KafkaSettings, Settings
from tidegate_kernel.source import CorruptBatch, Outgoing, SourceFailure, UnreadableRecord

_DEADLINE_SECONDS = 30.0


class Noted(msgspec.Struct):
    n: int


@dataclass(frozen=True)
class Note:
    id: str
    n: int


async def note(command: Note, ctx: Context[None]) -> None:
    await ctx.db.execute("INSERT INTO effect (id, n) VALUES ($1, $2)", command.id, command.n)


def noted(topic: str, n: int, *, partition: int = 0, headers: dict[str, str] | None = None) -> Outgoing:
    attributes = {"id": f"e{partition}-{n}", "source": "tests", "type": "noted"}
    record = cloud_event(topic, {"n": n}, attributes=attributes, headers=headers)
    return Outgoing(topic, record.value, record.key, record.headers, partition=partition)


@dataclass(frozen=True)
class Service:
    """An application with one consumer of one topic."""

    pool: Pool
    dsn: str
    topic: str

    async def loop(self, join: Join) -> ConsumerLoop:
        topic = Topic(self.topic, format=Json(), envelope=CloudEvents())
        route = on("noted", Noted, to_note)
        job = ConsumerJob(code="notes", topics=[topic], unlisted="skip", runbook="-", events=[route])
        app = App(service="traps", owner="tests", jobs=[job], handlers=[handle(Note, note)])
        settings = Settings(postgres_dsn=SecretStr(self.dsn), drain_timeout=timedelta(seconds=5))
        resources = Resources(settings, self.pool, SystemClock(), Metrics(), ThreadPoolExecutor(1), "worker")
        return live_loop(await assemble(app, job, resources, sink=None), join, SystemClock())

    async def positions(self) -> dict[int, int]:
        rows = await self.pool.fetch("SELECT partition, next_offset FROM tidegate.position")
        return {row["partition"]: row["next_offset"] for row in rows}

    async def effects(self) -> list[str]:
        return [row["id"] for row in await self.pool.fetch("SELECT id FROM effect ORDER BY id")]

    async def dead_letters(self) -> list[asyncpg.Record]:
        return await self.pool.fetch('SELECT * FROM tidegate.dead_letter ORDER BY partition, "offset"')


def to_note(event: Event[Noted]) -> Note:
    return Note(event.id, event.data.n)


@pytest.fixture
def service(pool: Pool, database: str, unique_name: Callable[[str], str]) -> Service:
    return Service(pool, database, unique_name("traps"))


@pytest.fixture
def broker(service: Service) -> MemoryBroker:
    broker = MemoryBroker()
    broker.create_topic(service.topic, 2)
    return broker


@asynccontextmanager
async def running(service: Service, join: Join) -> AsyncIterator[ConsumerLoop]:
    """The loop runs inside and is stopped gracefully afterwards."""
    loop = await service.loop(join)
    task = asyncio.create_task(loop.run())
    try:
        yield loop
    finally:
        loop.stop()
        await task


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while not await condition():
            await asyncio.sleep(0.02)  # rows in a database tell nobody of their change


async def stands_at(service: Service, positions: dict[int, int]) -> None:
    """Returns once all these partitions have reached exactly these positions."""

    async def condition() -> bool:
        found = await service.positions()
        assert all(found.get(p, 0) <= offset for p, offset in positions.items()), found
        return found == positions

    await until(condition)


def joined(broker: MemoryBroker, topic: str) -> Join:
    return partial(broker.join, "traps.notes", [topic])


def fill(broker: MemoryBroker, topic: str, *numbers: int, partition: int = 0) -> None:
    for n in numbers:
        broker.append(noted(topic, n, partition=partition))


def break_at(broker: MemoryBroker, topic: str, offset: int, failure: SourceFailure) -> None:
    log = broker.log(TopicPartition(topic, 0))
    assert log is not None
    log.faults[offset] = failure


@pytest.mark.parametrize("bad", [0, 3, 4])
async def test_an_unreadable_record_is_one_dead_letter_and_its_neighbours_are_handled_once(
    service: Service, broker: MemoryBroker, bad: int
) -> None:
    """Cases 1 and 6: dead letter exactly once, at the first attempt, and the position passes all five."""
    fill(broker, service.topic, 0, 1, 2, 3, 4)
    fill(broker, service.topic, 0, partition=1)
    break_at(broker, service.topic, bad, UnreadableRecord("the name of a header is not UTF-8"))

    with capture_logs() as logged:
        async with running(service, joined(broker, service.topic)):
            await stands_at(service, {0: 5, 1: 1})

    (letter,) = await service.dead_letters()
    assert (letter["topic"], letter["partition"], letter["offset"]) == (service.topic, 0, bad)
    assert (letter["reason"], letter["attempts"], letter["value"]) == ("client_parse", 1, None)
    assert await service.effects() == sorted([*(f"e0-{n}" for n in range(5) if n != bad), "e1-0"])
    assert sum(line["event"] == logs.DEAD_LETTER for line in logged) == 1


async def test_an_oversized_record_is_a_dead_letter_and_never_passed_over(
    service: Service, broker: MemoryBroker
) -> None:
    """Case 5: the client raises once, its own position is already behind the record."""
    fill(broker, service.topic, 0, 1, 2, 3, 4, 5, 6)
    break_at(broker, service.topic, 5, UnreadableRecord("record above the fetch limit", offset=5))

    async with running(service, joined(broker, service.topic)):
        await stands_at(service, {0: 7, 1: 0})

    assert [(letter["offset"], letter["reason"]) for letter in await service.dead_letters()] == [(5, "client_parse")]
    assert await service.effects() == [f"e0-{n}" for n in (0, 1, 2, 3, 4, 6)]


async def test_a_failing_partition_costs_its_neighbour_nothing(service: Service, broker: MemoryBroker) -> None:
    """Cases 2 and 3: what was drained is handled once, the corrupt batch blocks its partition, the other goes on."""
    fill(broker, service.topic, 0, 1, 2)
    fill(broker, service.topic, 0, 1, partition=1)
    break_at(broker, service.topic, 2, CorruptBatch("invalid CRC"))

    async with running(service, joined(broker, service.topic)) as loop:
        await stands_at(service, {0: 2, 1: 2})
        fill(broker, service.topic, 2, partition=1)
        await stands_at(service, {0: 2, 1: 3})
        await until(partial(_is_blocked, loop, TopicPartition(service.topic, 0)))
        assert loop.source is not None
        told = lags_of(loop.holdings, loop.source, SystemClock().now())
        assert {each.partition: each.is_blocked for each in told} == {0: True, 1: False}

    assert await service.effects() == ["e0-0", "e0-1", "e1-0", "e1-1", "e1-2"]
    assert await service.dead_letters() == []


async def _is_blocked(loop: ConsumerLoop, partition: TopicPartition) -> bool:
    held = loop.holdings.get(partition)
    return held is not None and "invalid CRC; " in (held.blocked or "")


async def test_retention_that_overtakes_a_running_job_blocks_the_partition_alone(
    service: Service, broker: MemoryBroker
) -> None:
    """G1: what retention took is told, never jumped over; asking for it again and again would stall the others too."""
    fill(broker, service.topic, 0)
    async with running(service, joined(broker, service.topic)) as loop:
        await stands_at(service, {0: 1, 1: 0})
        lost = TopicPartition(service.topic, 0)
        log = broker.log(lost)
        assert log is not None
        log.skip(4)
        log.trim(5)  # before the loop has looked again
        fill(broker, service.topic, 0, partition=1)

        await stands_at(service, {0: 1, 1: 1})

        async def is_blocked() -> bool:
            held = loop.holdings.get(lost)
            return held is not None and held.blocked is not None and "removed offsets 1 to 4" in held.blocked

        await until(is_blocked)


async def test_holes_are_passed_and_nothing_waits_for_them(service: Service, broker: MemoryBroker) -> None:
    """Case 38: delivered offsets 0, 1, 4, 9: the position is 10."""
    log = broker.log(TopicPartition(service.topic, 0))
    assert log is not None
    fill(broker, service.topic, 0, 1)
    log.skip(2)
    fill(broker, service.topic, 4)
    log.skip(4)
    fill(broker, service.topic, 9)

    async with running(service, joined(broker, service.topic)):
        await stands_at(service, {0: 10, 1: 0})

    assert await service.effects() == ["e0-0", "e0-1", "e0-4", "e0-9"]


async def test_half_a_surrogate_pair_is_one_whole_dead_letter(service: Service, broker: MemoryBroker) -> None:
    """Case 31: text that no UTF-8 can hold becomes one letter, which is stored, logged and published byte-exact; its
    neighbours are handled."""
    dlq = "traps.notes.dlq"
    broker.create_topic(dlq)
    odd = noted(service.topic, 1)
    odd = replace(odd, value=rb'{"n":1,"name":"\ud83d"}')
    for record in (noted(service.topic, 0), odd, noted(service.topic, 2)):
        broker.append(record)

    with capture_logs() as logged:
        async with running(service, joined(broker, service.topic)):
            await stands_at(service, {0: 3, 1: 0})
    while await OutboxRelay(service.pool, broker.writer(), SystemClock()).relay_once():
        pass

    assert [(letter["offset"], letter["reason"]) for letter in await service.dead_letters()] == [(1, "invalid_text")]
    assert [record.value for record in broker.records(dlq)] == [odd.value]
    assert await service.effects() == ["e0-0", "e0-2"]
    assert json.dumps(logged, default=str).encode()


# The same on a real broker.


@pytest.fixture
async def kafka(service: Service, stack: StackAddresses) -> KafkaSettings:
    settings = KafkaSettings(bootstrap=stack.kafka_bootstrap)
    await create_topics(settings, {service.topic: 2}, replication=1)
    return settings


def joined_really(kafka: KafkaSettings, topic: str) -> Join:
    return lambda assigned, revoked: join_group(
        kafka, group=f"{topic}.notes", topics=[topic], on_assigned=assigned, on_revoked=revoked
    )


async def send_one_batch(
    kafka: KafkaSettings, records: Sequence[Outgoing], *, bad_name: bool, compression: str | None = None
) -> None:
    """All records in one batch; the header name `kk` becomes bytes that are no UTF-8, under a right checksum."""
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, compression_type=compression, linger_ms=0)
    await producer.start()
    try:
        batch = producer.create_batch()
        for record in records:
            batch.append(key=record.key, value=record.value, timestamp=None, headers=list(record.headers))
        batch.close()
        if bad_name:
            raw = bytearray(batch._build().replace(b"kk", b"\xc3\x28"))
            raw[17:21] = struct.pack(">I", calc_crc32c(bytes(raw[21:])))
            batch._buffer = raw
        await (await producer.send_batch(batch, records[0].topic, partition=0))
    finally:
        await producer.stop()


async def test_a_header_name_that_is_no_utf8_costs_only_its_own_record(service: Service, kafka: KafkaSettings) -> None:
    """Cases 2 and 4 on a real broker: the client fails on the whole batch, and again after every seek; what it had
    drained from the other partition before is handled all the same."""
    records = [noted(service.topic, n, headers={"kk": "v"} if n == 2 else None) for n in range(5)]
    await send_one_batch(kafka, records, bad_name=True)
    async with open_writer(kafka) as writer:
        await writer.write([noted(service.topic, n, partition=1) for n in range(3)])

    async with running(service, joined_really(kafka, service.topic)):
        await stands_at(service, {0: 5, 1: 3})

    (letter,) = await service.dead_letters()
    assert (letter["topic"], letter["partition"], letter["offset"]) == (service.topic, 0, 2)
    assert (letter["reason"], letter["attempts"]) == ("client_parse", 1)
    assert letter["value"] == records[2].value, "G7: it was read around the client, and is kept whole"
    names = await service.pool.fetchval("SELECT header_names FROM tidegate.dead_letter")
    assert b"\xc3\x28" in b"".join(names)
    copy = await service.pool.fetchrow("SELECT value, header_names, header_values FROM tidegate.outbox")
    assert copy is not None
    told = dict(zip(copy["header_names"], copy["header_values"], strict=True))
    assert (copy["value"], told[b"tg-dlq-payload"]) == (records[2].value, b"intact")
    assert "UTF-8" in letter["error_message"]
    assert await service.effects() == ["e0-0", "e0-1", "e0-3", "e0-4", "e1-0", "e1-1", "e1-2"]


async def committed(kafka: KafkaSettings, topic: str) -> dict[int, int]:
    """What the group says, by partition."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        offsets = await admin.list_consumer_group_offsets(f"{topic}.notes")
    finally:
        await admin.close()
    return {partition.partition: told.offset for partition, told in offsets.items()}


async def test_values_that_are_no_text_cost_only_their_own_records(service: Service, kafka: KafkaSettings) -> None:
    """Cases 1 and 6 on a real broker: a batch of five with undecodable values at its head and in it. The client has no
    deserializer to fail in: no fetch fails, each is one dead letter at its first attempt, told twice at most, and the
    group's offset is 5."""
    records = [noted(service.topic, n) for n in range(5)]
    for bad in (0, 3):
        records[bad] = replace(records[bad], value=b"\xff\xfe")
    await send_one_batch(kafka, records, bad_name=False)

    with capture_logs() as logged:
        async with running(service, joined_really(kafka, service.topic)):
            await stands_at(service, {0: 5, 1: 0})

    letters = [(letter["offset"], letter["reason"], letter["attempts"]) for letter in await service.dead_letters()]
    assert letters == [(0, "undecodable", 1), (3, "undecodable", 1)]
    assert await service.effects() == ["e0-1", "e0-2", "e0-4"]
    assert [line for line in logged if line["event"] == logs.FETCH_FAILED] == []
    assert sum(line.get("offset") == 3 for line in logged) <= 2
    assert await committed(kafka, service.topic) == {0: 5, 1: 0}


async def test_a_record_above_the_fetch_limit_arrives_from_a_broker_of_today(
    service: Service, kafka: KafkaSettings
) -> None:
    """Case 5 on a real broker: since 0.10.1 it sends a batch whole, however small the client's limit; nothing is passed
    over, and its neighbours come with it."""
    small = kafka.model_copy(update={"max_partition_fetch_bytes": 1024, "fetch_max_bytes": 1024})
    giant = noted(service.topic, 1, headers={"filler": "x" * 200_000})
    for record in (noted(service.topic, 0), giant, noted(service.topic, 2)):
        await send_one_batch(kafka, [record], bad_name=False)

    async with running(service, joined_really(small, service.topic)):
        await stands_at(service, {0: 3, 1: 0})

    assert await service.effects() == ["e0-0", "e0-1", "e0-2"]
    assert await service.dead_letters() == []


async def test_markers_and_aborted_records_of_real_transactions_are_passed(
    service: Service, kafka: KafkaSettings
) -> None:
    """Case 38 on a real broker: only committed events act, and the position ends behind the last of them."""
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=f"{service.topic}-producer")
    await producer.start()
    for n, is_committed in ((0, True), (1, False), (2, True)):
        await producer.begin_transaction()
        record = noted(service.topic, n)
        await producer.send_and_wait(service.topic, record.value, partition=0, headers=list(record.headers))
        await (producer.commit_transaction() if is_committed else producer.abort_transaction())
    await producer.stop()

    async with running(service, joined_really(kafka, service.topic)) as loop:
        await stands_at(service, {0: 5, 1: 0})
        held = loop.holdings.get(TopicPartition(service.topic, 0))
        assert held is not None

        async def is_caught_up() -> bool:
            assert loop.source is not None
            return held.is_drained(loop.source)

        await until(is_caught_up)
        assert loop.source is not None
        lags = {told.partition: told.lag for told in lags_of(loop.holdings, loop.source, SystemClock().now())}

    assert await service.effects() == ["e0-0", "e0-2"]
    assert lags[0] == (0, 0.0)
