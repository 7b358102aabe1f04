"""The job `order-search`."""

from datetime import timedelta

from examples.shop.order_search.documents import MAPPINGS, order_document
from examples.shop.orders import Order
from tidegate import Elasticsearch, ProjectionJob, Text, Topic, on


def order_search(orders: Topic, *, index: str) -> ProjectionJob:
    """Customer service looks here while the customer waits."""
    return ProjectionJob(
        code="order-search",
        topics=[orders],
        unlisted="skip",
        runbook="docs/runbooks/order-search.md",
        events=[on("order.placed", Order, order_document), on("order.amended", Order, order_document)],
        sink=Elasticsearch(index=index, mappings=MAPPINGS),
        purpose=Text(
            en="Customer service finds the newest state of every order here while the customer waits.",
            ru="Служба поддержки находит здесь последнее состояние заказа, пока покупатель ждёт.",
        ),
        freshness_sla=timedelta(seconds=5),
    )
