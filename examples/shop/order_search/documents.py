"""From an order's state to its document."""

from examples.shop.orders import Order
from tidegate import Event, Upsert

MAPPINGS = {
    "properties": {
        "order_id": {"type": "keyword"},
        "tenant": {"type": "keyword"},
        "brand": {"type": "keyword"},
        "customer_id": {"type": "keyword"},
        "purchased_on": {"type": "date"},
        "discs": {"type": "integer"},
        "total_cents": {"type": "long"},
        "version": {"type": "long"},
        "gift_wrapped": {"type": "boolean"},
    }
}


def order_document(event: Event[Order]) -> Upsert:
    """An amendment carries the whole order, so the newest version alone is the document, whatever arrives first."""
    order = event.data
    document = {
        "order_id": order.order_id,
        "tenant": event.scope.tenant,
        "brand": event.scope.brand,
        "customer_id": order.customer_id,
        "purchased_on": order.purchased_on,
        "discs": order.discs,
        "total_cents": order.total_cents,
        "version": order.version,
        "gift_wrapped": order.gift_wrapped,
    }
    return Upsert(id=order.order_id, version=order.version, document=document)
