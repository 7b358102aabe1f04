"""What ClickHouse's own tables say of a table: engine, keys, columns, settings, and the views that hang on it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clickhouse_connect.driver.asyncclient import AsyncClient

# Parameters are ClickHouse's own, filled by the server.
_FIND_TABLE = """
SELECT
    database, name, toString(uuid), engine, engine_full, sorting_key, partition_key, as_select, create_table_query,
    arrayZip(dependencies_database, dependencies_table)
FROM system.tables
WHERE database = if({database:String} = '', currentDatabase(), {database:String}) AND name = {name:String}
"""
_FIND_COLUMNS = """
SELECT name, type, default_kind
FROM system.columns
WHERE database = currentDatabase() AND table = {name:String}
ORDER BY position
"""
_COUNT_ROWS = """
SELECT sum(rows)
FROM system.parts
WHERE database = currentDatabase() AND table = {name:String} AND active
"""
# What a table does not set itself is the server's.
_FIND_SETTINGS = """
SELECT name, value
FROM system.merge_tree_settings
WHERE name IN {names:Array(String)}
"""
_TARGET = re.compile(r"\sTO\s+(?:`?(?P<database>[^`.\s]+)`?\.)?`?(?P<table>[^`.\s(]+)`?")


@dataclass(frozen=True, slots=True)
class Found:
    """A table or view as the server has it. `views`: materialized views that every insert goes on to."""

    database: str
    name: str
    uuid: str
    engine: str
    engine_full: str
    sorting_key: str
    partition_key: str
    query: str
    statement: str
    views: Sequence[tuple[str, str]] = field(kw_only=True)

    @property
    def is_replicated(self) -> bool:
        return self.engine.startswith(("Replicated", "Shared"))

    @property
    def targets(self) -> Sequence[tuple[str, str]]:
        """Of a materialized view: database and name of the table that it fills, one of these."""
        found = _TARGET.search(self.statement.partition(" AS ")[0])
        if found is not None:
            return [(found["database"] or self.database, found["table"])]
        # Its own, named by the kind of its database.
        return [(self.database, f".inner_id.{self.uuid}"), (self.database, f".inner.{self.name}")]

    def own_setting(self, name: str) -> str | None:
        """What the table itself says; None where the server's default holds."""
        found = re.search(rf"\b{name} = '?([^',]+)'?", self.engine_full)
        return None if found is None else found[1].strip()


async def find(client: AsyncClient, name: str, database: str = "") -> Found | None:
    """The table or view of that name, if there is one; in the client's own database unless another is given."""
    rows = (await client.query(_FIND_TABLE, parameters={"name": name, "database": database})).result_rows
    if not rows:
        return None
    *texts, views = rows[0]
    return Found(*texts, views=[tuple(view) for view in views])


async def columns_of(client: AsyncClient, name: str) -> dict[str, tuple[str, str]]:
    """Type and kind of default of every column."""
    rows = (await client.query(_FIND_COLUMNS, parameters={"name": name})).result_rows
    return {column: (type_name, kind) for column, type_name, kind in rows}


async def count_rows(client: AsyncClient, name: str) -> int:
    """How many rows are stored, older versions and tombstones among them; 0 where there is no table."""
    return int((await client.query(_COUNT_ROWS, parameters={"name": name})).result_rows[0][0])


async def settings_of(client: AsyncClient, table: Found, names: Sequence[str]) -> Mapping[str, str]:
    """What holds for the table; settings that the server does not know are left out."""
    rows = (await client.query(_FIND_SETTINGS, parameters={"names": list(names)})).result_rows
    return {name: table.own_setting(name) or value for name, value in rows}
