"""Records as Kafka's client would give them, with only the fields that matter to a test."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate_kernel.event import Headers

NOON = 1_700_000_000_000
"""2023-11-14T22:13:20Z in milliseconds; the record time where a test does not care."""


@dataclass(frozen=True)
class StoredRecord:
    """Satisfies `Record`."""

    value: bytes | None
    key: bytes | None = b"customer-1"
    headers: Headers = ()
    offset: int = 0
    timestamp: int = NOON
    topic: str = "shop.orders"
    partition: int = 0


def cloud_event(
    value: bytes | None, *, type_: str = "order.placed", offset: int = 0, **attributes: bytes | None
) -> StoredRecord:
    """A binary CloudEvent; an attribute given as None has a header without a value."""
    named: dict[str, bytes | None] = {
        "specversion": b"1.0",
        "id": f"event-{offset}".encode(),
        "source": b"/shop",
        "type": type_.encode(),
        **attributes,
    }
    headers = tuple((f"ce_{name}", text) for name, text in named.items())
    return StoredRecord(value, headers=headers, offset=offset)
