"""Writes as rows of a ClickHouse table, each value converted and checked before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, overload

import msgspec

from projections.clickhouse_columns import MISFITS, column
from projections.clickhouse_partitions import Row
from projections.documents import are_plain, check_write
from projections.writes import Delete, Upsert
from tidegate_kernel.errors import InvalidDocument


class Rows(Sequence[Row]):
    """Rows that are kept as columns of one length, one or more: an insert wants nothing else."""

    __slots__ = ("columns",)

    def __init__(self, columns: Sequence[Sequence[Any]]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    @overload
    def __getitem__(self, place: int) -> Row: ...

    @overload
    def __getitem__(self, place: slice) -> Rows: ...

    def __getitem__(self, place: int | slice) -> Row | Rows:
        cells = [column[place] for column in self.columns]
        return Rows(cells) if isinstance(place, slice) else tuple(cells)

    def __iter__(self) -> Iterator[Row]:
        return zip(*self.columns, strict=True)


class RowEncoder:
    """Turns writes into rows: the declared columns in their order, then version, deleted and since when."""

    def __init__(self, columns: Mapping[str, str], id_column: str | None) -> None:
        self.columns = [column(name, type_name) for name, type_name in columns.items()]
        self._converters = [(each.name, each.convert) for each in self.columns]
        self._id = next((number for number, each in enumerate(self.columns) if each.name == id_column), None)
        self._id_name = id_column
        self._blank = [each.blank for each in self.columns]

    @property
    def takes_deletes(self) -> bool:
        """Whether one column holds the id, so that a Delete knows its row."""
        return self._id is not None

    def upsert(self, write: Upsert) -> Row:
        """The row of `write`. Raises InvalidDocument that names the column."""
        check_write(write)
        document = write.document if write.document.__class__ is dict else _mapping(write)
        try:
            row = [convert(document[name]) for name, convert in self._converters]
        except MISFITS:
            # Not chained: the errors of conversions quote the value.
            raise self._explanation(write, document) from None
        if len(document) != len(row):
            unknown = sorted(str(name)[:60] for name in document.keys() - {each.name for each in self.columns})
            raise InvalidDocument(f"document {_short(write.id)}: no column for field {unknown[0]!r}")
        if self._id_name is not None and document[self._id_name] != write.id:
            self._require_same_id(write, row)
        return (*row, write.version, 0, 0)

    def upserts(self, writes: Sequence[Upsert]) -> Sequence[Row]:
        """What `upsert` returns of each, for less. Raises InvalidDocument that names the first that has no row."""
        try:
            return self._by_columns(writes)
        except MISFITS:
            return [self.upsert(write) for write in writes]

    def _by_columns(self, writes: Sequence[Upsert]) -> Sequence[Row]:
        """Raises one of MISFITS where a value does not fit, or has to be looked at by itself."""
        documents = [each.document if each.document.__class__ is dict else _mapping(each) for each in writes]
        ids, versions = [each.id for each in writes], [each.version for each in writes]
        if not are_plain(ids, versions) or set(map(len, documents)) != {len(self.columns)}:
            raise LookupError
        values = [[document[each.name] for document in documents] for each in self.columns]
        columns = [each.convert_all(column) for each, column in zip(self.columns, values, strict=True)]
        if self._id is not None and values[self._id] != ids and columns[self._id] != list(map(self._key, writes)):
            raise LookupError
        nothing = [0] * len(writes)
        return Rows([*columns, versions, nothing, nothing])

    def tombstone(self, write: Delete, deleted_at: datetime) -> Row:
        """A row that replaces the document's and is not shown. Raises InvalidDocument where the id is no key."""
        check_write(write)
        if self._id is None:
            raise InvalidDocument(
                "a Delete needs ClickHouse(id_column=…): the one column of the sorting key that holds the id"
            )
        row = list(self._blank)
        row[self._id] = self._key(write)
        return (*row, write.version, 1, int(deleted_at.timestamp()))

    def _require_same_id(self, write: Upsert, row: list[Any]) -> None:
        """The row's key must be the write's id: a Delete knows nothing else."""
        assert self._id is not None
        if row[self._id] != self._key(write):
            name = self.columns[self._id].name
            raise InvalidDocument(f"document {_short(write.id)}: column {name!r} is not the id of the Upsert")

    def _key(self, write: Upsert | Delete) -> Any:
        assert self._id is not None
        key = self.columns[self._id]
        try:
            return key.convert(_number_of(write.id) if key.takes.startswith("an integer") else write.id)
        except MISFITS:
            raise InvalidDocument(f"document {_short(write.id)}: the id does not fit column {key.name!r}") from None

    def _explanation(self, write: Upsert, document: Mapping[str, Any]) -> InvalidDocument:
        start = f"document {_short(write.id)}: column "
        for each in self.columns:
            if each.name not in document:
                return InvalidDocument(f"{start}{each.name!r} is missing; give None where it is Nullable")
            value = document[each.name]
            try:
                each.convert(value)
            except MISFITS:
                return InvalidDocument(f"{start}{each.name!r} takes {each.takes}, not this {type(value).__name__}")
        return InvalidDocument(f"{start}values changed while they were read")


def _mapping(write: Upsert) -> Mapping[str, Any]:
    if isinstance(write.document, msgspec.Struct):
        return msgspec.structs.asdict(write.document)
    if isinstance(write.document, Mapping):
        return write.document
    raise InvalidDocument(f"document {_short(write.id)} is neither a mapping nor a msgspec Struct")


def _number_of(document_id: str) -> int:
    """Raises ValueError unless the id is spelled as that number's digits: another spelling would be a second id."""
    number = int(document_id)
    if str(number) != document_id:
        raise ValueError
    return number


def _short(document_id: str) -> str:
    return repr(document_id if len(document_id) <= 64 else document_id[:64] + "…")
