"""A ClickHouse table of versioned rows and the view that readers query: made, and compared with what is declared."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clickhouse_connect.datatypes.registry import get_from_name
from clickhouse_connect.driver.exceptions import ClickHouseError

from projections.clickhouse_system import Found, columns_of, count_rows, find, settings_of
from projections.clickhouse_views import WINDOW, WINDOW_BLOCKS, require_exact_views, require_no_views
from projections.documents import DELETED, DELETED_AT
from tidegate_kernel.errors import Misconfigured, NeedsRebuild

if TYPE_CHECKING:
    from clickhouse_connect.driver.asyncclient import AsyncClient

_SPACE = re.compile(r"[\s`()]+")
# What would remove tombstones at a merge, and let a late older row come back.
_CLEANING = {"clean_deleted_rows": "Never", "allow_experimental_replacing_merge_with_cleanup": "0"}
# Columns that the server computes by itself: they may be added to our table.
_COMPUTED = ("MATERIALIZED", "ALIAS", "EPHEMERAL")


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionedTable:
    """The newest version per sorting key in `physical`, shown without its tombstones as `view`.

    `remembers_tokens`: it takes stable batches, and may feed materialized views. `has_tombstones`: rows are deleted.
    """

    view: str
    physical: str
    columns: Mapping[str, str]
    order_by: Sequence[str]
    version_column: str
    partition_by: str | None
    remembers_tokens: bool = False
    has_tombstones: bool = True

    @property
    def all_columns(self) -> dict[str, str]:
        """The table's columns with ours behind, in the order of an insert."""
        return {**self.columns, self.version_column: "UInt64", DELETED: "UInt8", DELETED_AT: "DateTime('UTC')"}

    async def prepare(self, client: AsyncClient) -> None:
        """Table and view exist. Raises as `check` where one was there and is not as declared; nothing is made then."""
        table, view = await find(client, self.physical), await find(client, self.view)
        if table is not None:
            await self._check_table(client, table)
        if view is not None:
            await self._check_view(client, view)
        await client.command(self._table_statement())
        await client.command(self._view_statement())
        await self.check(client)

    async def reset(self, client: AsyncClient) -> None:
        """Table and view are there as declared, without a row. Killed in between, one of them may be missing."""
        # Their names are free at once. SYNC would wait until nobody reads them any more, for a minute and longer.
        await client.command(f"DROP VIEW IF EXISTS `{self.view}`")
        await client.command(f"DROP TABLE IF EXISTS `{self.physical}`")
        await self.prepare(client)

    async def rows(self, client: AsyncClient) -> int:
        """How many rows are stored, older versions and tombstones among them; 0 where there is no table."""
        return await count_rows(client, self.physical)

    async def check(self, client: AsyncClient) -> None:
        """Raises Misconfigured unless table and view are there; NeedsRebuild where the table is not as declared."""
        await self._check_table(client, await self._find(client, self.physical))
        await self._check_view(client, await self._find(client, self.view))

    async def _check_table(self, client: AsyncClient, table: Found) -> None:
        differences = self._differing_engine(table)
        if not differences:
            differences = self._differing_keys(table) + await self._differing_columns(client)
        if differences:
            raise NeedsRebuild(f"ClickHouse table {self.physical!r}", differences)
        await self._require_tombstones_kept(client, table)
        if self.remembers_tokens:
            self._require_whole_blocks(table)
            await require_exact_views(client, table)
        else:
            await require_no_views(table)

    def _differing_engine(self, table: Found) -> list[str]:
        declared = f"ReplacingMergeTree({self.version_column}, {DELETED})"
        # A replicated engine has its path and replica before them.
        is_ours = re.search(rf"[( ]{self.version_column}, {DELETED}\)", table.engine_full.replace("`", ""))
        if table.engine.endswith("ReplacingMergeTree") and is_ours:
            return []
        found = re.split(r" (?:PARTITION|PRIMARY|ORDER|SAMPLE|TTL|SETTINGS) ", table.engine_full or table.engine)[0]
        return [f"its engine is {found}, declared {declared}"]

    def _differing_keys(self, table: Found) -> list[str]:
        differences = []
        found, declared = _plain(table.sorting_key), ",".join(self.order_by)
        if found != declared:
            differences.append(f"it is sorted by {found!r}, declared {declared!r}")
        if _plain(table.partition_key) != _plain(self.partition_by or ""):
            differences.append(f"it is partitioned by {table.partition_key!r}, declared {self.partition_by or ''!r}")
        return differences

    async def _differing_columns(self, client: AsyncClient) -> list[str]:
        found, declared = await columns_of(client, self.physical), self.all_columns
        differences = []
        for column, type_name in declared.items():
            if column not in found:
                differences.append(f"column {column!r} is missing, declared {type_name}")
            elif not _is_same_type(found[column][0], type_name):
                differences.append(f"column {column!r} is {found[column][0]}, declared {type_name}")
        for column, (type_name, kind) in found.items():
            if column not in declared and kind not in _COMPUTED:
                differences.append(f"column {column!r} is {type_name}, and is not declared")
        return differences

    async def _require_tombstones_kept(self, client: AsyncClient, table: Found) -> None:
        for name, value in (await settings_of(client, table, list(_CLEANING))).items():
            if value not in (_CLEANING[name], "false"):
                raise self._misfit(
                    f"the setting {name} of table {self.physical!r} is {value}: merges would remove tombstones, and "
                    f"late older rows come back; run ALTER TABLE {self.physical} MODIFY SETTING "
                    f"{name} = {_CLEANING[name]!r}"
                )
        if self.has_tombstones and re.search(r"\bTTL\b", table.engine_full):
            raise self._misfit(
                f"table {self.physical!r} has a TTL: it would remove tombstones, which hold no column but the key, and "
                f"late older rows come back; run ALTER TABLE {self.physical} REMOVE TTL"
            )

    def _require_whole_blocks(self, table: Found) -> None:
        if re.search(r"\bCONSTRAINT\b", table.statement):
            raise self._misfit(
                f"table {self.physical!r} has a constraint, and a stable batch is never cut: one row would hold up all "
                "that come after it; check the values in the projection, and drop the constraint"
            )

    async def _check_view(self, client: AsyncClient, view: Found) -> None:
        query = view.query.replace("`", "")
        if view.engine != "View" or f"{self.physical} FINAL" not in query or DELETED not in query:
            raise self._misfit(
                f"{self.view!r} is no view of {self.physical!r} without its tombstones; drop it, or take another name"
            )
        found = await columns_of(client, self.view)
        for column, type_name in self.columns.items():
            if column not in found or not _is_same_type(found[column][0], type_name):
                raise self._misfit(f"view {self.view!r} does not show column {column!r} as {type_name}; drop the view")

    async def _find(self, client: AsyncClient, name: str) -> Found:
        found = await find(client, name)
        if found is None:
            raise Misconfigured(f"ClickHouse has no {name!r}; run 'tidegate migrate'")
        return found

    def _misfit(self, found: str) -> Misconfigured:
        return Misconfigured(f"ClickHouse(table={self.view!r}): {found}")

    def _table_statement(self) -> str:
        columns = ", ".join(f"`{name}` {type_name}" for name, type_name in self.all_columns.items())
        engine = f"ReplacingMergeTree(`{self.version_column}`, {DELETED})"
        partition = f" PARTITION BY {self.partition_by}" if self.partition_by else ""
        order = f" ORDER BY ({_listed(self.order_by)})"
        settings = f" SETTINGS {WINDOW} = {WINDOW_BLOCKS}" if self.remembers_tokens else ""
        return f"CREATE TABLE IF NOT EXISTS `{self.physical}` ({columns}) ENGINE = {engine}{partition}{order}{settings}"

    def _view_statement(self) -> str:
        # The setting is ClickHouse's default, but not every server's: without it a row that moved to another partition,
        # or its tombstone, would show beside it.
        source = f"`{self.physical}` FINAL WHERE {DELETED} = 0 SETTINGS do_not_merge_across_partitions_select_final = 0"
        # Names are plain identifiers, checked where they are declared.
        return f"CREATE VIEW IF NOT EXISTS `{self.view}` AS SELECT {_listed(self.columns)} FROM {source}"  # noqa: S608


def _listed(names: Sequence[str] | Mapping[str, str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _is_same_type(found: str, declared: str) -> bool:
    """ClickHouse spells types in its own way: both go through the same parser."""
    try:
        return bool(get_from_name(found).name == get_from_name(declared).name)
    except ClickHouseError:
        return False


def _plain(expression: str) -> str:
    """An expression without what servers of different versions spell differently: quotes, spaces, parentheses."""
    return _SPACE.sub("", expression)
