"""A row's model held against the columns it is written to: what can never fit is told at the start, not row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from decimal import Decimal
from types import UnionType
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec
from clickhouse_connect.datatypes.registry import get_from_name

_NUMBERS = ("Int", "UInt")
# What `clickhouse_columns` converts from, by type of column.
_TAKES: Mapping[str, tuple[type, ...]] = {
    "String": (str, bytes),
    "FixedString": (str, bytes),
    "Bool": (bool,),
    "Date": (date, str),
    "Date32": (date, str),
    "DateTime": (datetime, str),
    "DateTime64": (datetime, str),
    "UUID": (UUID, str),
    "Enum8": (str,),
    "Enum16": (str,),
}
_LISTS = (list, tuple, Sequence)


def misfits(model: type[Any], columns: Mapping[str, str]) -> list[str]:
    """What of `model` cannot go into `columns`, and what is missing on either side; empty if it fits.

    Of a field of type Any nothing is known. Values are still checked one by one: a text may be no date.
    """
    declared = _fields(model)
    found = [f"column {name!r} has no field" for name in columns if name not in declared]
    for name, annotation in declared.items():
        if name not in columns:
            found.append(f"field {name!r} has no column")
        elif told := _misfit(annotation, get_from_name(columns[name])):
            found.append(f"field {name!r} {told}, column is {columns[name]}")
    return found


def _fields(model: type[Any]) -> Mapping[str, Any]:
    """Names and types of what `model` holds. Raises TypeError for a class that does not tell."""
    if hasattr(model, "model_fields"):  # pydantic
        return {name: field.annotation for name, field in model.model_fields.items()}
    if is_dataclass(model):
        hints = get_type_hints(model)
        return {field.name: hints[field.name] for field in fields(model)}
    if issubclass(model, msgspec.Struct):
        hints = get_type_hints(model)
        return {name: hints[name] for name in model.__struct_fields__}
    if hasattr(model, "__required_keys__"):  # a TypedDict
        return get_type_hints(model)
    raise TypeError(f"{model.__name__} is no msgspec Struct, pydantic model, dataclass or TypedDict")


def _misfit(annotation: Any, column: Any) -> str | None:
    kinds = _kinds(annotation)
    if type(None) in kinds and not column.nullable:
        return "may be None"
    for kind in kinds - {type(None)}:
        if not _fits(kind, column):
            return f"is {_spelled(kind)}"
    return None


def _kinds(annotation: Any) -> AbstractSet[Any]:
    """The alternatives of a type, without what only types them more narrowly."""
    if isinstance(annotation, NewType):
        return _kinds(annotation.__supertype__)
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kinds(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return set().union(*map(_kinds, get_args(annotation)))
    if origin is Literal:
        return {type(value) for value in get_args(annotation)}
    return {type(None) if annotation is None else annotation}


def _fits(kind: Any, column: Any) -> bool:
    if kind is Any or kind is object:
        return True
    base = column.base_type
    if base == "Array":
        origin, inner = get_origin(kind) or kind, get_args(kind)
        is_list = isinstance(origin, type) and issubclass(origin, _LISTS) and not issubclass(origin, str | bytes)
        return is_list and (not inner or _misfit(inner[0], column.element_type) is None)
    return isinstance(kind, type) and issubclass(kind, _taken(base)) and not _is_mistaken(kind, base)


def _taken(base: str) -> tuple[type, ...]:
    if base.startswith(_NUMBERS):
        return (int,)
    if base.startswith("Float"):
        return (float, int)
    return (Decimal, int, str) if base.startswith("Decimal") else _TAKES[base]


def _is_mistaken(kind: type, base: str) -> bool:
    """A datetime is a date by inheritance, and a truth value an integer: neither is taken for the other."""
    return (base.startswith("Date") and not base.startswith("DateTime") and issubclass(kind, datetime)) or (
        base != "Bool" and issubclass(kind, bool)
    )


def _spelled(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind).removeprefix("typing.")
