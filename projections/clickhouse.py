"""ClickHouse as a sink: versioned rows in big blocks, read through a view that shows the newest ones."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from projections.documents import DELETED, DELETED_AT
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.settings import Settings

if TYPE_CHECKING:
    from projections.clickhouse_rows import RowEncoder
    from projections.clickhouse_sink import ClickHouseSink
    from projections.clickhouse_table import VersionedTable

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, kw_only=True)
class ClickHouse:
    """Rows of `columns` (name to ClickHouse type), read from view `table`, the newest version per `order_by`.

    `id_column` holds the id of the Upsert and is what a Delete removes: by default the single column of `order_by`.
    With a longer `order_by` the newest row per combination is kept, and a Delete is refused. What a column cannot hold
    exactly makes a dead letter, also a time finer than its column; only Float32 keeps the nearest number.
    `partition_by` is an expression of ClickHouse; readers see one row per key also where its versions lie in several
    partitions. Raises Misconfigured for names and types that cannot be used.

    Caught up, a partition of a topic is written once per `linger` at most; behind, in batches of up to `batch_size`.

    `row` is the model of the documents, if they have one: a msgspec Struct, pydantic model, dataclass or TypedDict. It
    is held against the columns at once; of plain dicts nothing is known before the first event.

    `stable_batches` are for tables that feed materialized views: a range of records is applied again exactly as it was
    begun, under a token, and each event once, so that no view counts anything twice. Every row has to be an event's own
    then, not a state that a later one replaces: a view would count both. See docs/clickhouse.md.
    """

    table: str
    columns: Mapping[str, str]
    order_by: Sequence[str]
    id_column: str | None = None
    version_column: str = "tg_version"
    partition_by: str | None = None
    # One insert is one part on disk: small ones drown ClickHouse in merges.
    batch_size: int = 10_000
    stable_batches: bool = False
    row: type[Any] | None = None
    # Small parts as fast as events trickle in would be more than merges can follow.
    linger: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        for name in (self.table, self.version_column, *self.columns):
            if not _IDENTIFIER.match(name):
                raise self._wrong(f"{name!r} is no plain name of letters, digits and underscores")
        ours = {self.version_column, DELETED, DELETED_AT}
        if len(ours) < 3 or not ours.isdisjoint(self.columns):
            raise self._wrong(f"{self.version_column!r}, {DELETED!r} and {DELETED_AT!r} are Tidegate's own columns")
        if isinstance(self.order_by, str) or not self.order_by or not set(self.order_by) <= set(self.columns):
            raise self._wrong("order_by must list one or more of the columns, as in order_by=('order_id',)")
        if self.id_column is not None and tuple(self.order_by) != (self.id_column,):
            raise self._wrong("id_column must be the single column of order_by: two rows could share an id otherwise")
        _ = self.rows
        if self.stable_batches:
            self._require_known_partitions()

        if self.row is not None:
            self._require_fitting_row(self.row)

    def _require_fitting_row(self, row: type[Any]) -> None:
        from projections.clickhouse_model import misfits

        try:
            found = misfits(row, self.columns)
        except (TypeError, NameError) as error:
            raise self._wrong(f"row={row.__name__} cannot be read: {error}") from error
        if found:
            raise self._wrong(f"row={row.__name__} does not fit: {'; '.join(found)}")

    def _require_known_partitions(self) -> None:
        from projections.clickhouse_partitions import partition_key

        if partition_key(self.partition_by, self.columns) is None:
            raise self._wrong(
                f"stable_batches cannot tell rows apart by partition_by={self.partition_by!r}; take a column, toYYYYMM "
                "or its like of a date or of a time in UTC, intDiv or modulo by a number, or a tuple of these"
            )

    @property
    def name(self) -> str:
        return self.table

    @property
    def store(self) -> str:
        return "clickhouse"

    @cached_property
    def rows(self) -> RowEncoder:
        """Raises Misconfigured for a column of an unknown type."""
        # Here and below, not at import: ClickHouse's client takes long to load, and not every service has one.
        from projections.clickhouse_rows import RowEncoder

        only = self.order_by[0] if len(self.order_by) == 1 else None
        return RowEncoder(self.columns, self.id_column or only)

    @cached_property
    def versioned_table(self) -> VersionedTable:
        """Table and view. The generation is part of the table's name, so that a rebuild fills another beside it."""
        from projections.clickhouse_table import VersionedTable

        return VersionedTable(
            view=self.table,
            physical=f"{self.table}_g1",
            columns=self.columns,
            order_by=self.order_by,
            version_column=self.version_column,
            partition_by=self.partition_by,
            remembers_tokens=self.stable_batches,
            has_tombstones=self.rows.takes_deletes,
        )

    def where(self, settings: Settings) -> str:
        return f"clickhouse at {settings.clickhouse_url} (TIDEGATE_CLICKHOUSE_URL)"

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[ClickHouseSink]:
        from projections.clickhouse_connection import STABLE_SESSION, VERSIONED_SESSION, Connection
        from projections.clickhouse_sink import ClickHouseSink
        from projections.clickhouse_stable import StableClickHouseSink

        connection = Connection(settings, STABLE_SESSION if self.stable_batches else VERSIONED_SESSION)
        kind = StableClickHouseSink if self.stable_batches else ClickHouseSink
        try:
            yield kind(self.versioned_table, self.rows, connection)
        finally:
            await connection.close()

    def _wrong(self, what: str) -> Misconfigured:
        return Misconfigured(f"ClickHouse(table={self.table!r}): {what}")
