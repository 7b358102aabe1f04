"""Rows as one insert: a statement with one block of ClickHouse's native format, column by column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clickhouse_connect.datatypes.registry import get_from_name
from clickhouse_connect.driver.insert import InsertContext
from clickhouse_connect.driver.transform import NativeTransform

from projections.clickhouse_partitions import Row
from projections.clickhouse_rows import Rows


@dataclass(frozen=True, slots=True)
class Block:
    """Rows for one insert, with their places in the batch."""

    places: Sequence[int]
    rows: Sequence[Row]

    @classmethod
    def of(cls, rows: Sequence[Row], places: Sequence[int]) -> Block:
        """Those of a batch's rows that stand at `places`."""
        return cls(places, [rows[place] for place in places])

    def __len__(self) -> int:
        return len(self.places)

    def halves(self) -> tuple[Block, Block]:
        """Both in their order; of one row, the first is empty."""
        middle = len(self) // 2
        return Block(self.places[:middle], self.rows[:middle]), Block(self.places[middle:], self.rows[middle:])


class BlockWriter:
    """Writes rows of all columns of `table`, with the client's own writers of columns.

    Names and types are given, so that nothing is asked of the server. It is done here and now: the client itself would
    do it in a thread of its own, which takes the same time from us, and the way there and back.
    """

    def __init__(self, table: str, columns: Mapping[str, str]) -> None:
        self._table = f"`{table}`"
        self._names = list(columns)
        self._types = [get_from_name(type_name) for type_name in columns.values()]

    def __call__(self, rows: Sequence[Row]) -> bytes:
        """Returns the body of the request. Raises what the client raises for a value that it cannot write."""
        columns = rows.columns if isinstance(rows, Rows) else list(zip(*rows, strict=True))
        context = _Columns(self._table, self._names, self._types, data=columns, column_oriented=True)
        body = b"".join(NativeTransform.build_insert(context))
        if context.insert_exception is not None:
            raise context.insert_exception
        return body


class _Columns(InsertContext):
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
