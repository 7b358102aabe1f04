"""A declared mapping held against the one an index has: whole definitions, field by field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

_SPELLED_LIMIT = 200
# Not the shape of documents: `_meta` is a note, `properties` are compared one by one.
_NOT_COMPARED = ("properties", "_meta")
_OPEN = ("true", "runtime")
# Settings that decide how texts are cut and scored.
_ANALYSIS = ("analysis", "similarity")


class Kind(Enum):
    """How a mapping differs from its declaration."""

    MISSING = "missing"  # declared, and not in the index: what is there already lacks it
    LEFT = "left"  # in the index, and not declared any more
    CHANGED = "changed"


class Difference(NamedTuple):
    """One thing that differs: `path` of the field, or name of what holds for the whole mapping."""

    kind: Kind
    path: str
    sentence: str


def differences(declared: Mapping[str, Any], found: Mapping[str, Any]) -> list[Difference]:
    """Returns what differs between two mappings that Elasticsearch spelled: it leaves out what is its default.

    Fields that an index open to unknown ones has taken up by itself are no difference.
    """
    own, its = _rules(declared), _rules(found)
    rules = [_rule(name, own, its) for name in sorted(own.keys() | its.keys()) if own.get(name) != its.get(name)]
    return [*rules, *_fields(declared, found, "", is_open=_is_open(its, default=True))]


def analysis_differences(declared: Mapping[str, Any], found: Mapping[str, Any]) -> list[Difference]:
    """As `differences`, for the settings of an index that decide how texts are cut and scored."""
    own, its = _analysis(declared), _analysis(found)
    return [_rule(name, own, its) for name in sorted(own.keys() | its.keys()) if own.get(name) != its.get(name)]


def has_analysis(settings: Mapping[str, Any]) -> bool:
    """Whether settings say how texts are cut and scored; in whichever of its forms somebody has written them."""
    text = json.dumps(settings)
    return any(f'"{word}' in text or f".{word}" in text for word in _ANALYSIS)


def _analysis(settings: Mapping[str, Any]) -> dict[str, Any]:
    inner = settings.get("index", {})
    return {word: inner[word] for word in _ANALYSIS if word in inner}


def _fields(declared: Mapping[str, Any], found: Mapping[str, Any], path: str, *, is_open: bool) -> Iterator[Difference]:
    mine, theirs = declared.get("properties", {}), found.get("properties", {})
    for name in sorted(mine.keys() | theirs.keys()):
        where = f"{path}.{name}" if path else name
        if name not in theirs:
            sentence = f"field {where!r} is not there, declared {_spelled(mine[name])}"
            yield Difference(Kind.MISSING, where, sentence)
        elif name in mine:
            yield from _field(mine[name], theirs[name], where, is_open=is_open)
        elif not is_open:
            yield Difference(Kind.LEFT, where, f"field {where!r} is {_spelled(theirs[name])}, not declared")


def _field(mine: Mapping[str, Any], theirs: Mapping[str, Any], where: str, *, is_open: bool) -> Iterator[Difference]:
    own, its = _rules(mine), _rules(theirs)
    if own != its:
        sentence = f"field {where!r} is {_spelled(its)}, declared {_spelled(own)}"
        yield Difference(Kind.CHANGED, where, sentence)
    if own.get("type", "object") == its.get("type", "object"):
        yield from _fields(mine, theirs, where, is_open=_is_open(its, default=is_open))


def _rule(name: str, own: Mapping[str, Any], its: Mapping[str, Any]) -> Difference:
    found = _spelled(its[name]) if name in its else "not set"
    declared = f"declared {_spelled(own[name])}" if name in own else "not declared"
    return Difference(Kind.CHANGED, name, f"{name!r} is {found}, {declared}")


def _rules(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name not in _NOT_COMPARED}


def _is_open(rules: Mapping[str, Any], *, default: bool) -> bool:
    dynamic = rules.get("dynamic")
    return default if dynamic is None else str(dynamic).lower() in _OPEN


def _spelled(definition: Any) -> str:
    text = json.dumps(definition, sort_keys=True, separators=(",", ":"))
    return text if len(text) <= _SPELLED_LIMIT else text[:_SPELLED_LIMIT] + "…"
