"""From a customer's orders, in whatever order they arrive, to what the customer is worth."""

from datetime import date
from typing import Any

import msgspec

from examples.shop.orders import Order
from tidegate import Event, Rejected

MAPPINGS = {
    "properties": {
        "tenant": {"type": "keyword"},
        "customer_id": {"type": "keyword"},
        "orders": {"type": "integer"},
        "cents": {"type": "long"},
        "last_order_on": {"type": "date"},
    }
}
# More than all customers of this shop ever spent.
_MOST_CENTS = 10**12


class OrderTotal(msgspec.Struct, frozen=True):
    """What counts of an order, as of its version."""

    version: int
    cents: int
    purchased_on: date


class CustomerValue(msgspec.Struct, frozen=True):
    """Orders of one customer by id: an amendment takes its order's place, and is not added to it."""

    tenant: str
    customer_id: str
    orders: dict[str, OrderTotal]


def customer_of(event: Event[Order]) -> str:
    """Customers are known by their tenant: two tenants may use one number."""
    return f"{event.scope.tenant}/{event.data.customer_id}"


def add_order(state: CustomerValue | None, event: Event[Order]) -> CustomerValue:
    """Orders of a customer stand in several partitions, so none of them may have to come before another."""
    order = event.data
    if not 0 <= order.total_cents <= _MOST_CENTS:
        raise Rejected("an order's total is not what anybody can have paid")
    orders = {} if state is None else state.orders
    known = orders.get(order.order_id)
    if known is None or known.version < order.version:
        total = OrderTotal(order.version, order.total_cents, order.purchased_on)
        orders = orders | {order.order_id: total}
    return CustomerValue(event.scope.tenant, order.customer_id, orders)


def value_document(_: str, value: CustomerValue) -> dict[str, Any]:
    totals = value.orders.values()
    return {
        "tenant": value.tenant,
        "customer_id": value.customer_id,
        "orders": len(totals),
        "cents": sum(total.cents for total in totals),
        "last_order_on": max(total.purchased_on for total in totals),
    }
