"""A row's model against its columns: what can never fit is told by name when the job is declared."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import make_dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType, Optional, TypedDict
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel

from projections.clickhouse import ClickHouse
from tidegate_kernel.errors import Misconfigured

Cents = NewType("Cents", int)


class Kind(enum.StrEnum):
    NEW = "new"


class Row(msgspec.Struct):
    id: str
    cents: int


class ModelRow(BaseModel):
    id: str
    cents: int


class DictRow(TypedDict):
    id: str
    cents: int


COLUMNS = {"id": "String", "cents": "Int64"}


def declare(row: type[Any], columns: dict[str, str] | None = None) -> ClickHouse:
    return ClickHouse(table="t", columns=COLUMNS if columns is None else columns, order_by=("id",), row=row)


@pytest.mark.parametrize("row", [Row, ModelRow, DictRow, make_dataclass("DataRow", [("id", str), ("cents", int)])])
def test_model_that_fits_is_taken(row: type[Any]) -> None:
    """Whatever the documents are made of."""
    declare(row)


def test_everything_that_differs_is_named_at_once() -> None:
    """One start, one message: missing, superfluous, optional and wrong."""

    class Wrong(BaseModel):
        id: str
        cents: str
        note: str | None
        colour: str

    columns = {**COLUMNS, "note": "String", "shop": "String"}
    with pytest.raises(Misconfigured) as caught:
        declare(Wrong, columns)

    assert str(caught.value) == (
        "ClickHouse(table='t'): row=Wrong does not fit: column 'shop' has no field; "
        "field 'cents' is str, column is Int64; field 'note' may be None, column is String; "
        "field 'colour' has no column"
    )


def field_fits(annotation: Any, column: str) -> bool:
    row = msgspec.defstruct("Row", [("id", str), ("x", annotation)])
    try:
        declare(row, {"id": "String", "x": column})
    except Misconfigured:
        return False
    return True


@pytest.mark.parametrize(
    "annotation,column",
    [
        (int, "UInt8"),
        (Cents, "Int64"),
        (Annotated[int, msgspec.Meta(ge=0)], "Int64"),
        (int | None, "Nullable(Int64)"),
        (Optional[str], "LowCardinality(Nullable(String))"),  # noqa: UP045  # as older code spells it
        (int | float, "Float64"),
        (Decimal | int, "Decimal(9, 2)"),
        (str, "Decimal(9, 2)"),
        (bool, "Bool"),
        (bytes, "String"),
        (str, "FixedString(3)"),
        (date, "Date"),
        (str, "Date32"),
        (datetime, "DateTime64(3, 'UTC')"),
        (UUID, "UUID"),
        (Kind, "Enum8('new' = 1)"),
        (Literal["new", "paid"], "Enum8('new' = 1, 'paid' = 2)"),
        (Kind, "LowCardinality(String)"),
        (list[int], "Array(Int64)"),
        (list[int | None], "Array(Nullable(Int64))"),
        (tuple[str, ...], "Array(String)"),
        (Sequence[list[date]], "Array(Array(Date))"),
        (Any, "Int64"),
    ],
)
def test_type_that_the_column_takes_fits(annotation: Any, column: str) -> None:
    """Wherever the encoder would take values of that type."""
    assert field_fits(annotation, column)


@pytest.mark.parametrize(
    "annotation,column",
    [
        (str, "Int64"),
        (float, "Int64"),
        (bool, "Int64"),
        (int, "Bool"),
        (int, "String"),
        (int | None, "Int64"),
        (float, "Decimal(9, 2)"),
        (datetime, "Date"),
        (date, "DateTime"),
        (int, "DateTime64(3)"),
        (int, "Enum8('new' = 1)"),
        (bytes, "UUID"),
        (str, "Array(String)"),
        (list[str], "Array(Int64)"),
        (list[int | None], "Array(Int64)"),
        (list[int] | None, "Array(Int64)"),
        (dict[str, int], "String"),
        (Row, "String"),
    ],
)
def test_type_that_the_column_never_takes_is_refused(annotation: Any, column: str) -> None:
    """Case 99: every row would be a dead letter."""
    assert not field_fits(annotation, column)


def test_class_that_does_not_tell_its_fields_is_refused() -> None:
    """Nothing could be checked, and somebody believed that it was."""
    with pytest.raises(Misconfigured, match="row=dict cannot be read"):
        declare(dict)
