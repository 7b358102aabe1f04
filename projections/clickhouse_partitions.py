"""Which table partition a row goes to, as far as a client can tell: one insert is to touch one partition only.

A block over several partitions is one part in each of them, and not atomic; its deduplication token would count for
all of them at once. Two rows with one key here are in one partition there. The other way round it need not hold: a
partition may get two inserts, which costs a part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import date
from typing import Any, TypeAlias

from clickhouse_connect.datatypes.registry import get_from_name

Row: TypeAlias = tuple[Any, ...]
PartitionKey: TypeAlias = Callable[[Row], Hashable]

_SECONDS_OF_A_DAY = 86_400
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_PART = re.compile(r"(?:(?P<function>\w+)\s*\(\s*)?`?(?P<column>\w+)`?\s*(?P<rest>.*)\Z", re.DOTALL)
_DIVISOR = re.compile(r",\s*(\d+)\s*\)\Z")

# A day, as its ordinal, to what these functions make equal. Coarser than the day only as far as they are.
_OF_DAYS: Mapping[str, Callable[[date], Hashable]] = {
    "toDate": date.toordinal,
    "toYYYYMMDD": date.toordinal,
    "toMonday": lambda day: day.toordinal() - day.weekday(),
    "toYYYYMM": lambda day: (day.year, day.month),
    "toStartOfMonth": lambda day: (day.year, day.month),
    "toStartOfQuarter": lambda day: (day.year, (day.month - 1) // 3),
    "toYear": lambda day: day.year,
    "toStartOfYear": lambda day: day.year,
}


def partition_key(expression: str | None, columns: Mapping[str, str]) -> PartitionKey | None:
    """Tells rows of different partitions apart; None for an expression that only the server can evaluate.

    Known are columns, toYYYYMM and its like of dates (and of times in UTC), intDiv and modulo of integers by a number,
    and tuples of these. `columns` are all of the table, in the order of a row.
    """
    if expression is None:
        return lambda _row: ()
    names = list(columns)
    keys: list[PartitionKey] = []
    for part in _parts(expression):
        key = _key_of_part(part, names, columns)
        if key is None:
            return None
        keys.append(key)
    return keys[0] if len(keys) == 1 else lambda row: tuple([key(row) for key in keys])


def columns_within(expression: str, columns: Mapping[str, str]) -> list[int]:
    """The places of the columns whose names stand in `expression`."""
    words = set(re.findall(r"\w+", expression))
    return [place for place, name in enumerate(columns) if name in words]


def _parts(expression: str) -> Sequence[str]:
    """The elements of a tuple, or the expression itself."""
    plain = expression.strip()
    inner = re.fullmatch(r"(?:tuple)?\s*\((.*)\)", plain, re.DOTALL)
    if inner is None or not _is_balanced(inner[1]):
        return [plain]
    elements, depth, start = [], 0, 0
    for place, character in enumerate(inner[1]):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            elements.append(inner[1][start:place])
            start = place + 1
    return [element.strip() for element in (*elements, inner[1][start:]) if element.strip()]


def _is_balanced(text: str) -> bool:
    """Whether no parenthesis closes that was not opened: the outer ones belong together then."""
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return False
    return depth == 0


def _key_of_part(part: str, names: Sequence[str], columns: Mapping[str, str]) -> PartitionKey | None:
    found = _PART.fullmatch(part)
    if found is None or found["column"] not in columns:
        return None
    place = names.index(found["column"])
    base: Any = get_from_name(columns[found["column"]])
    function, rest = found["function"], found["rest"].strip()
    if function is None and not rest and not base.base_type.startswith(("Array", "Float")):
        return lambda row: row[place]
    if function in _OF_DAYS and rest == ")":
        return _key_of_days(place, base, _OF_DAYS[function])
    if function in ("intDiv", "modulo") and (divisor := _DIVISOR.fullmatch(rest)) and int(divisor[1]):
        return _key_of_integers(function, place, base, int(divisor[1]))
    return None


def _key_of_days(place: int, base: Any, of_day: Callable[[date], Hashable]) -> PartitionKey | None:
    """The row holds days, seconds or ticks since 1970. A day of another zone than UTC begins at another moment."""
    if base.base_type in ("Date", "Date32"):
        unit = 1
    elif base.base_type in ("DateTime", "DateTime64") and re.search(r"'(UTC|Etc/UTC|GMT)'", base.name):
        unit = _SECONDS_OF_A_DAY * 10 ** (base.scale if base.base_type == "DateTime64" else 0)
    else:
        return None
    known: dict[int | None, Hashable] = {None: None}

    def key(row: Row) -> Hashable:
        value = row[place]
        day = value if value is None else value // unit
        if day not in known:
            known[day] = of_day(date.fromordinal(value // unit + _EPOCH_ORDINAL))
        return known[day]

    return key


def _key_of_integers(function: str, place: int, base: Any, divisor: int) -> PartitionKey | None:
    """ClickHouse rounds towards zero and keeps the sign: it is part of the key."""
    if not re.fullmatch(r"U?Int\d+", base.base_type):
        return None

    def key(row: Row) -> Hashable:
        value = row[place]
        if value is None:
            return None
        return value < 0, abs(value) // divisor if function == "intDiv" else abs(value) % divisor

    return key
