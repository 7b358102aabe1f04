"""ClickHouse as a sink: versioned rows in big blocks, read through a view that shows the newest ones."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from clickhouse_connect.datatypes.registry import get_from_name
from clickhouse_connect.driver.insert import InsertContext

from projections.clickhouse_columns import RowEncoder
from projections.clickhouse_connection import Connection, RowsRefused, TooManyPartitions, translated_errors
from projections.clickhouse_table import VersionedTable
from projections.documents import DELETED
from projections.sink import Applied, Refusal
from projections.writes import Upsert, Write
from tidegate_kernel.errors import Misconfigured, Reason, Transient
from tidegate_kernel.settings import Settings

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, kw_only=True)
class ClickHouse:
    """Rows of `columns` (name to ClickHouse type), read from view `table`, the newest version per `order_by`.

    `id_column` holds the id of the Upsert and is what a Delete removes: by default the single column of `order_by`.
    With a longer `order_by` the newest row per combination is kept, and a Delete is refused. Times are cut to the
    resolution of their column; everything else that a column cannot hold makes a dead letter.
    `partition_by` is an expression of ClickHouse; readers see one row per key also where its versions lie in several
    partitions.
    """

    table: str
    columns: Mapping[str, str]
    order_by: Sequence[str]
    id_column: str | None = None
    version_column: str = "tg_version"
    partition_by: str | None = None
    # One insert is one part on disk: small ones drown ClickHouse in merges.
    batch_size: int = 10_000

    def __post_init__(self) -> None:
        for name in (self.table, self.version_column, *self.columns):
            if not _IDENTIFIER.match(name):
                raise self._wrong(f"{name!r} is no plain name of letters, digits and underscores")
        if DELETED in self.columns or self.version_column in self.columns:
            raise self._wrong(f"{self.version_column!r} and {DELETED!r} are Tidegate's own columns")
        if isinstance(self.order_by, str) or not self.order_by or not set(self.order_by) <= set(self.columns):
            raise self._wrong("order_by must list one or more of the columns, as in order_by=('order_id',)")
        if self.id_column is not None and tuple(self.order_by) != (self.id_column,):
            raise self._wrong("id_column must be the single column of order_by: two rows could share an id otherwise")
        _ = self.rows

    @property
    def name(self) -> str:
        return self.table

    @cached_property
    def rows(self) -> RowEncoder:
        """Raises Misconfigured for a column of an unknown type."""
        only = self.order_by[0] if len(self.order_by) == 1 else None
        return RowEncoder(self.columns, self.id_column or only)

    @cached_property
    def versioned_table(self) -> VersionedTable:
        """Table and view. The generation is part of the table's name, so that a rebuild fills another beside it."""
        return VersionedTable(
            view=self.table,
            physical=f"{self.table}_g1",
            columns=self.columns,
            order_by=self.order_by,
            version_column=self.version_column,
            partition_by=self.partition_by,
        )

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[ClickHouseSink]:
        connection = Connection(settings)
        try:
            yield ClickHouseSink(self, connection)
        finally:
            await connection.close()

    def _wrong(self, what: str) -> Misconfigured:
        return Misconfigured(f"ClickHouse(table={self.table!r}): {what}")


class ClickHouseSink:
    """The open sink; see `projections.sink.Sink`."""

    def __init__(self, declared: ClickHouse, connection: Connection) -> None:
        self._connection = connection
        self._table = declared.versioned_table
        self._rows = declared.rows
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

        `stale` stays 0: ClickHouse takes older rows too and shows the newest.
        """
        refused: list[Refusal] = []
        if encoded:
            await self._insert(encoded, 0, refused)
        return Applied(refused=tuple(refused))

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
        # Names and types are given, so that nothing is asked of the server; the block's size, so that it is one block.
        context = InsertContext(
            f"`{self._table.physical}`",
            self._names,
            self._types,
            data=list(zip(*rows, strict=True)),
            column_oriented=True,
            block_size=len(rows),
        )
        with translated_errors(self._table.view):
            await client.data_insert(context)
