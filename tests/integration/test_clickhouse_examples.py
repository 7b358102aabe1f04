"""The examples of ClickHouse tables, run on the real engine: what docs/clickhouse.md shows is true."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import date
from typing import Any

import msgspec
import pytest

from examples.clickhouse.aggregating import counted_sales, view_statements
from examples.clickhouse.append import sales
from examples.clickhouse.events import sales_topic, stock_topic
from examples.clickhouse.replacing import stock
from projections.clickhouse import ClickHouse
from projections.clickhouse_connection import Connection
from tests.integration.road import MakeRoad, Road, SentRecord, record
from tidegate import ProjectionJob
from tidegate.stack.names import StackAddresses
from tidegate_kernel.errors import Transient
from tidegate_kernel.settings import Settings

pytestmark = pytest.mark.servers


class Table:
    """A job's road to its table on the real engine, and what readers see there."""

    def __init__(self, road: Road, connection: Connection) -> None:
        self.road, self._connection = road, connection

    async def command(self, statement: str) -> None:
        await (await self._connection.client()).command(statement)

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        found = await (await self._connection.client()).query(query)
        return [tuple(row) for row in found.result_rows]


Opening = Callable[..., Any]


@pytest.fixture
async def opening(stack: StackAddresses, make_road: MakeRoad) -> AsyncIterator[Opening]:
    """`async with opening(job, statements=…) as table`: its table and what it feeds are gone afterwards."""
    settings = Settings(clickhouse_url=stack.clickhouse_url)
    connection = Connection(settings)

    @asynccontextmanager
    async def opened(job: ProjectionJob, *, statements: Any = ()) -> AsyncIterator[Table]:
        declared = job.sink
        assert isinstance(declared, ClickHouse)
        name = declared.name
        async with declared.open(settings) as sink:
            await sink.prepare()
            table = Table(await make_road(job, sink=sink), connection)
            for statement in statements:
                await table.command(statement)
            await sink.check()
            yield table
        for each in (f"{name}_revenue_view", f"{name}_revenue", name, declared.versioned_table.physical):
            await table.command(f"DROP TABLE IF EXISTS {each}")

    yield opened
    await connection.close()


def sale(offset: int, cents: int, *, shop: str = "north", customer: str = "c1", day: int = 1) -> SentRecord:
    data = {"shop": shop, "customer_id": customer, "cents": cents, "sold_on": date(2024, day, 1)}
    return record(offset, msgspec.json.encode(data), type="sale.made")


def again(sent: SentRecord, offset: int) -> SentRecord:
    """The same event, as its producer has sent it once more."""
    return replace(sent, offset=offset)


def stocked(offset: int, article: str, pieces: int, version: int) -> SentRecord:
    data = {"article": article, "shop": "north", "pieces": pieces, "version": version}
    return record(offset, msgspec.json.encode(data), type="stock.changed", key=article.encode())


async def test_replacing_table_shows_the_newest_state(opening: Opening, unique_name: Callable[[str], str]) -> None:
    """G3: late and repeated events change nothing, and what was deleted stays away."""
    name = unique_name("stock").replace("-", "_")
    async with opening(stock(stock_topic("orders"), table=name)) as table:
        await table.road.handle([stocked(0, "pen", 7, 2), stocked(1, "ink", 1, 1), stocked(2, "cap", 3, 1)])
        removed = SentRecord(3, None, [("version", b"5")], key=b"ink")
        await table.road.handle([removed, stocked(4, "pen", 9, 1), stocked(5, "ink", 4, 4), stocked(6, "cap", 2, 2)])

        assert await table.rows(f"SELECT article, pieces FROM {name} ORDER BY article") == [("cap", 2), ("pen", 7)]


async def test_append_table_has_every_event_once(opening: Opening, unique_name: Callable[[str], str]) -> None:
    """G2: a sale that comes twice is one row to readers, in every sum they make."""
    name = unique_name("sales").replace("-", "_")
    async with opening(sales(sales_topic("orders"), table=name)) as table:
        first = sale(0, 100)
        await table.road.handle([first, sale(1, 20, shop="south"), sale(2, 3, day=2)])
        await table.road.handle([again(first, 3), sale(4, 100)])

        sums = f"SELECT count(), sum(cents) FROM {name}"
        assert await table.rows(sums) == [(4, 223)]


async def test_aggregating_table_sums_every_event_once(
    opening: Opening, unique_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 97: what ClickHouse has summed itself is what readers of the rows see, also after an answer was lost and for
    a sale that its producer has sent twice."""
    name = unique_name("counted").replace("-", "_")
    job = counted_sales(sales_topic("orders"), table=name)
    async with opening(job, statements=view_statements(name)) as table:
        first = sale(0, 100)
        batch = [first, sale(1, 20, shop="south"), sale(2, 3, day=2), sale(3, 7, customer="c2")]
        sink = table.road.parts.sink
        apply_range, answers = sink.apply_range, iter([False, True])

        async def deaf(encoded: Any, range_name: str) -> Any:
            applied = await apply_range(encoded, range_name)
            if not next(answers, True):
                raise Transient("no answer in time")
            return applied

        monkeypatch.setattr(sink, "apply_range", deaf)
        with pytest.raises(Transient):
            await table.road.handle(batch)
        await table.road.handle(batch)
        await table.road.handle([again(first, 4), sale(5, 1000, shop="south")])

        revenue = (
            "SELECT toString(sold_on), shop, sum(sales), sum(cents), uniqExactMerge(customers) "
            f"FROM {name}_revenue GROUP BY sold_on, shop ORDER BY sold_on, shop"
        )
        assert await table.rows(revenue) == [
            ("2024-01-01", "north", 2, 107, 2),
            ("2024-01-01", "south", 2, 1020, 1),
            ("2024-02-01", "north", 1, 3, 1),
        ]
        assert await table.rows(f"SELECT count(), sum(cents) FROM {name}") == [(5, 1130)]
