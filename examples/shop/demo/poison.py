"""Records that no job, or not every job, can take; each once. What must become of them is the checker's knowledge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from examples.shop.demo.messages import Message, cloud_event_headers

TENANT, BRAND = "aurora", "vinyl"
MARK = "x-poison"
"""The header that names the kind: it travels with the record into the dead letter."""

_Headers = list[tuple[str, bytes]]
_Build = Callable[[str, _Headers], tuple[bytes | None, bytes | None, _Headers]]
"""(kind, sound headers) to (key, value, headers)."""


def _value(value: bytes) -> _Build:
    return lambda kind, headers: (_key(kind), value, headers)


def _order(**changed: object) -> _Build:
    """A sound order but for `changed`. It costs nothing: jobs that can take it keep their totals."""
    return lambda kind, headers: (_key(kind), msgspec.json.encode(_sound(kind) | changed), headers)


def _spelled(old: bytes, new: bytes) -> _Build:
    """A sound order, but for a piece of its text that no encoder would write."""

    def build(kind: str, headers: _Headers) -> tuple[bytes | None, bytes | None, _Headers]:
        sound = msgspec.json.encode(_sound(kind))
        if old not in sound:
            raise ValueError(f"poison {kind!r}: the order has no {old!r}")
        return _key(kind), sound.replace(old, new), headers

    return build


def _header(name: str, value: bytes | None) -> _Build:
    """A sound order under a header that is another, or missing (None)."""

    def build(kind: str, headers: _Headers) -> tuple[bytes | None, bytes | None, _Headers]:
        others = [(each, text) for each, text in headers if each != name]
        return _key(kind), msgspec.json.encode(_sound(kind)), others if value is None else [*others, (name, value)]

    return build


def _no_value(kind: str, _: _Headers) -> tuple[bytes | None, bytes | None, _Headers]:
    return _key(kind), None, []


def _nothing_at_all(_: str, __: _Headers) -> tuple[bytes | None, bytes | None, _Headers]:
    return None, None, []


def _without(field: str) -> _Build:
    return lambda kind, headers: (
        _key(kind),
        msgspec.json.encode({name: value for name, value in _sound(kind).items() if name != field}),
        headers,
    )


POISON: Mapping[str, _Build] = {
    "undecodable-bytes": _value(b"\xff\xfe\x00\x01"),
    "empty-value": _value(b""),
    "byte-order-mark": _spelled(b"{", b"\xef\xbb\xbf{"),
    "cut-off": _value(b'{"order_id":"poison-cut-off","customer_'),
    "array": _value(b"[]"),
    "string": _value(b'"str"'),
    "null": _value(b"null"),
    "not-a-number": _spelled(b'"total_cents":0', b'"total_cents":NaN'),
    "number-out-of-range": _spelled(b'"total_cents":0', b'"total_cents":1e999'),
    "lone-surrogate": _spelled(b'"customer_id":"', b'"customer_id":"\\ud83d'),
    "missing-field": _without("total_cents"),
    "wrong-type": _order(discs="three"),
    "no-event-id": _header("ce_id", None),
    "old-specversion": _header("ce_specversion", b"0.3"),
    "header-not-utf8": _header("ce_id", b"\xc3\x28"),
    "tenant-not-utf8": _header("ce_tenantid", b"\xff"),
    "unread-content-type": _header("content-type", b"application/cloudevents+avro"),
    "newer-version": _header("ce_dataversion", b"9"),
    "unknown-type": _header("ce_type", b"order.mislaid"),
    "nothing-at-all": _nothing_at_all,
    "cancelled-without-version": _no_value,
    "nul-in-text": _spelled(b'"customer_id":"', b'"customer_id":"\\u0000'),
    "negative-total": _order(total_cents=-1),
    "huge-total": _spelled(b'"total_cents":0', b'"total_cents":12345678901234567890123'),
    "before-1970": _order(purchased_on="1900-01-01"),
    "negative-version": _order(version=-1),
}


def poison(kind: str, sent_at: datetime) -> Message:
    """The record of that kind."""
    headers = cloud_event_headers(f"poison-{kind}", "order.placed", tenant=TENANT, brand=BRAND, sent_at=sent_at)
    key, value, told = POISON[kind](kind, headers)
    return Message(key, value, [*told, (MARK, kind.encode())], sent_at)


def _key(kind: str) -> bytes:
    return f"poison-{kind}".encode()


def _sound(kind: str) -> dict[str, Any]:
    return {
        "order_id": f"poison-{kind}",
        "customer_id": f"poison-{kind}",
        "purchased_on": "1997-01-01",
        "discs": 1,
        "total_cents": 0,
        "version": 1,
        "gift_wrapped": False,
    }
