"""Jobs of the shop on topics, as the shared suite drives them: real Kafka, real Postgres, real stores."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Self
from uuid import UUID

from pydantic import SecretStr

from dlq.runs import RunKind
from examples.shop.app import shop
from projections.clickhouse import ClickHouse
from projections.clickhouse_connection import Connection
from projections.elasticsearch import Elasticsearch
from projections.elasticsearch_sink import connect
from projections.sink import Sink
from tests.integration.clockwork import until
from tests.integration.driven import Driven, Place
from tests.integration.driven_kafka import Topics
from tests.integration.road import Road, SentRecord
from tidegate import App
from tidegate.assembly import JobParts, assemble, live_loop
from tidegate.jobs.declaration import Job
from tidegate.jobs.replays import Asked
from tidegate.migrations.phases import Phase
from tidegate.migrations.service import ServiceMigrations
from tidegate.replaying import ReplayOptions, run_replay
from tidegate.resources import Resources
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import StaleOwner
from tidegate_kernel.kafka import join_group
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.permissions import Actor
from tidegate_kernel.settings import KafkaSettings, Settings
from tidegate_kernel.source import Assigned, Outgoing, RecordSource, Revoked

_CENTS = 100
"""The total of every order: sums say how many acted."""
_PARTITIONS = 2
_REWIND = "UPDATE tidegate.position SET next_offset = 0"
_POSITIONS = "SELECT count(*) FROM tidegate.position"


class TopicDriven(Driven):
    """Items are orders of a customer of their own; a bad one is no JSON."""

    is_mended_by_work = False

    def __init__(self, place: Place, app: App, topics: Topics, resources: Resources, *, sink: Sink | None) -> None:
        self.place, self.app, self.topics, self.resources, self.sink = place, app, topics, resources, sink
        self.job = app.jobs[0]
        self.offered: list[Outgoing] = []
        self.written = 0

    @classmethod
    @asynccontextmanager
    async def at(cls, place: Place) -> AsyncIterator[Self]:
        declared, settings = shop(place.prefix), cls._settings(place)
        job = replace(declared.job(cls.code), batch_size=5)
        app = replace(declared, jobs=[job], clock_jobs=[], lifespan=None)
        partitions = {job.topics[0].name: _PARTITIONS, app.dlq_topic(job.job_code): 1}
        assert app.migrations is not None
        await ServiceMigrations(app.service, app.migrations).apply(place.dsn, Phase.ALL)
        async with AsyncExitStack() as opened:
            topics = await opened.enter_async_context(Topics.at(place, partitions))
            threads = opened.enter_context(ThreadPoolExecutor(1))
            resources = Resources(settings, place.pool, SystemClock(), Metrics(), threads, "tests", object())
            opened.push_async_callback(_drop, job, settings)
            yield cls(place, app, topics, resources, sink=await _open_sink(opened, job, settings))

    async def offer(self, count: int) -> None:
        for _ in range(count):
            number = len(self.offered)
            order = {
                "order_id": f"o{number:03}",
                "customer_id": f"c{number:03}",
                "purchased_on": "1997-01-01",
                "discs": 1,
                "total_cents": _CENTS,
                "version": 1,
            }
            self._offer(json.dumps(order).encode())
        await self._send(self.offered[-count:])

    async def offer_bad(self) -> None:
        self._offer(b"no json")
        await self._send(self.offered[-1:])

    async def mend(self) -> None:
        """Nothing mends a record; somebody edits or discards its letter."""

    async def work(self) -> None:
        async with self._consumer() as consumer:
            await self._until(consumer, self._has_settled_all)
        await self._show()

    async def trigger_again(self) -> None:
        await self._send(self.offered)
        await self.work()

    async def work_with_a_death(self) -> None:
        """The first is cut off behind its first batch; the last finds every position at the beginning."""
        with suppress(asyncio.CancelledError):
            async with self._consumer() as consumer:
                await self._until(consumer, self._has_settled_some)
                consumer.cancel()
        await self.topics.relay()
        await self.work()
        await self.place.pool.execute(_REWIND)
        await self.work()

    async def work_stopped(self) -> None:
        async with self._consumer() as consumer:
            await self._until(consumer, self._has_settled_some)
        await self._show()

    async def contend(self) -> int:
        """Both have taken over partition 0 of a topic, one after the other, and have the same records in hand."""
        elsewhere = replace(self.job, topics=[replace(self.job.topics[0], name="orders")])
        records = [
            SentRecord(offset, sent.value, list(sent.headers), sent.key) for offset, sent in enumerate(self.offered)
        ]
        roads = []
        for _ in range(2):
            parts = await assemble(self.app, elsewhere, self.resources, sink=self.sink)
            roads.append(Road(parts, self.place.pool))
            await roads[-1].take_over()
        finished = 0
        for road in roads:
            with suppress(StaleOwner):
                await road.handle(records)
                finished += 1
        await self._show()
        return finished

    async def by_hand(self, actor: Actor) -> None:
        letters: list[UUID] = [row["id"] for row in await self.place.pool.fetch("SELECT id FROM tidegate.dead_letter")]
        asked = Asked(code=self.job.job_code, kind=RunKind.REPLAY, letters=letters, digest="d", reason="a test")
        settings = self._settings(self.place)
        await run_replay(self.app, settings, asked, ReplayOptions(), actor=actor, stop=asyncio.Event())

    async def done(self) -> int:
        cents = await self.cents()
        assert cents % _CENTS == 0
        return cents // _CENTS

    @abstractmethod
    async def cents(self) -> int:
        """What readers see as the sum of all orders."""

    async def failed(self) -> int:
        found: int = await self.place.pool.fetchval("SELECT count(*) FROM tidegate.dead_letter")
        return found

    async def progress(self) -> int:
        found: int = await self.place.pool.fetchval(
            "SELECT coalesce(sum(next_offset), 0)::bigint FROM tidegate.position"
        )
        return found

    async def letters(self) -> int:
        return await self.topics.letters(self.app.dlq_topic(self.job.job_code))

    @asynccontextmanager
    async def _consumer(self) -> AsyncIterator[asyncio.Task[None]]:
        """A process that consumes; it is asked to stop at the end of the block, and has stopped after it."""
        loop = live_loop(await self._parts(), self._join, SystemClock())
        task = asyncio.create_task(loop.run(), name=self.code)
        try:
            yield task
        finally:
            loop.stop()
            await asyncio.wait([task])
        task.result()

    async def _parts(self) -> JobParts:
        return await assemble(self.app, self.job, self.resources, sink=self.sink)

    def _join(self, assigned: Assigned, revoked: Revoked) -> AbstractAsyncContextManager[RecordSource]:
        return join_group(
            self.topics.settings,
            group=self.app.group(self.job.job_code),
            topics=[topic.name for topic in self.job.topics],
            on_assigned=assigned,
            on_revoked=revoked,
        )

    async def _until(self, consumer: asyncio.Task[None], is_so: Callable[[], Awaitable[bool]]) -> None:
        """Raises what has ended the consumer before."""

        async def is_so_or_over() -> bool:
            return consumer.done() or await is_so()

        await until(is_so_or_over)
        if consumer.done():
            consumer.result()

    async def _has_settled_all(self) -> bool:
        has_begun: bool = await self.place.pool.fetchval(_POSITIONS) == _PARTITIONS
        return has_begun and await self.progress() == self.written

    async def _has_settled_some(self) -> bool:
        return await self.progress() > 0

    async def _show(self) -> None:
        """Readers see what was settled, and what was published is in its topic."""
        renderer = (await self._parts()).renderer
        if renderer is not None:
            await renderer.render_all()
        if self.sink is not None:
            await self.sink.refresh()
        await self.topics.relay()

    def _offer(self, value: bytes) -> None:
        number = len(self.offered)
        told = {
            "ce_specversion": "1.0",
            "ce_id": f"e{number}",
            "ce_source": "tests",
            "ce_type": "order.placed",
            "ce_tenantid": "aurora",
            "ce_brandid": "vinyl",
        }
        headers = [(name, text.encode()) for name, text in told.items()]
        self.offered.append(Outgoing(self.job.topics[0].name, value, b"o%d" % number, headers))

    async def _send(self, records: Sequence[Outgoing]) -> None:
        await self.topics.send(records)
        self.written += len(records)

    @staticmethod
    def _settings(place: Place) -> Settings:
        return Settings(
            postgres_dsn=SecretStr(place.dsn),
            kafka=KafkaSettings(bootstrap=place.stack.kafka_bootstrap),
            elasticsearch_url=place.stack.elasticsearch_url,
            clickhouse_url=place.stack.clickhouse_url,
        )

    async def _documents(self, field: str) -> int:
        sink = self.job.sink  # type: ignore[union-attr]  # it is a projection or a fold
        async with connect(self._settings(self.place)) as client:
            found = await client.search(index=sink.name, size=100)
        return sum(hit["_source"][field] for hit in found["hits"]["hits"])


class LedgerDriven(TopicDriven):
    code = "customer-ledger"

    async def cents(self) -> int:
        found: int = await self.place.pool.fetchval("SELECT coalesce(sum(cents), 0)::bigint FROM ledger")
        return found


class OrderSearchDriven(TopicDriven):
    code = "order-search"

    async def cents(self) -> int:
        return await self._documents("total_cents")


class CustomerValueDriven(TopicDriven):
    code = "customer-value"

    async def cents(self) -> int:
        return await self._documents("cents")


class RevenueDriven(TopicDriven):
    code = "revenue-by-day"

    async def cents(self) -> int:
        connection = Connection(self._settings(self.place))
        try:
            client: Any = await connection.client()
            name = self.job.sink.name  # type: ignore[union-attr]  # it is a projection
            return int((await client.query(f"SELECT sum(cents) FROM {name}")).result_rows[0][0])
        finally:
            await connection.close()


async def _open_sink(opened: AsyncExitStack, job: Job, settings: Settings) -> Sink | None:
    declared = getattr(job, "sink", None)
    if declared is None:
        return None
    sink: Sink = await opened.enter_async_context(declared.open(settings))
    await sink.prepare()
    return sink


async def _drop(job: Job, settings: Settings) -> None:
    sink = getattr(job, "sink", None)
    if isinstance(sink, Elasticsearch):
        async with connect(settings) as elasticsearch:
            await elasticsearch.indices.delete(index=sink.physical, ignore_unavailable=True)
            with suppress(Exception):
                await elasticsearch.indices.delete_index_template(name=f"tidegate-{sink.physical}")
    elif isinstance(sink, ClickHouse):
        connection = Connection(settings)
        try:
            client: Any = await connection.client()
            await client.command(f"DROP VIEW IF EXISTS {sink.name}")
            await client.command(f"DROP TABLE IF EXISTS {sink.versioned_table.physical}")
        finally:
            await connection.close()
