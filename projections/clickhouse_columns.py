"""Values as ClickHouse's columns take them: what does not fit is refused here, never bent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from clickhouse_connect.datatypes.base import ClickHouseType
from clickhouse_connect.datatypes.registry import get_from_name
from clickhouse_connect.driver.exceptions import ClickHouseError

from projections.clickhouse_columnwise import Convert, ConvertAll, column_wise, integer_bounds
from tidegate_kernel.errors import Misconfigured

MISFITS = (TypeError, ValueError, ArithmeticError, LookupError)
"""What a conversion raises for a value that does not fit."""

_SUPPORTED = (
    "String, FixedString, Int8 to UInt64, Float32, Float64, Bool, Date, Date32, DateTime, DateTime64, UUID, Decimal, "
    "Enum8, Enum16, and Nullable, LowCardinality or Array of them"
)
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# What ClickHouse documents for each type: beyond it, it clamps or wraps without a word.
_LAST_DATE = date(2149, 6, 6)
_FIRST_DATE32, _LAST_DATE32 = date(1900, 1, 1), date(2299, 12, 31)
_FIRST_DATETIME64 = datetime(1900, 1, 1, tzinfo=UTC)
_LAST_DATETIME64 = datetime(2299, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
_MAX_FLOAT = {32: 3.4028234663852886e38, 64: 1.7976931348623157e308}
_INTEGER_BITS = (8, 16, 32, 64)
# Wider than ClickHouse's widest decimal: scaling must not round what is then compared.
_EXACT = Context(prec=200)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: how values are converted, what a tombstone holds in it, and how to say what it takes."""

    name: str
    type: ClickHouseType
    convert: Convert
    convert_all: ConvertAll
    blank: Any
    takes: str


def column(name: str, type_name: str) -> Column:
    """The column for a declared type. Raises Misconfigured for a type that is unknown or not supported."""
    try:
        declared = get_from_name(type_name)
        convert, blank, takes = _of_type(declared)
    except (ClickHouseError, LookupError, ValueError) as error:
        raise Misconfigured(f"column {name!r}: type {type_name!r} is not supported; take {_SUPPORTED}") from error
    return Column(name, declared, convert, column_wise(declared, convert), blank, takes)


def _of_type(declared: ClickHouseType) -> tuple[Convert, Any, str]:
    convert, blank, takes = _plain(declared)
    if declared.nullable:
        return _nullable(convert), None, f"{takes}, or None"
    return convert, blank, takes


def _plain(declared: Any) -> tuple[Convert, Any, str]:
    """The type without its wrappers. Raises KeyError for one that is not supported."""
    base = declared.base_type
    if base.startswith(("Int", "UInt", "Float")):
        return _number(base)
    if base.startswith("Enum"):
        return _enum(declared._name_map)
    if base.startswith("Decimal"):
        return _decimal(declared.prec, declared.scale)
    match base:
        case "FixedString":
            return _fixed_text(declared.byte_size), bytes(declared.byte_size), f"a text of {declared.byte_size} bytes"
        case "DateTime64":
            return _ticks(declared.scale), 0, _takes_ticks(declared.scale)
        case "Array":
            convert, _, takes = _of_type(declared.element_type)
            return _array(convert), [], f"a list, each element {takes}"
        case _:
            return _SIMPLE[base]


def _number(base: str) -> tuple[Convert, Any, str]:
    bits = int(base.removeprefix("U").removeprefix("Int").removeprefix("Float"))
    if base.startswith("Float"):
        return _float(_MAX_FLOAT[bits]), 0.0, f"a finite number that {base} can hold"
    if bits not in _INTEGER_BITS:
        raise KeyError(base)
    low, high = integer_bounds(base)
    return _integer(low, high), 0, f"an integer from {low} to {high}"


def _integer(low: int, high: int) -> Convert:
    def convert(value: Any) -> int:
        if value.__class__ is int and low <= value <= high:
            return value
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return int(value)
        raise ValueError

    return convert


