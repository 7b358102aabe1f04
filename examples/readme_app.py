from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel
from tidegate import (App, CloudEvents, ConsumerJob, Context, Elasticsearch, Event, Json,
                      ProjectionJob, Topic, Upsert, handle, on)


class OrderPlaced(BaseModel):                                 # an event
    order_id: str
    customer_id: str
    total_cents: int
    version: int


class AddSpending(BaseModel):                                 # the command it becomes
    customer_id: str
    cents: int


def to_spending(event: Event[OrderPlaced]) -> AddSpending:
    return AddSpending(customer_id=event.data.customer_id, cents=event.data.total_cents)


async def add_spending(spent: AddSpending, ctx: Context[None]) -> None:  # once an event
    await ctx.db.execute("INSERT INTO spending AS s VALUES ($1, $2) ON CONFLICT (customer_id) "
                         "DO UPDATE SET cents = s.cents + $2", spent.customer_id, spent.cents)


def order_document(event: Event[OrderPlaced]) -> Upsert:      # the newest version wins
    return Upsert(id=event.data.order_id, version=event.data.version, document=dict(event.data))


orders = Topic("orders", format=Json(), envelope=CloudEvents())
spending = ConsumerJob(code="spending", topics=[orders], unlisted="skip", runbook="spending.md",
                       events=[on("order.placed", OrderPlaced, to_spending)])
text, number = {"type": "keyword"}, {"type": "long"}
fields = {"order_id": text, "customer_id": text, "total_cents": number, "version": number}
search = ProjectionJob(code="search", topics=[orders], unlisted="skip", runbook="search.md",
                       events=[on("order.placed", OrderPlaced, order_document)],
                       sink=Elasticsearch(index="orders", mappings={"properties": fields}),
                       freshness_sla=timedelta(seconds=5))
app = App(service="quickstart", owner="you", jobs=[spending, search],
          handlers=[handle(AddSpending, add_spending)],
          migrations=Path(__file__).with_name("migrations"))
