"""A column converted at once: where all its values are plain, in a few passes that are not Python's own loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, TypeAlias

from clickhouse_connect.datatypes.base import ClickHouseType

Convert: TypeAlias = Callable[[Any], Any]
"""A value as the column's writer takes it. Raises for a value that does not fit."""

ConvertAll: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
"""The same for one value or more: what `Convert` returns of each, or one of its errors."""


def column_wise(declared: ClickHouseType, convert: Convert) -> ConvertAll:
    """Returns what does as `convert` to each value of a column, for less where all of them are of one plain type."""
    one_by_one = _one_by_one(convert)
    plain = _plain(declared, one_by_one)
    return _without_none(plain, one_by_one) if declared.nullable else plain


def integer_bounds(base: str) -> tuple[int, int]:
    """The least and the greatest number of UInt8, Int64 and their like."""
    bits = int(base.removeprefix("U").removeprefix("Int"))
    return (0, 2**bits - 1) if base.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _plain(declared: Any, one_by_one: ConvertAll) -> ConvertAll:
    base = declared.base_type
    if base == "String":
        return _texts(one_by_one)
    if base.startswith(("Int", "UInt")):
        return _integers(*integer_bounds(base), one_by_one)
    if base == "Float64":
        return _floats(one_by_one)
    return one_by_one


def _one_by_one(convert: Convert) -> ConvertAll:
    return lambda values: list(map(convert, values))


def _without_none(plain: ConvertAll, one_by_one: ConvertAll) -> ConvertAll:
    return lambda values: one_by_one(values) if None in values else plain(values)


def _texts(one_by_one: ConvertAll) -> ConvertAll:
    def convert_all(values: Sequence[Any]) -> Sequence[Any]:
        try:
            return list(map(str.encode, values))
        except TypeError:  # some are bytes already, or do not fit
            return one_by_one(values)

    return convert_all


def _integers(low: int, high: int, one_by_one: ConvertAll) -> ConvertAll:
    def convert_all(values: Sequence[Any]) -> Sequence[Any]:
        # The exact class: truth values are integers by inheritance.
        if set(map(type, values)) == {int} and low <= min(values) and max(values) <= high:
            return values
        return one_by_one(values)

    return convert_all


def _floats(one_by_one: ConvertAll) -> ConvertAll:
    def convert_all(values: Sequence[Any]) -> Sequence[Any]:
        if set(map(type, values)) == {float} and all(map(isfinite, values)):
            return values
        return one_by_one(values)

    return convert_all
