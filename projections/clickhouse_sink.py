"""The open ClickHouse sink: table and view made and compared, rows inserted a block at a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from clickhouse_connect.datatypes.registry import get_from_name
from clickhouse_connect.driver.insert import InsertContext

from projections.clickhouse_connection import Connection, RowsRefused, TooManyPartitions, translated_errors
from projections.clickhouse_rows import RowEncoder
from projections.clickhouse_table import VersionedTable
from projections.sink import Applied, Refusal
from projections.writes import Upsert, Write
from tidegate_kernel.errors import Misconfigured, Reason, Transient


class _Block(InsertContext):
    """An insert of columns as one block, whatever their size.

    The client's own cuts at a megabyte or two, and imports pandas, seconds on the event loop, to ask whether the
    columns are a data frame.
    """

    @property
    def data(self) -> Any:
        return self._raw_data

    @data.setter
    def data(self, columns: Any) -> None:
        self._raw_data = self._data = self._block_columns = columns
        self._next_block_data = self._column_block_data
        self.current_block = self.current_row = 0
        self.column_count = len(columns) if columns else 0
        self.row_count = self.block_row_count = len(columns[0]) if columns else 0


class ClickHouseSink:
    """The open sink; see `projections.sink.Sink`."""

    def __init__(self, table: VersionedTable, rows: RowEncoder, connection: Connection) -> None:
        self._table, self._rows, self._connection = table, rows, connection
        self._names = list(self._table.all_columns)
        self._types = [get_from_name(type_name) for type_name in self._table.all_columns.values()]

    async def prepare(self) -> None:
        client = await self._connection.client()
        with translated_errors(self._table.view):
            await self._table.prepare(client)

    async def check(self) -> None:
        client = await self._connection.client()
        with translated_errors(self._table.view):
            await self._table.check(client)

    def encode(self, write: Write) -> tuple[Any, ...]:
        return self._rows.upsert(write) if isinstance(write, Upsert) else self._rows.tombstone(write)

    async def apply(self, encoded: Sequence[tuple[Any, ...]]) -> Applied:
        """One insert, which is one block, unless the server refuses rows: those are found by halving.

        `stale_at` stays empty: ClickHouse takes older rows too and shows the newest.
        """
        refused: list[Refusal] = []
        if encoded:
            await self._insert(encoded, 0, refused)
        return Applied(refused=tuple(refused))

    async def purge(self, before: datetime, most: int) -> int:  # noqa: ARG002  # part of the interface
        """None: a tombstone is a row like others, and small."""
        return 0

    async def reset(self) -> None:
        client = await self._connection.client()
        with translated_errors(self._table.view):
            await self._table.reset(client)

    async def documents(self) -> int:
        client = await self._connection.client()
        with translated_errors(self._table.view):
            return await self._table.rows(client)

    async def probe(self) -> bool:
        try:
            client = await self._connection.client()
            with translated_errors(self._table.view):
                await client.command("SELECT 1")
        except Transient:
            return False
        except Misconfigured:
            # It answered.
            return True
        return True

    async def _insert(self, rows: Sequence[tuple[Any, ...]], first: int, refused: list[Refusal]) -> None:
        try:
            await self._insert_block(rows)
        except RowsRefused as refusal:
            if len(rows) == 1:
                # A table that was altered under us would refuse every row there is: that is not the rows' fault.
                await self.check()
                refused.append(Refusal(first, Reason.INVALID_DOCUMENT, str(refusal)))
                return
            await self._insert_halves(rows, first, refused)
        except TooManyPartitions:
            await self._insert_halves(rows, first, refused)

    async def _insert_halves(self, rows: Sequence[tuple[Any, ...]], first: int, refused: list[Refusal]) -> None:
        middle = len(rows) // 2
        await self._insert(rows[:middle], first, refused)
        await self._insert(rows[middle:], first + middle, refused)

    async def _insert_block(self, rows: Sequence[tuple[Any, ...]]) -> None:
        client = await self._connection.client()
        # Names and types are given, so that nothing is asked of the server.
        columns = list(zip(*rows, strict=True))
        context = _Block(f"`{self._table.physical}`", self._names, self._types, data=columns, column_oriented=True)
        with translated_errors(self._table.view):
            await client.data_insert(context)
