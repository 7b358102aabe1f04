"""What the shop's order service publishes: the events of topic `shop.orders`."""

from datetime import date

import msgspec

from tidegate import Delete, Rejected, Tombstone


class Order(msgspec.Struct, frozen=True):
    """The whole state of an order at `version`: 1 as it was placed, 2 as amended."""

    order_id: str
    customer_id: str
    purchased_on: date
    discs: int
    total_cents: int
    version: int
    gift_wrapped: bool = False


class OrderViewed(msgspec.Struct, frozen=True):
    """Somebody looked at an order; nobody here keeps that."""

    order_id: str


def order_removed(cancelled: Tombstone) -> Delete:
    """A cancelled order is a record without a value: its key is the order, its header `version` the order's version."""
    if cancelled.key is None:
        raise Rejected("a cancellation without a key names no order")
    # Without the header this raises, and makes a dead letter `no_version`: it might be older than what is there.
    return Delete(id=cancelled.key.decode(), version=int(cancelled.headers["version"] or b""))
