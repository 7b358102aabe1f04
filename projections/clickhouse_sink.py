"""The open ClickHouse sink: table and view made and compared, rows inserted a block at a time."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime
from typing import Any

from projections.at_once import encode_at_once
from projections.clickhouse_block import Block, BlockWriter
from projections.clickhouse_connection import Connection, RowsRefused, TooManyPartitions, translated_errors
from projections.clickhouse_partitions import Row, columns_within, partition_key
from projections.clickhouse_purge import purge_tombstones
from projections.clickhouse_rows import RowEncoder
from projections.clickhouse_table import VersionedTable
from projections.sink import Applied, Refusal
from projections.writes import Upsert, Write
from tidegate_kernel.clock import Clock, SystemClock
from tidegate_kernel.errors import Misconfigured, Reason, Transient


class ClickHouseSink:
    """The open sink; see `projections.sink.Sink`. One insert is one block in one partition of the table."""

    def __init__(
        self, table: VersionedTable, rows: RowEncoder, connection: Connection, clock: Clock | None = None
    ) -> None:
        self._table, self._rows, self._connection = table, rows, connection
        self._clock = clock or SystemClock()
        self._is_replicated: bool | None = None
        columns = table.all_columns
        self._write_block = BlockWriter(table.physical, columns)
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

    def encode_all(self, writes: Sequence[Write]) -> Sequence[Row]:
        """As `encode` of each; upserts a column at a time, which costs a fraction."""
        return encode_at_once(writes, self._rows.upserts, self.encode)

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

    def _blocks(self, encoded: Sequence[Row]) -> Mapping[Hashable, Block]:
        """The rows by partition, in their order: of equal versions the last one of a block stays."""
        if not encoded:
            return {}
        if self._partition is None:
            # Only the server knows. It refuses what is not of one partition; halves of sorted rows come to that soon.
            rows = list(encoded)
            return {
                None: Block.of(rows, sorted(range(len(rows)), key=lambda place: self._partition_values(rows[place])))
            }
        if self._table.partition_by is None:
            return {(): Block(range(len(encoded)), encoded)}
        places: dict[Hashable, list[int]] = {}
        for place, row in enumerate(encoded):
            places.setdefault(self._partition(row), []).append(place)
        if len(places) == 1:
            return {key: Block(range(len(encoded)), encoded) for key in places}
        rows = list(encoded)
        return {key: Block.of(rows, each) for key, each in places.items()}

    def _partition_values(self, row: Row) -> list[tuple[bool, Any]]:
        return [(row[place] is not None, row[place]) for place in self._partition_columns]

    async def _insert(self, block: Block, refused: list[Refusal]) -> None:
        try:
            await self._insert_block(block)
        except RowsRefused as refusal:
            if len(block) == 1:
                # A table that was altered under us would refuse every row there is: that is not the rows' fault.
                await self.check()
                refused.append(Refusal(block.places[0], Reason.INVALID_DOCUMENT, str(refusal)))
                return
            await self._insert_halves(block, refused)
        except TooManyPartitions:
            if len(block) == 1:
                raise
            await self._insert_halves(block, refused)

    async def _insert_halves(self, block: Block, refused: list[Refusal]) -> None:
        for half in block.halves():
            await self._insert(half, refused)

    async def _insert_block(self, block: Block, settings: Mapping[str, str] | None = None) -> None:
        client = await self._connection.client()
        with translated_errors(self._table.view):
            body = self._write_block(block.rows)
            await client.raw_insert(insert_block=body, settings=dict(settings or {}))
