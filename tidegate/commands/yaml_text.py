"""YAML for manifests: maps, lists, texts, numbers. No package of ours reads or writes more, so none is needed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Plain where no reader of YAML 1.1 or 1.2 takes it for something else than text.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
# What JSON leaves as it is and YAML does not print.
_UNPRINTABLE = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def yaml_text(value: Mapping[str, Any]) -> str:
    """`value` as a document of YAML, in the order of its keys."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> Iterator[str]:
    match value:
        case Mapping() if value:
            for key, each in value.items():
                yield from _entry(f"{_scalar(key)}:", each, step="  ")
        case list() | tuple() if value:
            for each in value:
                yield from _item(each)
        case _:
            yield _scalar(value)


def _entry(head: str, value: Any, *, step: str) -> Iterator[str]:
    if not _is_nested(value):
        yield f"{head} {_scalar(value)}"
        return
    yield head
    yield from (f"{step}{line}" for line in _lines(value))


def _item(value: Any) -> Iterator[str]:
    for place, line in enumerate(_lines(value)):
        yield f"  {line}" if place else f"- {line}"


def _is_nested(value: Any) -> bool:
    return bool(value) and isinstance(value, Mapping | list | tuple)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if is_plain else _quoted(value)
    if isinstance(value, Sequence):
        return "[]"
    return "{}" if isinstance(value, Mapping) else json.dumps(value)


def _quoted(text: str) -> str:
    spelled = json.dumps(text, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", spelled)
