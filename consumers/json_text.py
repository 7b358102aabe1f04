"""What is JSON and what only looks like it: exact reasons for payload that a fast decoder refused."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any, NoReturn
from uuid import UUID

import msgspec
from pydantic import BaseModel

from tidegate_kernel.errors import Reason, Undecodable

_BOM = b"\xef\xbb\xbf"
# Python's own bound for reading an integer, and that of the fast decoders.
_LONGEST_INTEGER = 4300
_WHOLE = frozenset({str, int, bool, bytes, type(None), datetime, UUID})


def not_json(payload: bytes | msgspec.Raw) -> Undecodable:
    """Returns why `payload` is not JSON that Tidegate takes: the reason, and a message without payload.

    Slow: only for payload that a fast decoder has refused.
    """
    raw = bytes(payload)
    if not raw:
        return Undecodable("the value is empty, not JSON")
    if raw.startswith(_BOM):
        return Undecodable("the value starts with a byte order mark; JSON is UTF-8 without one")
    try:
        return _diagnose(raw)
    except Undecodable as refusal:
        return refusal
    except RecursionError:
        return Undecodable("the JSON is nested too deeply")
    except ValueError as error:
        place = f" (character {error.pos})" if isinstance(error, json.JSONDecodeError) else ""
        return Undecodable(f"the value is not JSON{place}")


def _diagnose(raw: bytes) -> Undecodable:
    # surrogateescape lets the parser see past bytes that are no UTF-8: text inside a string is told from garbage.
    text = raw.decode("utf-8", "surrogateescape")
    found = json.loads(text, parse_constant=_refuse_number, parse_float=_parse_float, parse_int=_parse_int)
    try:
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return Undecodable("a string holds a lone surrogate or invalid UTF-8", reason=Reason.INVALID_TEXT)
    return Undecodable("the value is not JSON")


def _parse_float(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse_number(digits)


def _parse_int(digits: str) -> int:
    return 0 if len(digits) <= _LONGEST_INTEGER else _refuse_number(digits)


def _refuse_number(_: str) -> NoReturn:
    raise Undecodable("a number is NaN, Infinity or out of range", reason=Reason.INVALID_NUMBER)


def is_finite(value: Any) -> bool:
    """True if no float or Decimal inside `value` (models, dataclasses, containers) is NaN or infinite."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Decimal):
        return value.is_finite()
    for part in _parts(value):
        kind = type(part)
        if kind in _WHOLE:
            continue
        if not (math.isfinite(part) if kind is float else is_finite(part)):
            return False
    return True


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, BaseModel):
        return value.__dict__.values()
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (list, tuple, set, frozenset)):
        return value
    names: Iterable[str] = getattr(value, "__struct_fields__", ()) or getattr(value, "__dataclass_fields__", ())
    # Not the inside of foreign objects (a datetime's zone, an enum's class): only of models.
    return [getattr(value, name, None) for name in names]
