"""The order service's producer: idempotent, a batch for each partition, at a steady rate."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import murmur2

from examples.shop.demo.messages import Message
from examples.shop.demo.story import Post, Step

PARTITIONS = 8
_BATCH_BYTES = 512 * 1024
# A few dozen records a partition: a producer under load, not a copy of a file.
_STEPS_A_ROUND = 200


@dataclass
class Sent:
    """What Kafka has acknowledged so far."""

    records: int = 0
    repeats: int = 0
    poison: int = 0
    is_complete: bool = False

    def add(self, steps: Sequence[Step]) -> None:
        self.records += len(steps)
        self.repeats += sum(step.is_repeat for step in steps)
        self.poison += sum(step.purchase is None for step in steps)


class Producer:
    """Sends steps to one topic; order per key is that of the calls."""

    def __init__(self, client: Any, topic: str, run_at: datetime) -> None:
        self._client, self._topic = client, topic
        self._post = Post(run_at)

    async def send(self, steps: Sequence[Step], *, per_second: float, sent: Sent) -> None:
        """All steps are acknowledged; at most `per_second` of them a second."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        for first in range(0, len(steps), _STEPS_A_ROUND):
            part = steps[first : first + _STEPS_A_ROUND]
            await self._send_now(part)
            sent.add(part)
            await asyncio.sleep(max(0.0, started + (first + len(part)) / per_second - loop.time()))
        sent.is_complete = True

    async def _send_now(self, steps: Sequence[Step]) -> None:
        batches: dict[int, Any] = defaultdict(self._client.create_batch)
        for step in steps:
            message = self._post.message(step, datetime.now(UTC))
            _append(batches[partition_of(message.key)], message)
        acknowledged = [
            await self._client.send_batch(batch, self._topic, partition=partition)
            for partition, batch in batches.items()
        ]
        await asyncio.gather(*acknowledged)


@asynccontextmanager
async def producing(bootstrap: str, topic: str, run_at: datetime) -> AsyncIterator[Producer]:
    """Yields a connected producer."""
    client = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, max_batch_size=_BATCH_BYTES)
    await client.start()
    try:
        yield Producer(client, topic, run_at)
    finally:
        await client.stop()


def partition_of(key: bytes | None) -> int:
    """Kafka's own rule for records with a key; those without lie in the first partition."""
    return 0 if key is None else (murmur2(key) & 0x7FFFFFFF) % PARTITIONS


def _append(batch: Any, message: Message) -> None:
    fitted = batch.append(
        timestamp=message.timestamp_ms, key=message.key, value=message.value, headers=list(message.headers)
    )
    if fitted is None:
        raise ValueError("a round of steps does not fit into a batch; send fewer at once")
