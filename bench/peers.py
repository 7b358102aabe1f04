"""The loops that Tidegate is measured against, each as short as somebody after speed would write it by hand.

They read the same records with the same client options, decode with the same msgspec model, build the same bulk body
and hand it to the same stub, or write to a real store as one would by hand. What they leave out and Tidegate does:
checks of the envelope (specversion, source, time, schema version, trace, lengths), typed failures, metrics, logs,
takeover by epoch, retries, dead letters, lanes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Protocol

import asyncpg
import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from asyncpg.pgproto import pgproto

from bench.workload import EVENT_TYPE, OrderPlaced, document
from inbox.identity import CONSTANT_BUCKET
from projections.writes import Upsert
from tidegate_kernel.kafka import consumer_options
from tidegate_kernel.queries import load_queries
from tidegate_kernel.settings import Settings

_CLAIM_AND_SETTLE = load_queries("inbox")["claim_and_settle"]
_TAKE = """
INSERT INTO tidegate.position (job, topic, partition, next_offset, topic_id, epoch)
VALUES (1, $1, $2, 0, gen_random_uuid(), 1)
"""
_ONE_ROW = "INSERT INTO tidegate.inbox (job, bucket, id) VALUES (1, $1, $2) ON CONFLICT DO NOTHING RETURNING id"
_ADVANCE = "UPDATE tidegate.position SET next_offset = $3 WHERE job = 1 AND topic = $1 AND partition = $2"
_JOB = "INSERT INTO tidegate.job (service, code, claim_rule) VALUES ('bench', 'peer', '')"
_MS_PER_DAY = 86_400_000


class Target(Protocol):
    """Where a loop's writes go."""

    def form(self, write: Upsert) -> Any:
        """A write as `send` takes it."""

    async def send(self, formed: Sequence[Any]) -> None:
        """They are in, by one request, and the stopwatch knows."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a loop is given. `group` is new for each run."""

    settings: Settings
    topic: str
    group: str
    batch_size: int
    target: Target


Loop = Callable[[Setting], Awaitable[None]]
"""Runs until it is cancelled."""


async def raw(given: Setting) -> None:
    """No dedupe, no Postgres: fetch, decode, bulk. The limit of what one Python thread can do here."""
    async with _consumer(given, enable_auto_commit=True) as consumer:
        while True:
            for records in (await consumer.getmany(timeout_ms=200, max_records=given.batch_size)).values():
                formed, _ = decode(records, given.target.form)
                await given.target.send(formed)


async def hand_written(given: Setting) -> None:
    """The same, and then Tidegate's own statement: claims and position in one round trip."""
    async with _consumer(given, enable_auto_commit=True) as consumer, _database(given, consumer) as connection:
        next_offsets: dict[int, int] = {}
        while True:
            for partition, records in (await consumer.getmany(timeout_ms=200, max_records=given.batch_size)).items():
                formed, ids = decode(records, given.target.form)
                await given.target.send(formed)
                position, after = next_offsets.get(partition.partition, 0), records[-1].offset + 1
                fence = (1, 0, given.topic, partition.partition, 1, position)
                row = await connection.fetchrow(_CLAIM_AND_SETTLE, *fence, *claims(ids), after)
                if not row["fenced"]:
                    raise RuntimeError("the position moved")
                next_offsets[partition.partition] = after


async def row_at_a_time(given: Setting) -> None:
    """An inbox as it is often written: a statement for each event, one transaction and one bulk request a batch."""
    async with _consumer(given, enable_auto_commit=True) as consumer, _database(given, consumer) as connection:
        while True:
            for partition, records in (await consumer.getmany(timeout_ms=200, max_records=given.batch_size)).items():
                formed, ids = decode(records, given.target.form)
                await given.target.send(formed)
                async with connection.transaction():
                    for bucket, key in zip(*claims(ids), strict=True):
                        await connection.fetchval(_ONE_ROW, bucket, key)
                    await connection.execute(_ADVANCE, given.topic, partition.partition, records[-1].offset + 1)


async def naive(given: Setting) -> None:
    """The consumer of many a tutorial: record by record, a transaction, a document and a Kafka commit each."""
    async with _consumer(given, enable_auto_commit=False) as consumer, _database(given, consumer) as connection:
        while True:
            record = await consumer.getone()
            formed, ids = decode([record], given.target.form)
            async with connection.transaction():
                buckets, keys = claims(ids)
                if await connection.fetchval(_ONE_ROW, buckets[0], keys[0]) is not None:
                    await given.target.send(formed)
                await connection.execute(_ADVANCE, given.topic, record.partition, record.offset + 1)
            await consumer.commit({TopicPartition(record.topic, record.partition): record.offset + 1})


_decode_order = msgspec.json.Decoder(OrderPlaced).decode
_TYPE = EVENT_TYPE.encode()


def decode(records: Sequence[Any], form: Callable[[Upsert], Any]) -> tuple[list[Any], list[bytes]]:
    """What their events write, formed, and the ids of the events."""
    formed, ids = [], []
    for record in records:
        headers = dict(record.headers)
        if headers["ce_type"] == _TYPE:
            formed.append(form(document(_decode_order(record.value), headers["ce_tenantid"].decode())))
            ids.append(headers["ce_id"])
    return formed, ids


_days: dict[int, date] = {}


def claims(ids: Sequence[bytes]) -> tuple[list[date], list[pgproto.UUID]]:
    """Buckets and ids of the distinct event ids, as the statement takes them."""
    buckets, keys = [], []
    for spelled in dict.fromkeys(ids):
        text = spelled.decode()
        day = int(text[:8] + text[9:13], 16) // _MS_PER_DAY
        if day not in _days:
            _days[day] = CONSTANT_BUCKET + timedelta(days=day)
        buckets.append(_days[day])
        keys.append(pgproto.UUID(text))
    return buckets, keys


@asynccontextmanager
async def _consumer(given: Setting, *, enable_auto_commit: bool) -> AsyncIterator[Any]:
    options = consumer_options(given.settings.kafka, group=given.group)
    options |= {"auto_offset_reset": "earliest", "enable_auto_commit": enable_auto_commit}
    consumer = AIOKafkaConsumer(given.topic, **options)
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


@asynccontextmanager
async def _database(given: Setting, consumer: Any) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(given.settings.postgres_dsn.get_secret_value())
    try:
        await connection.execute(_JOB)
        for partition in consumer.partitions_for_topic(given.topic):
            await connection.execute(_TAKE, given.topic, partition)
        yield connection
    finally:
        await connection.close()
