"""Sales that a materialized view sums: a job with stable batches on the real engine and Postgres, Kafka in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from pydantic import SecretStr

from consumers.batch import Batch, Outcome
from consumers.failure import RetryPolicy
from consumers.loop import ConsumerLoop
from projections.clickhouse import ClickHouse
from projections.clickhouse_connection import Connection
from projections.sink import Applied
from projections.stable import StableSink
from tidegate import App, CloudEvents, Event, Json, ProjectionJob, Topic, Upsert, on
from tidegate.assembly import JobParts, assemble, live_loop
from tidegate.jobs.declaration import Job
from tidegate.resources import Resources
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import LIVE, RunId, TopicPartition
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import Settings

PARTITION = TopicPartition("orders", 0)
TOPIC_ID = UUID(int=7)
COLUMNS = {"event": "String", "day": "Date", "shop": "LowCardinality(String)", "cents": "Int64"}
_SOON = RetryPolicy(first_delay=timedelta(milliseconds=1), longest_delay=timedelta(milliseconds=5))


class Sold(msgspec.Struct):
    n: int
    cents: int


def sale(event: Event[Sold]) -> Upsert:
    """A row of its own for every event, over three months so that each batch lies in several partitions."""
    sold = event.data
    row = {"event": event.id, "day": date(2024, 1 + sold.n % 3, 1), "shop": f"s{sold.n % 2}", "cents": sold.cents}
    return Upsert(event.id, 1, row)


@dataclass
class Counted:
    """The table, the view on it, and what its readers see; owners of the job's one partition."""

    declared: ClickHouse
    settings: Settings
    pool: Pool
    connection: Connection
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    function: Callable[[Event[Sold]], Upsert] = sale

    def job(self, batch_size: int) -> ProjectionJob:
        topic = Topic("orders", format=Json(), envelope=CloudEvents(), tombstone=lambda _: None)
        return ProjectionJob(
            code="sales",
            topics=[topic],
            unlisted="skip",
            runbook="-",
            events=[on("sold", Sold, self.function)],
            sink=self.declared,
            freshness_sla=timedelta(seconds=30),
            batch_size=batch_size,
            retry=_SOON,
        )

    async def parts(self, sink: StableSink, *, batch_size: int, run: RunId = LIVE) -> JobParts:
        return await self.assemble(self.job(batch_size), sink, run=run)

    async def assemble(self, job: Job, sink: StableSink, *, run: RunId = LIVE) -> JobParts:
        app = App(service="tests", owner="tests", jobs=[job])
        resources = Resources(self.settings, self.pool, SystemClock(), Metrics(), ThreadPoolExecutor(1), "tests")
        return await assemble(app, job, resources, sink=sink, run=run)

    def sell(self, *cents: int, ids: Sequence[str] | None = None) -> None:
        """Sales stand at the end of the log, each an event of its own unless `ids` says otherwise."""
        for number, each in enumerate(cents):
            offset = len(self.broker.records("orders"))
            told = {"ce_specversion": "1.0", "ce_source": "tests", "ce_type": "sold"}
            told["ce_id"] = ids[number] if ids else f"e{offset}"
            value = msgspec.json.encode({"n": offset, "cents": each})
            self.broker.put(PARTITION, value, key=b"k", headers=[(name, text.encode()) for name, text in told.items()])

    async def batch(self, parts: JobParts, size: int) -> Batch:
        """The next records, as an owner that has just taken the partition over has them in hand."""
        await parts.steward._positions.begin({PARTITION: _start()})
        position = await parts.steward._positions.take_over(PARTITION)
        assert position is not None
        records = self.broker.records("orders")[position.next_offset :][:size]
        fence = parts.steward.fence(PARTITION, position)
        return Batch(fence, position.topic_id, records, position.next_offset + len(records))

    async def catch_up(self, sink: StableSink, *, batch_size: int, end: int | None = None) -> None:
        """Another owner takes the partition over and reads to the end of the log."""
        parts = await self.parts(sink, batch_size=batch_size)
        async with running(live_loop(parts, partial(self.broker.join, "g", ["orders"]), SystemClock())):
            await self.until_settled(len(self.broker.records("orders")) if end is None else end)

    async def until_settled(self, offset: int) -> None:
        async with asyncio.timeout(20):
            while await self.settled() != offset:
                await asyncio.sleep(0.005)

    async def settled(self) -> int:
        return await self.pool.fetchval("SELECT next_offset FROM tidegate.position") or 0

    async def begun(self) -> Any:
        return await self.pool.fetchrow("SELECT range_first, range_end, range_failed FROM tidegate.position")

    async def letters(self) -> list[int]:
        rows = await self.pool.fetch('SELECT "offset" FROM tidegate.dead_letter ORDER BY "offset"')
        return [row["offset"] for row in rows]

    async def command(self, statement: str) -> None:
        await (await self.connection.client()).command(statement)

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        found = await (await self.connection.client()).query(query)
        return [tuple(row) for row in found.result_rows]

    @property
    def totals(self) -> str:
        return f"{self.declared.name}_totals"

    async def counted(self) -> tuple[int, int]:
        """Sales and cents as the view has summed them."""
        [(sales, cents)] = await self.rows(f"SELECT sum(sales), sum(cents) FROM {self.totals}")
        return sales, cents

    async def shown(self) -> tuple[int, int]:
        """Sales and cents as readers of the table see them."""
        [(sales, cents)] = await self.rows(f"SELECT count(), sum(cents) FROM {self.declared.name}")
        return sales, cents

    async def make_view(self, *, window: int = 10_000, engine: str = "SummingMergeTree ORDER BY shop") -> None:
        keeps = f"SETTINGS non_replicated_deduplication_window = {window}" if "MergeTree" in engine else ""
        columns = "shop LowCardinality(String), sales UInt64, cents Int64"
        await self.command(f"CREATE TABLE {self.totals} ({columns}) ENGINE = {engine} {keeps}")
        source, select = self.declared.versioned_table.physical, "shop, count() AS sales, sum(cents) AS cents"
        await self.command(
            f"CREATE MATERIALIZED VIEW {self.totals}_mv TO {self.totals} AS SELECT {select} FROM {source} GROUP BY shop"
        )

    async def drop(self) -> None:
        for name in (f"{self.totals}_mv", self.totals, self.declared.name, self.declared.versioned_table.physical):
            await self.command(f"DROP TABLE IF EXISTS {name}")


