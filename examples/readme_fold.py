from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from tidegate import App, CloudEvents, Elasticsearch, Event, FoldJob, Json, Topic, fold


class OrderPlaced(BaseModel):
    order_id: str
    customer_id: str
    total_cents: int


class Value(BaseModel):                                       # a customer's state, JSON in Postgres
    orders: int = 0
    cents: int = 0


def add_order(value: Value | None, event: Event[OrderPlaced]) -> Value | None:  # once an event
    before = value or Value()
    return Value(orders=before.orders + 1, cents=before.cents + event.data.total_cents)


def customer_of(event: Event[OrderPlaced]) -> str:            # whose state it changes
    return event.data.customer_id


def document(customer: str, value: Value) -> Mapping[str, Any]:  # what readers see of it
    return {"customer_id": customer, **value.model_dump()}


fields = {"customer_id": {"type": "keyword"}, "orders": {"type": "long"}, "cents": {"type": "long"}}
value = FoldJob(code="customer-value", topics=[Topic("orders", format=Json(), envelope=CloudEvents())],
                unlisted="skip", runbook="value.md", key=customer_of, state=Value, render=document,
                events=[fold("order.placed", OrderPlaced, add_order)],
                sink=Elasticsearch(index="customer-value", mappings={"properties": fields}),
                freshness_sla=timedelta(seconds=10))
app = App(service="loyalty", owner="you", jobs=[value])
