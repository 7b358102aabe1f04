"""Jobs of the shop on topics, as the shared suite drives them: real Postgres and real stores, Kafka in memory.

The memory's Kafka passes the contract suite of the real one; what real Kafka adds is tested beside it.
"""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
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
from tests.integration.driven import Driven, Place
from tests.integration.road import Road, SentRecord
from tidegate import App, testing
from tidegate.assembly import assemble
from tidegate.jobs.declaration import Job
from tidegate.jobs.replays import Asked
from tidegate.replaying import ReplayOptions, run_replay
from tidegate.testing import Driver
from tidegate_kernel.errors import StaleOwner
from tidegate_kernel.permissions import Actor
from tidegate_kernel.settings import Settings
from tidegate_kernel.source import Outgoing

_CENTS = 100
"""The total of every order: sums say how many acted."""


class TopicDriven(Driven):
    """Items are orders of a customer of their own; a bad one is no JSON."""

    is_mended_by_work = False

    def __init__(self, place: Place, app: App, driver: Driver) -> None:
        self.place, self.app, self.driver = place, app, driver
        self.offered: list[Outgoing] = []

    @classmethod
    @asynccontextmanager
    async def at(cls, place: Place) -> AsyncIterator[Self]:
        declared = shop(place.prefix)
        job = replace(declared.job(cls.code), batch_size=5)
        app = replace(declared, jobs=[job], clock_jobs=[], lifespan=None)
        try:
            async with testing.run(app, db=place.dsn, deps=object(), real_sinks=True) as driver:
                await driver._jobs.stop()
                yield cls(place, app, driver)
        finally:
            await _drop(job, cls._settings(place))

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
            self._send(json.dumps(order).encode())

    async def offer_bad(self) -> None:
        self._send(b"no json")

    async def mend(self) -> None:
        """Nothing mends a record; somebody edits or discards its letter."""

    async def work(self) -> None:
        self.driver._jobs.start()
        await self.driver.settled()
        await self.driver._jobs.stop()

    async def trigger_again(self) -> None:
        for sent in self.offered:
            self.driver.broker.append(sent)
        await self.work()

    async def work_with_a_death(self) -> None:
        self.driver._jobs.start()
        await self.driver.settled()
        await self.driver.redeliver_all()
        await self.driver._jobs.stop()

    async def work_stopped(self) -> None:
        self.driver._jobs.start()
        async with asyncio.timeout(30):
            while not await self.progress():
                await asyncio.sleep(0.01)  # a row in a database tells nobody of its change
        await self.driver._jobs.stop()
        await self._render()

    async def contend(self) -> int:
        job = self.app.jobs[0]
        elsewhere = replace(job, topics=[replace(job.topics[0], name="orders")])
        sink = self.driver._sinks.get(self.code)
        records = [
            SentRecord(offset, sent.value, list(sent.headers), sent.key) for offset, sent in enumerate(self.offered)
        ]
        roads = []
        for _ in range(2):
            parts = await assemble(self.app, elsewhere, self.driver._resources, sink=sink)
            roads.append(Road(parts, self.place.pool))
            await roads[-1].take_over()
        finished = 0
        for road in roads:
            with suppress(StaleOwner):
                await road.handle(records)
                finished += 1
        await self._render()
        return finished

    async def by_hand(self, actor: Actor) -> None:
        letters: list[UUID] = [row["id"] for row in await self.place.pool.fetch("SELECT id FROM tidegate.dead_letter")]
        job = self.app.jobs[0].job_code
        asked = Asked(code=job, kind=RunKind.REPLAY, letters=letters, digest="d", reason="a test")
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

    async def _render(self) -> None:
        await self.driver._jobs.rendered()
        for sink in self.driver._sinks.values():
            await sink.refresh()

    def _send(self, value: bytes) -> None:
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
        topic = self.app.jobs[0].topics[0].name
        self.offered.append(Outgoing(topic, value, b"o%d" % number, headers))
        self.driver.broker.append(self.offered[-1])

    @staticmethod
    def _settings(place: Place) -> Settings:
        return Settings(
            postgres_dsn=SecretStr(place.dsn),
            elasticsearch_url=place.stack.elasticsearch_url,
            clickhouse_url=place.stack.clickhouse_url,
        )

    async def _documents(self, field: str) -> int:
        sink = self.app.jobs[0].sink  # type: ignore[union-attr]  # it is a projection or a fold
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
            name = self.app.jobs[0].sink.name  # type: ignore[union-attr]  # it is a projection
            return int((await client.query(f"SELECT sum(cents) FROM {name}")).result_rows[0][0])
        finally:
            await connection.close()


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
