"""Real ClickHouse: a table of one run, written to by our sink, and by hand through the store's own client."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from clickhouse_connect.datatypes.registry import get_from_name
from clickhouse_connect.driver.insert import InsertContext
from clickhouse_connect.driver.transform import NativeTransform

from bench.stub import Stopwatch
from bench.to_store import contestants
from projections.clickhouse import ClickHouse
from projections.clickhouse_connection import Connection
from projections.clickhouse_sink import ClickHouseSink
from projections.sink import Applied, SinkDeclaration
from projections.writes import Upsert
from tidegate_kernel.settings import Settings

if TYPE_CHECKING:
    from clickhouse_connect.driver.asyncclient import AsyncClient

_TEXTS = ("order_id", "tenant", "customer_id", "currency", "channel")
_NUMBERS = ("total_cents", "items", "version")
_COLUMNS = dict.fromkeys(_TEXTS, "String") | dict.fromkeys(_NUMBERS, "Int64")


class Table:
    """Declaration and way by hand."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        self._declared = ClickHouse(table=f"bench_{secrets.token_hex(4)}", columns=_COLUMNS, order_by=["order_id"])
        self.name, self.store = self._declared.name, self._declared.store
        self.batch_size, self.linger = self._declared.batch_size, self._declared.linger

    @property
    def declaration(self) -> SinkDeclaration:
        return self

    def where(self, settings: Settings) -> str:
        return self._declared.where(settings)

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[TimedSink]:
        async with _connected(settings) as connection:
            yield TimedSink(self._declared, connection, self._stopwatch)

    @asynccontextmanager
    async def by_hand(self, settings: Settings) -> AsyncIterator[InsertByHand]:
        # Our connection, because its settings keep rows safe: whoever writes by hand has to know them, too.
        async with _connected(settings) as connection:
            table = self._declared.versioned_table
            yield InsertByHand(await connection.client(), table.physical, table.all_columns, self._stopwatch)

    async def drop(self, settings: Settings) -> None:
        async with _connected(settings) as connection:
            client = await connection.client()
            await client.command(f"DROP VIEW IF EXISTS {self._declared.table}")
            await client.command(f"DROP TABLE IF EXISTS {self._declared.versioned_table.physical} SYNC")


class TimedSink(ClickHouseSink):
    """The sink as it is; each batch that is in is told to the stopwatch."""

    def __init__(self, declared: ClickHouse, connection: Connection, stopwatch: Stopwatch) -> None:
        super().__init__(declared.versioned_table, declared.rows, connection)
        self._stopwatch = stopwatch

    async def apply(self, encoded: Sequence[Any]) -> Applied:
        applied = await super().apply(encoded)
        self._stopwatch.passed(len(encoded))
        return applied


class InsertByHand:
    """Rows as tuples, one insert a batch, with names and types given: so that the client asks the server nothing."""

    def __init__(self, client: AsyncClient, table: str, columns: Mapping[str, str], stopwatch: Stopwatch) -> None:
        self._client, self._table, self._stopwatch = client, table, stopwatch
        self._names, self._types = list(columns), [get_from_name(each) for each in columns.values()]
        self._fields: Any = itemgetter(*_COLUMNS)

    def form(self, write: Upsert) -> tuple[Any, ...]:
        return (*self._fields(write.document), write.version, 0, 0)

    async def send(self, formed: Sequence[tuple[Any, ...]]) -> None:
        await self._client.insert(self._table, formed, column_names=self._names, column_types=self._types)
        self._stopwatch.passed(len(formed))

    def body(self, formed: Sequence[tuple[Any, ...]]) -> bytes:
        context = InsertContext(self._table, self._names, self._types, data=formed)
        statement_and_rows = b"".join(map(bytes, NativeTransform.build_insert(context)))
        return statement_and_rows.partition(b"FORMAT Native\n")[2]

    async def post(self, body: bytes, rows: int) -> None:
        await self._client.raw_insert(self._table, self._names, body, fmt="Native")
        self._stopwatch.passed(rows)


@asynccontextmanager
async def _connected(settings: Settings) -> AsyncIterator[Connection]:
    connection = Connection(settings)
    try:
        yield connection
    finally:
        await connection.close()


CONTESTANTS = contestants("clickhouse", ours=Table, theirs=Table)
