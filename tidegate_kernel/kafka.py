"""Kafka through its client, made safe: dangerous defaults are stated and errors become ours.

This is the door; its neighbours `kafka_…` stand behind it. No other module imports the client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer

from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka_close import close_consumer
from tidegate_kernel.kafka_metadata import TopicIds
from tidegate_kernel.kafka_options import connection_options, consumer_options
from tidegate_kernel.kafka_reach import bounded, require_reachable, started
from tidegate_kernel.kafka_source import KafkaSource, RebalanceListener, client_partition
from tidegate_kernel.kafka_topics import create_topics
from tidegate_kernel.kafka_writer import KafkaWriter, start_producer
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import Assigned, Revoked

__all__ = [
    "KafkaSource",
    "KafkaWriter",
    "connection_options",
    "consumer_options",
    "create_topics",
    "join_group",
    "open_reader",
    "open_writer",
]


@asynccontextmanager
async def join_group(
    settings: KafkaSettings, *, group: str, topics: Sequence[str], on_assigned: Assigned, on_revoked: Revoked
) -> AsyncIterator[KafkaSource]:
    """Yields a member of `group`; leaves the group afterwards. Raises Misconfigured if Kafka cannot be reached."""
    consumer = AIOKafkaConsumer(**consumer_options(settings, group=group))
    consumer.subscribe(topics=list(topics), listener=RebalanceListener(on_assigned, on_revoked))
    async with started(consumer, settings, close=close_consumer):
        yield KafkaSource(consumer, TopicIds(consumer._client))


@asynccontextmanager
async def open_reader(settings: KafkaSettings, partitions: Iterable[TopicPartition] = ()) -> AsyncIterator[KafkaSource]:
    """Yields a reader of `partitions` outside any group, for backfills and for asking about offsets."""
    consumer = AIOKafkaConsumer(**consumer_options(settings, group=None))
    async with started(consumer, settings, close=close_consumer):
        wanted = [client_partition(p) for p in partitions]
        if wanted:
            consumer.assign(wanted)
        yield KafkaSource(consumer, TopicIds(consumer._client))


@asynccontextmanager
async def open_writer(settings: KafkaSettings, *, timeout: float = 10) -> AsyncIterator[KafkaWriter]:
    """Yields a writer whose calls last `timeout` seconds at most. Raises Misconfigured as `join_group`."""
    await require_reachable(settings, connection_options(settings))
    producer = await bounded(start_producer(settings), settings)
    writer = KafkaWriter(settings, producer, timeout=timeout)
    try:
        yield writer
    finally:
        await writer.close()
