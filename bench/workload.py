"""What every contestant does with an event, and the application that has Tidegate do it."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from projections.sink import SinkDeclaration
from tidegate import App, CloudEvents, Event, Json, ProjectionJob, ScopeFields, Topic, Upsert, on

PARTITIONS = 8
EVENT_TYPE = "order.placed"
JOB = "order-search"


class OrderPlaced(msgspec.Struct, frozen=True):
    """An order of the benchmark's topic; about 150 bytes of JSON."""

    order_id: str
    customer_id: str
    total_cents: int
    items: int
    currency: str
    channel: str
    version: int


def document(order: OrderPlaced, tenant: str) -> Upsert:
    """The search document of an order: the same work for every contestant."""
    return Upsert(
        order.order_id,
        order.version,
        {
            "order_id": order.order_id,
            "tenant": tenant,
            "customer_id": order.customer_id,
            "total_cents": order.total_cents,
            "items": order.items,
            "currency": order.currency,
            "channel": order.channel,
            "version": order.version,
        },
    )


def order_document(event: Event[OrderPlaced]) -> Upsert:
    """The projection as a user of Tidegate writes it."""
    return document(event.data, event.scope.tenant)


def application(service: str, topic: str, sink: SinkDeclaration, *, batch_size: int | None = None) -> App:
    """The benchmark's application: one projection of `topic` into `sink`. Its consumer group follows `service`."""
    orders = Topic(topic, format=Json(), envelope=CloudEvents(), scope=ScopeFields(tenant="tenantid", brand="brandid"))
    job = ProjectionJob(
        code=JOB,
        topics=[orders],
        unlisted="skip",
        runbook="docs/performance.md",
        batch_size=batch_size,
        events=[on(EVENT_TYPE, OrderPlaced, order_document)],
        sink=sink,
        freshness_sla=timedelta(seconds=5),
    )
    return App(service=service, owner="bench", jobs=[job])
