"""The topics that the shop's jobs read, as they are declared to Kafka."""

from examples.shop.orders import order_removed
from tidegate import CloudEvents, Json, ScopeFields, Topic


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
