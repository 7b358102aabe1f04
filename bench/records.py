"""The benchmark's topics: binary CloudEvents with UUIDv7 ids, written once and read by every contestant."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from aiokafka import AIOKafkaProducer

from bench.workload import EVENT_TYPE, PARTITIONS, OrderPlaced
from tidegate_kernel.kafka import connection_options, create_topics, open_reader
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.uuid7 import uuid7

# A busy service writes some ten events a millisecond; what counts is that ids grow with time, as UUIDv7 do.
_IDS_PER_MS = 10
_BATCH_BYTES = 64 * 1024
_IN_FLIGHT = 8
# A repeat comes 2,500 records of its own partition later: in another batch at every size measured.
_REPEAT_DISTANCE = 2500 * PARTITIONS
_CHANNELS = ("web", "app", "store", "phone")
_CURRENCIES = ("EUR", "GBP", "SEK")


class Written(NamedTuple):
    """One record before it is sent."""

    timestamp: int
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


def new_orders(count: int) -> Iterator[Written]:
    """`count` orders, each with an id of its own, in the order of their times."""
    encode = msgspec.json.Encoder().encode
    start = int(time.time() * 1000) - count // _IDS_PER_MS
    for number, order in enumerate(orders(count)):
        millisecond = start + number // _IDS_PER_MS
        yield Written(millisecond, order.order_id.encode(), encode(order), _headers(millisecond))


def orders(count: int) -> Iterator[OrderPlaced]:
    """The same `count` orders each time."""
    for number in range(count):
        yield OrderPlaced(
            f"order-{number:010d}",
            f"customer-{number % 50_000:08d}",
            1000 + number % 90_000,
            1 + number % 7,
            _CURRENCIES[number % 3],
            _CHANNELS[number % 4],
            1 + number % 5,
        )


def half_repeated(written: Iterable[Written]) -> Iterator[Written]:
    """Every order twice, the second time `_REPEAT_DISTANCE` orders later: the producer that retries too much."""
    source = iter(written)
    while block := list(islice(source, _REPEAT_DISTANCE)):
        yield from block
        yield from block


def _headers(millisecond: int) -> list[tuple[str, bytes]]:
    at = datetime.fromtimestamp(millisecond / 1000, UTC)
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", str(uuid7(at)).encode()),
        ("ce_source", b"/bench/orders"),
        ("ce_type", EVENT_TYPE.encode()),
        ("ce_time", at.isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()),
        ("ce_tenantid", b"tenant-7"),
        ("ce_brandid", b"brand-1"),
        ("content-type", b"application/json"),
    ]


async def fill_topic(settings: KafkaSettings, topic: str, records: Iterable[Written]) -> int:
    """`topic` exists and holds `records`, dealt to its partitions in turn. Returns how many were written."""
    await create_topics(settings, {topic: PARTITIONS})
    producer = AIOKafkaProducer(**connection_options(settings), max_batch_size=_BATCH_BYTES, compression_type="lz4")
    await producer.start()
    try:
        return await _send_all(producer, topic, records)
    finally:
        await producer.stop()


async def held(settings: KafkaSettings, topic: str) -> int:
    """How many records the topic holds; 0 if there is no such topic."""
    async with open_reader(settings) as reader:
        partitions = await reader.partitions_of(topic)
        return sum(r.end - r.start for r in (await reader.ranges(partitions)).values())


async def _send_all(producer: Any, topic: str, records: Iterable[Written]) -> int:
    count, open_batches, sent = 0, [producer.create_batch() for _ in range(PARTITIONS)], []
    for count, record in enumerate(records, start=1):
        partition = count % PARTITIONS
        if _append(open_batches[partition], record):
            continue
        sent.append(await _send(producer, topic, partition, open_batches[partition]))
        open_batches[partition] = producer.create_batch()
        _append(open_batches[partition], record)
        if len(sent) >= _IN_FLIGHT * PARTITIONS:
            await sent.pop(0)
    for partition, batch in enumerate(open_batches):
        if batch.record_count():
            sent.append(await _send(producer, topic, partition, batch))
    for answer in sent:
        await answer
    return count


def _append(batch: Any, record: Written) -> bool:
    """Whether the batch had room for the record."""
    timestamp, key, value, headers = record
    return batch.append(timestamp=timestamp, key=key, value=value, headers=headers) is not None


async def _send(producer: Any, topic: str, partition: int, batch: Any) -> Any:
    return await producer.send_batch(batch, topic, partition=partition)
