"""From an order's state to its row."""

from examples.shop.orders import Order, OrderViewed
from tidegate import Event, Upsert

COLUMNS = {
    "order_id": "String",
    "tenant": "LowCardinality(String)",
    "brand": "LowCardinality(String)",
    "customer_id": "String",
    "day": "Date",
    "discs": "UInt32",
    "cents": "Int64",
    "gift_wrapped": "Bool",
}


def revenue_row(event: Event[Order]) -> Upsert:
    """One row an order, never a running sum: a row can be replaced, so repeats and late events change nothing."""
    order = event.data
    row = {
        "order_id": order.order_id,
        "tenant": event.scope.tenant,
        "brand": event.scope.brand,
        "customer_id": order.customer_id,
        "day": order.purchased_on,
        "discs": order.discs,
        "cents": order.total_cents,
        "gift_wrapped": order.gift_wrapped,
    }
    return Upsert(id=order.order_id, version=order.version, document=row)


def no_revenue(_: Event[OrderViewed]) -> None:
    """Known to the job, and without effect."""
