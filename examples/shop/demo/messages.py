"""What the order service puts on the wire: binary CloudEvents, and records without a value for cancelled orders."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

import msgspec

from examples.shop.demo.purchases import Purchase

Headers = Sequence[tuple[str, bytes]]


class Kind(StrEnum):
    PLACED = "placed"
    AMENDED = "amended"
    CANCELLED = "cancelled"
    VIEWED = "viewed"


VERSIONS = {Kind.PLACED: 1, Kind.AMENDED: 2, Kind.CANCELLED: 3}


class Message(NamedTuple):
    """A record as it is sent; its time is that of sending."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    sent_at: datetime

    @property
    def timestamp_ms(self) -> int:
        return int(self.sent_at.timestamp() * 1000)


def message(kind: Kind, purchase: Purchase, sent_at: datetime, *, run_at: datetime) -> Message:
    """The record that tells of `kind` happening to the purchase's order. Its event id is the same in every call."""
    key = purchase.order_id.encode()
    if kind is Kind.CANCELLED:
        return Message(key, None, [("version", b"%d" % VERSIONS[kind])], sent_at)
    body = {"order_id": purchase.order_id} if kind is Kind.VIEWED else order_state(kind, purchase)
    identity = event_id(kind, purchase, run_at=run_at)
    headers = cloud_event_headers(
        identity, f"order.{kind}", tenant=purchase.tenant, brand=purchase.brand, sent_at=sent_at
    )
    return Message(key, msgspec.json.encode(body), headers, sent_at)


def order_state(kind: Kind, purchase: Purchase) -> dict[str, object]:
    """The whole order as of `kind`: an amendment wraps it as a gift and changes no amount."""
    return {
        "order_id": purchase.order_id,
        "customer_id": purchase.customer_id,
        "purchased_on": purchase.purchased_on,
        "discs": purchase.discs,
        "total_cents": purchase.cents,
        "version": VERSIONS[kind],
        "gift_wrapped": kind is Kind.AMENDED,
    }


def event_id(kind: Kind, purchase: Purchase, *, run_at: datetime) -> str:
    """Three producers, three habits: UUIDv7 of the day of sending, plain text, UUIDs from a hash."""
    name = f"order-{purchase.line:06d}-{kind}"
    match purchase.tenant:
        case "aurora":
            return str(_uuid7(name, run_at))
        case "borealis":
            return name
        case _:
            return str(UUID(bytes=blake2b(name.encode(), digest_size=16).digest(), version=5))


def _uuid7(name: str, moment: datetime) -> UUID:
    milliseconds = int(moment.timestamp() * 1000).to_bytes(6, "big")
    rest = bytearray(blake2b(name.encode(), digest_size=10).digest())
    rest[0] = rest[0] & 0x0F | 0x70
    rest[2] = rest[2] & 0x3F | 0x80
    return UUID(bytes=milliseconds + bytes(rest))


def cloud_event_headers(
    identity: str, type_: str, *, tenant: str, brand: str, sent_at: datetime
) -> list[tuple[str, bytes]]:
    return [
        ("content-type", b"application/json"),
        ("ce_specversion", b"1.0"),
        ("ce_id", identity.encode()),
        ("ce_source", f"/shop/{tenant}".encode()),
        ("ce_type", type_.encode()),
        ("ce_time", sent_at.astimezone(UTC).isoformat().encode()),
        ("ce_tenantid", tenant.encode()),
        ("ce_brandid", brand.encode()),
    ]
