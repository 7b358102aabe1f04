"""The order service's producer: idempotent, a batch for each partition, at a steady rate."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import murmur2

from examples.shop.demo.messages import Kind, Message
from examples.shop.demo.story import Post, Step

PARTITIONS = 8
_BATCH_BYTES = 512 * 1024
# A few dozen records a partition: a producer under load, not a copy of a file.
_STEPS_A_ROUND = 200


@dataclass(frozen=True, slots=True)
class First:
    """The first record of a partition that tells of an order's state."""

    offset: int
    order: str


@dataclass
class Sent:
    """What Kafka has acknowledged so far."""

    records: int = 0
    repeats: int = 0
    poison: int = 0
    is_complete: bool = False
    _firsts: dict[int, list[First]] = field(default_factory=lambda: defaultdict(list))
    _told_of: set[str] = field(default_factory=set)

    def add(self, steps: Sequence[Step]) -> None:
        self.records += len(steps)
        self.repeats += sum(step.is_repeat for step in steps)
        self.poison += sum(step.purchase is None for step in steps)

    def place(self, partition: int, base_offset: int, steps: Sequence[Step]) -> None:
        """`steps` lie in the partition from `base_offset` on."""
        for offset, step in enumerate(steps, start=base_offset):
            if step.purchase is None or step.kind is Kind.VIEWED or step.purchase.order_id in self._told_of:
                continue
            self._told_of.add(step.purchase.order_id)
            self._firsts[partition].append(First(offset, step.purchase.order_id))

    def firsts_from(self, partition: int, offset: int) -> Sequence[First]:
        """Where orders are told of for the first time, from `offset` on, in the log's order."""
        firsts = self._firsts[partition]
        return firsts[bisect_left(firsts, offset, key=attrgetter("offset")) :]


class Producer:
    """Sends steps to one topic; order per key is that of the calls."""

    def __init__(self, client: Any, topic: str, post: Post) -> None:
        self._client, self._topic, self._post = client, topic, post

    async def send(self, steps: Sequence[Step], *, per_second: float, sent: Sent) -> None:
        """All steps are acknowledged; at most `per_second` of them a second."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        for first in range(0, len(steps), _STEPS_A_ROUND):
            part = steps[first : first + _STEPS_A_ROUND]
            await self._send_now(part, sent)
            sent.add(part)
            await asyncio.sleep(max(0.0, started + (first + len(part)) / per_second - loop.time()))
        sent.is_complete = True

    async def _send_now(self, steps: Sequence[Step], sent: Sent) -> None:
        batches: dict[int, Any] = defaultdict(self._client.create_batch)
        parts: dict[int, list[Step]] = defaultdict(list)
        for step in steps:
            message = self._post.message(step, datetime.now(UTC))
            partition = partition_of(message.key)
            _append(batches[partition], message)
            parts[partition].append(step)
        futures = [
            await self._client.send_batch(batch, self._topic, partition=partition)
            for partition, batch in batches.items()
        ]
        for partition, acknowledged in zip(batches, await asyncio.gather(*futures), strict=True):
            sent.place(partition, acknowledged.offset, parts[partition])


@asynccontextmanager
async def producing(bootstrap: str, topic: str, post: Post) -> AsyncIterator[Producer]:
    """Yields a connected producer."""
    client = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, max_batch_size=_BATCH_BYTES)
    await client.start()
    try:
        yield Producer(client, topic, post)
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
