"""The real Kafka as jobs of the suite meet it: the topics that they read, and what is in those they publish to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Self

from tests.integration.driven import Place
from tests.integration.test_relay import read_partition
from tidegate.jobs.relay import OutboxRelay
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import Record
from tidegate_kernel.kafka import create_topics, open_writer
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import Outgoing, RecordWriter

_WAITING = "SELECT count(*) FROM tidegate.outbox WHERE failed_at IS NULL"
_SET_ASIDE = "SELECT count(*) FROM tidegate.outbox WHERE failed_at IS NOT NULL"
_DEADLINE_SECONDS = 60


class Topics:
    """Topics of one test. What a job publishes is looked for here, and not in the outbox: a row that has left it may be
    made once more, and only whoever reads the topic sees both."""

    def __init__(self, settings: KafkaSettings, writer: RecordWriter, pool: Pool) -> None:
        self.settings, self._writer, self._pool = settings, writer, pool
        self._relay = OutboxRelay(pool, writer, SystemClock())

    @classmethod
    @asynccontextmanager
    async def at(cls, place: Place, partitions: Mapping[str, int]) -> AsyncIterator[Self]:
        """Yields the topics, made with so many partitions, and empty."""
        settings = KafkaSettings(bootstrap=place.stack.kafka_bootstrap)
        await create_topics(settings, partitions, replication=1)
        async with open_writer(settings) as writer:
            yield cls(settings, writer, place.pool)

    async def send(self, records: Sequence[Outgoing]) -> None:
        """They are in their topics."""
        assert not any(await self._writer.write(records))

    async def relay(self) -> None:
        """Whatever transactions have decided to publish is in its topic: what a worker does beside its jobs."""
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while await self._pool.fetchval(_WAITING):
                await self._relay.relay_once()
        assert await self._pool.fetchval(_SET_ASIDE) == 0

    async def letters(self, topic: str) -> int:
        """How many dead letters are in the only partition of `topic`: one that is told again has the id that it had."""
        return len({dict(record.headers)["tg-dlq-id"] for record in await self.read(topic)})

    async def read(self, topic: str) -> list[Record]:
        """All that is in the only partition of `topic`, a repeat as often as it is there."""
        await self.relay()
        return await read_partition(self.settings, topic)
