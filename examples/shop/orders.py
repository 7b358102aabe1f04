"""What the shop's order service publishes: the events of topic `shop.orders`."""

from datetime import date

import msgspec

from tidegate import CloudEvents, Delete, Json, Rejected, ScopeFields, Tombstone, Topic


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
    version = cancelled.headers.get("version")
    if cancelled.key is None or version is None:
        raise Rejected("a cancellation needs the order id as its key and a header 'version'")
    return Delete(id=cancelled.key.decode(), version=int(version))


def orders_topic(name: str) -> Topic:
    """All events of all tenants and brands, keyed by order id."""
    return Topic(
        name,
        format=Json(),
        envelope=CloudEvents(),
        scope=ScopeFields(tenant="tenantid", brand="brandid"),
        tombstone=order_removed,
        partitions=8,
    )
