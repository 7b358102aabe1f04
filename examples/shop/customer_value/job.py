"""The job `customer-value`."""

from datetime import timedelta

from examples.shop.customer_value.value import MAPPINGS, CustomerValue, add_order, customer_of, value_document
from examples.shop.orders import Order
from tidegate import Elasticsearch, FoldJob, Text, Topic, fold


def customer_value(orders: Topic, *, index: str) -> FoldJob[CustomerValue]:
    """Marketing asks here who the best customers are. What was ordered stays ordered: cancellations do not count."""
    return FoldJob(
        code="customer-value",
        topics=[orders],
        unlisted="skip",
        runbook="docs/runbooks/customer-value.md",
        events=[fold("order.placed", Order, add_order), fold("order.amended", Order, add_order)],
        key=customer_of,
        state=CustomerValue,
        render=value_document,
        sink=Elasticsearch(index=index, mappings=MAPPINGS),
        purpose=Text(
            en="Marketing finds the best customers here: all that each has ever ordered.",
            ru="Маркетинг находит здесь лучших покупателей: всё, что каждый когда-либо заказал.",
        ),
        freshness_sla=timedelta(seconds=10),
    )