def _float(limit: float) -> Convert:
    def convert(value: Any) -> float:
        # Not a number fails every comparison.
        if value.__class__ is float and -limit <= value <= limit:
            return value
        if value.__class__ is int and -limit <= value <= limit and float(value) == value:
            return float(value)
        raise ValueError

    return convert


def _enum(values: Mapping[str, int]) -> tuple[Convert, Any, str]:
    return values.__getitem__, min(values.values()), "one of its names"


def _decimal(precision: int, scale: int) -> tuple[Convert, Any, str]:
    bound = Decimal(10) ** precision

    def convert(value: Any) -> Decimal:
        if value.__class__ is not Decimal:
            if value.__class__ is not int and value.__class__ is not str:
                raise TypeError
            value = Decimal(value)
        scaled = _EXACT.scaleb(value, scale)
        if not value.is_finite() or scaled.copy_abs() >= bound or scaled != _EXACT.to_integral_value(scaled):
            raise InvalidOperation
        return value  # type: ignore[no-any-return]  # a Decimal by now

    return convert, Decimal(0), f"a decimal of {precision} digits, {scale} of them after the point"


def _fixed_text(size: int) -> Convert:
    def convert(value: Any) -> bytes:
        spelled = value if isinstance(value, bytes) else str.encode(value)
        if len(spelled) != size:
            raise ValueError
        return spelled

    return convert


def _ticks(scale: int) -> Convert:
    unit = timedelta(microseconds=10 ** max(6 - scale, 0))
    factor = 10 ** max(scale - 6, 0)
    low, high = (_FIRST_DATETIME64 - _EPOCH) // unit, (_LAST_DATETIME64 - _EPOCH) // unit
    return _since_epoch(unit, low=max(low, -(2**63 // factor)), high=min(high, (2**63 - 1) // factor), factor=factor)


def _takes_ticks(scale: int) -> str:
    digits = f"{scale} digits of its seconds at most" if scale else "whole seconds"
    return f"a date and time with a time zone and {digits}, 1900 to {2262 if scale == 9 else 2299}"


def _since_epoch(unit: timedelta, *, low: int, high: int, factor: int = 1) -> Convert:
    def convert(value: Any) -> int:
        # A datetime without a time zone, a date or anything else cannot be subtracted from: TypeError.
        since = (datetime.fromisoformat(value) if value.__class__ is str else value) - _EPOCH
        ticks, rest = divmod(since, unit)
        # Finer than the column: cut, it would be another time. Which one is meant is for the projection to say.
        if low <= ticks <= high and not rest:
            return int(ticks) * factor
        raise ValueError

    return convert


def _days(first: date, last: date) -> Convert:
    low, high = first.toordinal(), last.toordinal()

    def convert(value: Any) -> int:
        day = date.fromisoformat(value) if value.__class__ is str else value
        # A datetime is a date by inheritance, and which day it is depends on a time zone that nobody named.
        if day.__class__ is date and low <= (ordinal := day.toordinal()) <= high:
            return ordinal - _EPOCH_ORDINAL
        raise TypeError

    return convert


def _text(value: Any) -> bytes:
    return value if value.__class__ is bytes else str.encode(value)


def _truth(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise TypeError


def _uuid(value: Any) -> UUID:
    if isinstance(value, UUID):
        return value
    if isinstance(value, str):
        return UUID(value)
    raise TypeError


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _array(convert: Convert) -> Convert:
    def convert_all(value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise TypeError
        return [convert(each) for each in value]

    return convert_all


_SIMPLE: dict[str, tuple[Convert, Any, str]] = {
    "String": (_text, b"", "a text without lone surrogates"),
    "Bool": (_truth, False, "a truth value"),
    "Date": (_days(date(1970, 1, 1), _LAST_DATE), 0, "a date without time, 1970-01-01 to 2149-06-06"),
    "Date32": (_days(_FIRST_DATE32, _LAST_DATE32), 0, "a date without time, 1900-01-01 to 2299-12-31"),
    "DateTime": (
        _since_epoch(timedelta(seconds=1), low=0, high=2**32 - 1),
        0,
        "a date and time with a time zone and whole seconds, 1970 to 2106",
    ),
    "UUID": (_uuid, UUID(int=0), "a UUID"),
}
