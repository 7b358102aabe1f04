"""Real ClickHouse: Tidegate from Kafka to the table, its sink alone, and a bare loop of the same inserts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

import msgspec

from bench.records import Written, new_orders
from bench.stub import Reading, Stopwatch
from bench.workload import JOB, OrderPlaced, application, document
from projections.clickhouse import ClickHouse
from projections.clickhouse_connection import Connection
from projections.clickhouse_sink import ClickHouseSink
from projections.sink import Applied
from projections.writes import Upsert
from tidegate.worker import calm_collector, run_worker
from tidegate_kernel.logs import configure_logs
from tidegate_kernel.settings import Settings

# The declaration's own default.
BATCH_SIZE = 10_000
_TEXTS = ("order_id", "tenant", "customer_id", "currency", "channel")
_NUMBERS = ("total_cents", "items", "version")
_TENANT = "tenant-7"


class TimedTable:
    """The declaration of a table of this run, whose open sink drives a stopwatch."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        columns = dict.fromkeys(_TEXTS, "String") | dict.fromkeys(_NUMBERS, "Int64")
        self.declared = ClickHouse(table=f"bench_{secrets.token_hex(4)}", columns=columns, order_by=["order_id"])
        self.name, self.store, self.batch_size = self.declared.name, self.declared.store, BATCH_SIZE

    def where(self, settings: Settings) -> str:
        return self.declared.where(settings)

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[TimedSink]:
        connection = Connection(settings)
        try:
            yield TimedSink(self.declared, connection, self._stopwatch)
        finally:
            await connection.close()

    @asynccontextmanager
    async def made(self, settings: Settings) -> AsyncIterator[TimedSink]:
        """The table is there inside the block, and gone after it."""
        async with self.open(settings) as sink:
            await sink.prepare()
            try:
                yield sink
            finally:
                await sink.drop()


class TimedSink(ClickHouseSink):
    """The sink as it is; each batch that is in is told to the stopwatch."""

    def __init__(self, declared: ClickHouse, connection: Connection, stopwatch: Stopwatch) -> None:
        super().__init__(declared.versioned_table, declared.rows, connection)
        self._stopwatch = stopwatch

    async def apply(self, encoded: Sequence[Any]) -> Applied:
        applied = await super().apply(encoded)
        self._stopwatch.passed(len(encoded))
        return applied

    async def insert(self, body: bytes, rows: int) -> None:
        """One insert, and nothing else."""
        client = await self._connection.client()
        await client.raw_insert(self._table.physical, self._names, body, fmt="Native")
        self._stopwatch.passed(rows)

    async def native(self, rows: Sequence[Any]) -> bytes:
        """The body of an insert, as the client would send it."""
        client = await self._connection.client()
        context = self.block_of(list(enumerate(rows)))
        statement_and_rows = b"".join(map(bytes, client._transform.build_insert(context)))
        return statement_and_rows.partition(b"FORMAT Native\n")[2]

    async def drop(self) -> None:
        client = await self._connection.client()
        await client.command(f"DROP VIEW IF EXISTS {self._table.view}")
        await client.command(f"DROP TABLE IF EXISTS {self._table.physical} SYNC")


async def from_kafka(settings: Settings, *, service: str, topic: str, events: int) -> Reading:
    """The whole road: fetched, decoded, claimed, projected, in the table, settled."""
    stopwatch, stop = Stopwatch(events), asyncio.Event()
    table = TimedTable(stopwatch)
    async with table.made(settings):
        configure_logs(style="json", level="info")
        worker = asyncio.create_task(
            run_worker(application(service, topic, table), settings, [JOB], stop=stop), name="worker"
        )
        waiter = asyncio.create_task(stopwatch.done.wait(), name="stopwatch")
        await asyncio.wait({worker, waiter}, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await worker
    return _read(stopwatch)


async def through_the_sink(settings: Settings, *, events: int, lanes: int) -> Reading:
    """As many batches at once as lanes: writes are encoded, cut by partition, sent."""
    batches = list(_writes(events))
    stopwatch = Stopwatch(events)
    async with TimedTable(stopwatch).made(settings) as sink:
        calm_collector()
        waiting = iter(batches)

        async def lane() -> None:
            for writes in waiting:
                await sink.apply([sink.encode(write) for write in writes])

        await asyncio.gather(*(lane() for _ in range(lanes)))
    return _read(stopwatch)


async def bare_inserts(settings: Settings, *, events: int, lanes: int) -> Reading:
    """As many inserts of as many rows at once, their bodies made before: what the server itself can do."""
    stopwatch = Stopwatch(events)
    async with TimedTable(stopwatch).made(settings) as sink:
        bodies = [(len(w), await sink.native([sink.encode(write) for write in w])) for w in _writes(events)]
        calm_collector()
        waiting = iter(bodies)

        async def lane() -> None:
            for rows, body in waiting:
                await sink.insert(body, rows)

        await asyncio.gather(*(lane() for _ in range(lanes)))
    return _read(stopwatch)


def _writes(events: int) -> Iterator[list[Upsert]]:
    orders = new_orders(events)
    while batch := list(islice(orders, BATCH_SIZE)):
        yield [_write(written) for written in batch]


def _write(written: Written) -> Upsert:
    return document(msgspec.json.decode(written.value, type=OrderPlaced), _TENANT)


def _read(stopwatch: Stopwatch) -> Reading:
    if stopwatch.reading is None:
        raise RuntimeError("the run ended before its events were in the table")
    return stopwatch.reading
