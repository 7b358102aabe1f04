"""Records into Kafka: every call is bounded, and every record's fate is told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from tidegate_kernel.kafka_close import close_producer
from tidegate_kernel.kafka_connection import guard_connections
from tidegate_kernel.kafka_life import is_producer_alive
from tidegate_kernel.kafka_options import producer_options
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import MessageTooLarge, NotAcknowledged, Outgoing


class KafkaWriter:
    """`RecordWriter` on the real client: idempotent, acknowledged by all in-sync replicas, every call bounded.

    An idempotent client repeats a batch for ever, and a batch that the broker refuses leaves a hole in the sequence
    numbers that fails the partition's later ones. So after a failure the client is dropped with all it still holds, and
    the next call starts another: what a call reports as not acknowledged is not sent after the call has returned
    (but for what is on the wire at that moment).
    """

    def __init__(self, settings: KafkaSettings, producer: Any, *, timeout: float = 10) -> None:
        self._settings = settings
        self._producer: Any | None = producer
        self._timeout = timeout

    async def write(self, records: Sequence[Outgoing]) -> Sequence[NotAcknowledged | None]:
        outcomes: list[_Sent] = []
        late = NotAcknowledged(f"kafka at {self._settings.bootstrap} did not confirm within {self._timeout:g} s")
        try:
            async with asyncio.timeout(self._timeout):
                if self._producer is not None and not is_producer_alive(self._producer):
                    await self._drop()
                await self._write(records, outcomes)
        except TimeoutError:
            pass
        except (KafkaError, OSError) as error:
            late = NotAcknowledged(f"kafka at {self._settings.bootstrap}: {type(error).__name__}: {error}")
        finally:
            if any(isinstance(o, asyncio.Future) and not _is_written(o) for o in outcomes) or len(outcomes) < len(
                records
            ):
                await self._drop()
        return [_told(outcome, late) for outcome in [*outcomes, *[late] * (len(records) - len(outcomes))]]

    async def _write(self, records: Sequence[Outgoing], outcomes: list[_Sent]) -> None:
        if self._producer is None:
            self._producer = await start_producer(self._settings)
        producer = self._producer
        names = list(dict.fromkeys(record.topic for record in records))
        topics = dict(zip(names, await asyncio.gather(*(_partitions(producer, name) for name in names)), strict=True))
        for record in records:
            outcomes.append(await _send(producer, record, topics[record.topic]))  # noqa: PERF401  # kept when cut off
        futures = [outcome for outcome in outcomes if isinstance(outcome, asyncio.Future)]
        if futures:
            await asyncio.wait(futures)

    async def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await close_producer(producer, flush_seconds=0)

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await close_producer(producer, flush_seconds=self._timeout)


_Sent = NotAcknowledged | asyncio.Future[Any]

# A topic that exists is known after one round trip; one that was just created, a little later. The client's own wait
# asks ten times a second for half a minute, and logs an error each time.
_ASK_FOR_TOPIC_AFTER_SECONDS = (0.0, 0.1, 0.3, 0.6)


async def _partitions(producer: Any, topic: str) -> frozenset[int] | NotAcknowledged:
    client = producer.client
    known = client.cluster.partitions_for_topic(topic)
    for pause in _ASK_FOR_TOPIC_AFTER_SECONDS if known is None else ():
        await asyncio.sleep(pause)
        await client.add_topic(topic)
        await client.force_metadata_update()
        known = client.cluster.partitions_for_topic(topic)
        if known is not None or topic in client.cluster.unauthorized_topics:
            break
    if known is not None:
        return frozenset(known)
    client._topics.discard(topic)  # else every later refresh asks for it again
    if topic in client.cluster.unauthorized_topics:
        return NotAcknowledged(f"topic {topic!r}: these credentials may not write it; grant WRITE and DESCRIBE")
    return NotAcknowledged(f"topic {topic!r}: the broker does not know it; create it")


async def _send(producer: Any, record: Outgoing, partitions: frozenset[int] | NotAcknowledged) -> _Sent:
    """Hands `record` to the client, in order; the future ends with the broker's answer."""
    if isinstance(partitions, NotAcknowledged):
        return partitions
    try:
        sent: asyncio.Future[Any] = (
            await _send_empty(producer, record, partitions)
            if record.key is None and record.value is None
            else await producer.send(
                record.topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                timestamp_ms=record.timestamp,
                partition=record.partition,
            )
        )
    except MessageSizeTooLargeError as error:
        return MessageTooLarge(str(error))
    return sent


async def _send_empty(producer: Any, record: Outgoing, partitions: frozenset[int]) -> Any:
    # Kafka takes a record without key and value; the client's `send` asserts against it, its batch call does not.
    batch = producer.create_batch()
    batch.append(timestamp=record.timestamp, key=None, value=None, headers=list(record.headers))
    partition = random.choice(sorted(partitions)) if record.partition is None else record.partition
    return await producer.send_batch(batch, record.topic, partition=partition)


def _is_written(sent: asyncio.Future[Any]) -> bool:
    return sent.done() and not sent.cancelled() and sent.exception() is None


def _told(outcome: _Sent, late: NotAcknowledged) -> NotAcknowledged | None:
    if isinstance(outcome, NotAcknowledged):
        return outcome
    if not outcome.done():
        outcome.cancel()
        return late
    error = outcome.exception()
    if isinstance(error, MessageSizeTooLargeError | RecordListTooLargeError):
        return MessageTooLarge(f"the broker refuses it ({type(error).__name__})")
    return None if error is None else NotAcknowledged(f"{type(error).__name__}: {error}")


async def start_producer(settings: KafkaSettings) -> Any:
    """A client that is connected. One that cannot be, or is cut off meanwhile, leaves nothing open behind."""
    producer = AIOKafkaProducer(**producer_options(settings))
    guard_connections(producer.client)
    async with AsyncExitStack() as unless_started:
        unless_started.push_async_callback(close_producer, producer, flush_seconds=0)
        await producer.start()
        unless_started.pop_all()
    return producer
