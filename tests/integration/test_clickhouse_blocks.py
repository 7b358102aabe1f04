"""One insert is one block in one partition of the table, and too many parts are back-pressure: on the real engine."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pytest

from projections.clickhouse import ClickHouse
from projections.clickhouse_block import Block
from projections.clickhouse_connection import Connection, TooManyPartitions
from projections.clickhouse_sink import ClickHouseSink
from projections.sink import Applied
from projections.writes import Upsert
from tests.integration.road import MakeRoad, record
from tidegate import CloudEvents, Event, Json, ProjectionJob, Topic, on
from tidegate.stack.names import StackAddresses
from tidegate_kernel.errors import Transient
from tidegate_kernel.settings import Settings

pytestmark = pytest.mark.servers

COLUMNS = {
    "id": "String",
    "day": "Date",
    "old_day": "Date32",
    "at": "DateTime64(3, 'UTC')",
    "second": "DateTime('UTC')",
    "local": "DateTime('Europe/Riga')",
    "n": "Int64",
    "kind": "LowCardinality(String)",
}


@dataclass
class Table:
    """A declaration, a way past the sink, and how many rows each insert of the sink had."""

    declared: ClickHouse
    connection: Connection
    inserts: list[int] = field(default_factory=list)

    async def command(self, statement: str) -> None:
        await (await self.connection.client()).command(statement)

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        found = await (await self.connection.client()).query(query)
        return [tuple(row) for row in found.result_rows]

    @property
    def physical(self) -> str:
        return self.declared.versioned_table.physical

    async def drop(self) -> None:
        await self.command(f"DROP VIEW IF EXISTS {self.declared.name}")
        await self.command(f"DROP TABLE IF EXISTS {self.physical}")


MakeTable = Callable[..., Any]


@pytest.fixture
def make_table(stack: StackAddresses, unique_name: Callable[[str], str]) -> MakeTable:
    """Opens a prepared sink on a table of its own: `async with make_table(partition_by=…) as (table, sink)`."""
    settings = Settings(clickhouse_url=stack.clickhouse_url)

    @asynccontextmanager
    async def make(**changed: Any) -> AsyncIterator[tuple[Table, ClickHouseSink]]:
        name = unique_name("blocks").replace("-", "_")
        declared = ClickHouse(**{"table": name, "columns": COLUMNS, "order_by": ("id",), **changed})
        table = Table(declared, Connection(settings))
        async with declared.open(settings) as sink:
            await sink.prepare()
            _count_inserts(sink, table.inserts)
            yield table, sink
        await table.drop()
        await table.connection.close()

    return make


def _count_inserts(sink: ClickHouseSink, inserts: list[int]) -> None:
    insert = sink._insert_block

    async def counted(block: Any, settings: Any = None) -> None:
        inserts.append(len(block))
        await insert(block, settings)

    sink._insert_block = counted  # type: ignore[method-assign]


def row(number: int, at: datetime, kind: str = "a") -> Upsert:
    document = {
        "id": f"r{number}",
        "day": max(at.date(), date(1970, 1, 1)),
        "old_day": at.date(),
        "at": at,
        "second": max(at, datetime(1970, 1, 1, tzinfo=UTC)).replace(microsecond=0),
        "local": max(at, datetime(1970, 1, 1, tzinfo=UTC)).replace(microsecond=0),
        "n": number - 50,
        "kind": kind,
    }
    return Upsert(f"r{number}", 1, document)


def scattered(count: int) -> list[Upsert]:
    """Rows over a century, at the edges of days, months and years among others."""
    dice = random.Random(7)
    edges = [datetime(y, m, d, h, tzinfo=UTC) for y in (1969, 1999) for m, d in ((1, 1), (12, 31)) for h in (0, 23)]
    times = edges + [datetime(1930, 1, 1, tzinfo=UTC) + timedelta(hours=dice.randrange(876_000)) for _ in range(count)]
    return [row(number, at, kind=dice.choice("abc")) for number, at in enumerate(times)]


async def apply(sink: ClickHouseSink, writes: Sequence[Upsert]) -> Applied:
    return await sink.apply([sink.encode(write) for write in writes])


@pytest.mark.parametrize(
    "expression",
    [
        "toYYYYMM(day)",
        "toYYYYMM(old_day)",
        "toYYYYMM(at)",
        "toYYYYMM(second)",
        "toYYYYMMDD(old_day)",
        "toYear(at)",
        "toMonday(day)",
        "toMonday(at)",
        "toDate(second)",
        "toStartOfMonth(at)",
        "toStartOfQuarter(day)",
        "toStartOfYear(old_day)",
        "day",
        "kind",
        "intDiv(n, 10)",
        "modulo(n, 7)",
        "(kind, toYear(day))",
        "tuple(toYYYYMM(day), kind)",
    ],
)
async def test_client_cuts_by_table_partition_no_coarser_than_the_engine(
    make_table: MakeTable, expression: str
) -> None:
    """A block over two partitions is not atomic: the engine, told to take one at most, never has to refuse a block."""
    async with make_table(partition_by=expression) as (table, sink):
        assert sink._partition is not None
        await table.command(f"SYSTEM STOP MERGES {table.physical}")
        writes = scattered(100)
        blocks = len(sink._blocks([sink.encode(write) for write in writes]))

        await apply(sink, writes)

        assert len(table.inserts) == blocks
        assert await table.rows(f"SELECT count() FROM {table.declared.name}") == [(len(writes),)]
        [(partitions,)] = await table.rows(
            f"SELECT uniqExact(partition_id) FROM system.parts WHERE active AND table = '{table.physical}'"
        )
        assert partitions <= blocks <= 2 * partitions


@pytest.mark.parametrize("expression", ["toYYYYMM(local)", "cityHash64(id) % 5", "(kind, n > 20)"])
async def test_expression_that_only_the_engine_knows_is_cut_by_its_refusals(
    make_table: MakeTable, expression: str
) -> None:
    """Its refusal comes before anything is written, so halves of what is sorted come to one partition each."""
    async with make_table(partition_by=expression) as (table, sink):
        assert sink._partition is None

        applied = await apply(sink, scattered(40))

        assert applied == Applied()
        assert await table.rows(f"SELECT count() FROM {table.declared.name}") == [(48,)]


async def test_engine_refuses_a_block_over_two_partitions_and_writes_none_of_it(make_table: MakeTable) -> None:
    """The rule is kept by the engine, should the client ever be wrong about an expression."""
    async with make_table(partition_by="toYYYYMM(day)") as (table, sink):
        rows = [sink.encode(row(n, datetime(2024, n + 1, 1, tzinfo=UTC))) for n in range(2)]

        with pytest.raises(TooManyPartitions):
            await sink._insert_block(Block(range(2), rows))

        assert await table.rows(f"SELECT count() FROM {table.physical}") == [(0,)]


async def test_backfill_over_200_months_is_an_insert_a_month(make_table: MakeTable) -> None:
    """Case 101: 5,000 rows in 200 monthly partitions are 200 blocks and parts, not one refused block nor 5,000."""
    async with make_table(partition_by="toYYYYMM(day)") as (table, sink):
        await table.command(f"SYSTEM STOP MERGES {table.physical}")
        writes = [row(n, datetime(1980 + n % 200 // 12, n % 200 % 12 + 1, 3, tzinfo=UTC)) for n in range(5000)]

        await apply(sink, writes)

        assert table.inserts == [25] * 200
        assert await table.rows(f"SELECT count() FROM {table.declared.name}") == [(5000,)]
        parts = f"SELECT count() FROM system.parts WHERE active AND table = '{table.physical}'"
        assert await table.rows(parts) == [(200,)]


class Noted(msgspec.Struct):
    n: int


def noted(event: Event[Noted]) -> Upsert:
    return row(event.data.n, datetime(2024, 1, 1, tzinfo=UTC))


async def test_too_many_parts_are_back_pressure(make_table: MakeTable, make_road: MakeRoad) -> None:
    """Case 101: code 252 makes the partition wait. Nothing is a dead letter, and the same batch is in once the engine
    has merged."""
    async with make_table() as (table, sink):
        await table.command(
            f"ALTER TABLE {table.physical} MODIFY SETTING parts_to_delay_insert = 3, parts_to_throw_insert = 3"
        )
        await table.command(f"SYSTEM STOP MERGES {table.physical}")
        road = await make_road(_job(table.declared), sink=sink)
        for settled in range(3):
            await road.handle([record(settled, b'{"n":%d}' % settled)])
        settled = 3

        with pytest.raises(Transient, match=r"TOO_MANY_PARTS \(252\)"):
            await road.handle([record(settled, b'{"n":%d}' % settled)])
        assert await road.stored_offset() == settled

        await table.command(f"SYSTEM START MERGES {table.physical}")
        await table.command(f"OPTIMIZE TABLE {table.physical} FINAL")
        await road.handle([record(settled, b'{"n":%d}' % settled)])

        assert await road.dead_letters() == []
        assert await road.stored_offset() == settled + 1
        assert await table.rows(f"SELECT count() FROM {table.declared.name}") == [(settled + 1,)]


def _job(declared: ClickHouse) -> ProjectionJob:
    return ProjectionJob(
        code="noted",
        topics=[Topic("orders", format=Json(), envelope=CloudEvents(), tombstone=lambda _: None)],
        unlisted="skip",
        runbook="-",
        events=[on("noted", Noted, noted)],
        sink=declared,
        freshness_sla=timedelta(seconds=5),
    )
