"""A ClickHouse table of versioned rows and the view that readers query: made, and compared with what is declared."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clickhouse_connect.datatypes.registry import get_from_name

from projections.documents import DELETED
from tidegate_kernel.errors import Misconfigured

if TYPE_CHECKING:
    from clickhouse_connect.driver.asyncclient import AsyncClient

# Parameters are ClickHouse's own, filled by the server.
_FIND_TABLE = """
SELECT engine, engine_full, sorting_key, partition_key, as_select
FROM system.tables
WHERE database = currentDatabase() AND name = {name:String}
"""
_FIND_COLUMNS = """
SELECT name, type
FROM system.columns
WHERE database = currentDatabase() AND table = {name:String}
"""
_COUNT_ROWS = """
SELECT sum(rows)
FROM system.parts
WHERE database = currentDatabase() AND table = {name:String} AND active
"""
_SPACE = re.compile(r"[\s`()]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionedTable:
    """The newest version per sorting key in `physical`, shown without its tombstones as `view`."""

    view: str
    physical: str
    columns: Mapping[str, str]
    order_by: Sequence[str]
    version_column: str
    partition_by: str | None

    @property
    def all_columns(self) -> dict[str, str]:
        """The table's columns with ours behind, in the order of an insert."""
        return {**self.columns, self.version_column: "UInt64", DELETED: "UInt8"}

    async def prepare(self, client: AsyncClient) -> None:
        """Table and view exist. Raises Misconfigured where one was there and is not as declared."""
        await client.command(self._table_statement())
        # Before the view: over another table its statement would fail with less to say.
        await self._check_table(client)
        await client.command(self._view_statement())
        await self._check_view(client)

    async def reset(self, client: AsyncClient) -> None:
        """Table and view are there as declared, without a row. Killed in between, one of them may be missing."""
        await client.command(f"DROP VIEW IF EXISTS `{self.view}` SYNC")
        await client.command(f"DROP TABLE IF EXISTS `{self.physical}` SYNC")
        await self.prepare(client)

    async def rows(self, client: AsyncClient) -> int:
        """How many rows are stored, older versions and tombstones among them; 0 where there is no table."""
        return int((await client.query(_COUNT_ROWS, parameters={"name": self.physical})).result_rows[0][0])

    async def check(self, client: AsyncClient) -> None:
        """Raises Misconfigured unless table and view are there as declared."""
        await self._check_table(client)
        await self._check_view(client)

    async def _check_table(self, client: AsyncClient) -> None:
        engine, engine_full, sorting_key, partition_key, _ = await self._find(client, self.physical)
        # A replicated engine has its path and replica before them.
        ours = re.search(rf"[( ]{self.version_column}, {DELETED}\)", engine_full)
        if not engine.endswith("ReplacingMergeTree") or not ours:
            raise self._misfit(f"table {self.physical!r} is no ReplacingMergeTree({self.version_column}, {DELETED})")
        if _plain(sorting_key) != ",".join(self.order_by):
            raise self._misfit(f"table {self.physical!r} is sorted by {sorting_key!r}")
        if _plain(partition_key) != _plain(self.partition_by or ""):
            raise self._misfit(f"table {self.physical!r} is partitioned by {partition_key!r}")
        await self._check_columns(client, self.physical, self.all_columns)

    async def _check_view(self, client: AsyncClient) -> None:
        engine, _, _, _, query = await self._find(client, self.view)
        if engine != "View" or f"{self.physical} FINAL" not in _plain_names(query) or DELETED not in query:
            raise self._misfit(f"{self.view!r} is no view of {self.physical!r} without its tombstones")
        await self._check_columns(client, self.view, self.columns)

    async def _check_columns(self, client: AsyncClient, name: str, declared: Mapping[str, str]) -> None:
        rows = (await client.query(_FIND_COLUMNS, parameters={"name": name})).result_rows
        found: dict[str, str] = {column: type_name for column, type_name in rows}  # noqa: C416  # rows are no typed pairs
        for column, type_name in declared.items():
            if column not in found:
                raise self._misfit(f"{name!r} has no column {column!r}")
            # ClickHouse spells types in its own way: both go through the same parser.
            if get_from_name(found[column]).name != get_from_name(type_name).name:
                raise self._misfit(f"column {column!r} of {name!r} is {found[column]}")

    async def _find(self, client: AsyncClient, name: str) -> tuple[str, str, str, str, str]:
        rows = (await client.query(_FIND_TABLE, parameters={"name": name})).result_rows
        if not rows:
            raise Misconfigured(f"ClickHouse has no {name!r}; run 'tidegate migrate'")
        engine, engine_full, sorting_key, partition_key, query = rows[0]
        return engine, engine_full, sorting_key, partition_key, query

    def _misfit(self, found: str) -> Misconfigured:
        return Misconfigured(
            f"ClickHouse(table={self.view!r}): {found}, not as declared; alter it by hand, or declare another table"
        )

    def _table_statement(self) -> str:
        columns = ", ".join(f"`{name}` {type_name}" for name, type_name in self.all_columns.items())
        engine = f"ReplacingMergeTree(`{self.version_column}`, {DELETED})"
        partition = f" PARTITION BY {self.partition_by}" if self.partition_by else ""
        order = f" ORDER BY ({_listed(self.order_by)})"
        return f"CREATE TABLE IF NOT EXISTS `{self.physical}` ({columns}) ENGINE = {engine}{partition}{order}"

    def _view_statement(self) -> str:
        # The setting is ClickHouse's default, but not every server's: without it a row that moved to another partition,
        # or its tombstone, would show beside it.
        source = f"`{self.physical}` FINAL WHERE {DELETED} = 0 SETTINGS do_not_merge_across_partitions_select_final = 0"
        # Names are plain identifiers, checked where they are declared.
        return f"CREATE VIEW IF NOT EXISTS `{self.view}` AS SELECT {_listed(self.columns)} FROM {source}"  # noqa: S608


def _listed(names: Sequence[str] | Mapping[str, str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _plain_names(query: str) -> str:
    return query.replace("`", "")


def _plain(expression: str) -> str:
    """An expression without what servers of different versions spell differently: quotes, spaces, parentheses."""
    return _SPACE.sub("", expression)