def _start() -> Any:
    from consumers.positions import Position

    return Position(0, 0, TOPIC_ID)


@asynccontextmanager
async def counted_sales(clickhouse_url: str, database: str, pool: Pool, table: str) -> AsyncIterator[Counted]:
    """A table of sales with the view that sums them; gone afterwards."""
    settings = Settings(clickhouse_url=clickhouse_url, postgres_dsn=SecretStr(database))
    declared = ClickHouse(
        table=table, columns=COLUMNS, order_by=("event",), partition_by="toYYYYMM(day)", stable_batches=True
    )
    made = Counted(declared, settings, pool, Connection(settings))
    made.broker.create_topic("orders")
    made.broker._topics["orders"].id = TOPIC_ID  # so that another process can name it
    yield made
    await made.drop()
    await made.connection.close()


@asynccontextmanager
async def running(loop: ConsumerLoop) -> AsyncIterator[None]:
    """The loop runs inside, and ends gracefully afterwards."""
    task = asyncio.create_task(loop.run())
    try:
        yield
    finally:
        loop.stop()
        await task


class Meddling:
    """A stable sink of which `before` and `after` each range may do anything."""

    def __init__(self, sink: StableSink) -> None:
        self._sink = sink
        self.names: list[str] = []
        self.before: Callable[[], Awaitable[None]] = _nothing
        self.after: Callable[[], Awaitable[None]] = _nothing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    async def apply_range(self, encoded: Sequence[Any], name: str) -> Applied:
        self.names.append(name)
        await self.before()
        applied = await self._sink.apply_range(encoded, name)
        await self.after()
        return applied


async def _nothing() -> None:
    return None


class CutAt:
    """Awaits `work`, and cancels it at its suspension number `step`; `is_cut` tells whether it came so far."""

    def __init__(self, work: Awaitable[Outcome], step: int) -> None:
        self._work, self._left = work, step
        self.is_cut = False

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        step = partial(steps.send, None)
        while True:
            try:
                waiting_for = step()
            except StopIteration as end:
                return end.value
            self._left -= 1
            if self._left == 0:
                self.is_cut = True
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                yield waiting_for
                step = partial(steps.send, None)
            except BaseException as error:
                step = partial(steps.throw, error)


def smaller(batch: Batch, size: int) -> Batch:
    """The first records of a batch alone."""
    return replace(batch, records=batch.records[:size], next_offset=batch.fence.next_offset + size)
