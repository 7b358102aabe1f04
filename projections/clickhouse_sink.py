"""The open ClickHouse sink: table and view made and compared, rows inserted a block at a time."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from clickhouse_connect.datatypes.registry import get_from_name
from clickhouse_connect.driver.insert import InsertContext

from projections.clickhouse_connection import Connection, RowsRefused, TooManyPartitions, translated_errors
from projections.clickhouse_partitions import Row, columns_within, partition_key
from projections.clickhouse_purge import purge_tombstones
from projections.clickhouse_rows import RowEncoder
from projections.clickhouse_table import VersionedTable
from projections.sink import Applied, Refusal
from projections.writes import Upsert, Write
from tidegate_kernel.clock import Clock, SystemClock
from tidegate_kernel.errors import Misconfigured, Reason, Transient

_Placed: TypeAlias = list[tuple[int, Row]]
"""Rows with their places in the batch."""


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
    """The open sink; see `projections.sink.Sink`. One insert is one block in one partition of the table."""

    def __init__(
        self, table: VersionedTable, rows: RowEncoder, connection: Connection, clock: Clock | None = None
    ) -> None:
        self._table, self._rows, self._connection = table, rows, connection
        self._clock = clock or SystemClock()
        self._is_replicated: bool | None = None
        columns = table.all_columns
        self._names = list(columns)
        self._types = [get_from_name(type_name) for type_name in columns.values()]
        self._partition = partition_key(table.partition_by, columns)
        self._partition_columns = columns_within(table.partition_by or "", columns)

    async def prepare(self) -> None:
        client = await self._connection.client()
        with translated_errors(self._table.view):
            await self._table.prepare(client)

    async def check(self) -> None:
        client = await self._connection.client()
        with translated_errors(self._table.view):
            await self._table.check(client)

    def encode(self, write: Write) -> Row:
        if isinstance(write, Upsert):
            return self._rows.upsert(write)
        return self._rows.tombstone(write, self._clock.now())

    async def apply(self, encoded: Sequence[Row]) -> Applied:
        """One insert per partition of the table. Where the server refuses rows, they are found by halving.

        `stale_at` stays empty: ClickHouse takes older rows too and shows the newest.
        """
        refused: list[Refusal] = []
        for block in self._blocks(encoded).values():
            await self._insert(block, refused)
        return Applied(refused=tuple(sorted(refused)))

    async def refresh(self) -> None:
        """What an insert was answered for is visible on its replica; this one has to fetch what others took."""
        if self._is_replicated is None:
            self._is_replicated = await self._asks_replicas()
        if self._is_replicated:
            client = await self._connection.client()
            with translated_errors(self._table.view):
                await client.command(f"SYSTEM SYNC REPLICA `{self._table.physical}` LIGHTWEIGHT")

    async def _asks_replicas(self) -> bool:
        client = await self._connection.client()
        with translated_errors(self._table.view):
            engine = await client.command(
                "SELECT any(engine) FROM system.tables WHERE database = currentDatabase() AND name = {name:String}",
                parameters={"name": self._table.physical},
            )
        return str(engine).startswith("Replicated")

    async def purge(self, before: datetime, most: int) -> int:
        """Of a table whose rows are never deleted nothing is asked."""
        if not self._table.has_tombstones:
            return 0
        client = await self._connection.client()
        with translated_errors(self._table.view):
            return await purge_tombstones(client, self._table, before=before, most=most)

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

    def _blocks(self, encoded: Sequence[Row]) -> Mapping[Hashable, _Placed]:
        """The rows by partition, in their order: of equal versions the last one of a block stays."""
        placed = list(enumerate(encoded))
        if self._partition is None:
            # Only the server knows. It refuses what is not of one partition; halves of sorted rows come to that soon.
            return {None: sorted(placed, key=self._partition_values)}
        if self._table.partition_by is None:
            return {(): placed} if placed else {}
        blocks: dict[Hashable, _Placed] = {}
        for place, row in placed:
            blocks.setdefault(self._partition(row), []).append((place, row))
        return blocks

    def _partition_values(self, placed: tuple[int, Row]) -> list[tuple[bool, Any]]:
        row = placed[1]
        return [(row[place] is not None, row[place]) for place in self._partition_columns]

    async def _insert(self, block: _Placed, refused: list[Refusal]) -> None:
        try:
            await self._insert_block(block)
        except RowsRefused as refusal:
            if len(block) == 1:
                # A table that was altered under us would refuse every row there is: that is not the rows' fault.
                await self.check()
                refused.append(Refusal(block[0][0], Reason.INVALID_DOCUMENT, str(refusal)))
                return
            await self._insert_halves(block, refused)
        except TooManyPartitions:
            if len(block) == 1:
                raise
            await self._insert_halves(block, refused)

    async def _insert_halves(self, block: _Placed, refused: list[Refusal]) -> None:
        middle = len(block) // 2
        await self._insert(block[:middle], refused)
        await self._insert(block[middle:], refused)

    async def _insert_block(self, block: _Placed, settings: Mapping[str, str] | None = None) -> None:
        if not block:
            return
        client = await self._connection.client()
        with translated_errors(self._table.view):
            await client.data_insert(self.block_of(block, settings))

    def block_of(self, block: _Placed, settings: Mapping[str, str] | None = None) -> InsertContext:
        """The rows as the client sends them. Names and types are given, so that nothing is asked of the server."""
        columns = list(zip(*[row for _, row in block], strict=True))
        return _Block(
            f"`{self._table.physical}`",
            self._names,
            self._types,
            data=columns,
            column_oriented=True,
            settings=dict(settings or {}),
        )
