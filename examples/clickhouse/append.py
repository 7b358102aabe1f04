"""Every sale is a row. The event's id is in the sorting key, so that one written twice is one row to readers."""

import datetime as dt

import msgspec

from examples.clickhouse.events import Sale
from tidegate import ClickHouse, Event, ProjectionJob, Topic, Upsert, on


class SaleRow(msgspec.Struct):
    """A row, field by field what `COLUMNS` says: the two are compared when the job is declared."""

    sold_on: dt.date
    shop: str
    event_id: str
    customer_id: str
    cents: int


COLUMNS = {
    "sold_on": "Date",
    "shop": "LowCardinality(String)",
    "event_id": "String",
    "customer_id": "String",
    "cents": "Int64",
}


def sale_row(event: Event[Sale]) -> Upsert:
    """A sale never changes: all its rows have one version. Ids are unique within their source only."""
    sale, event_id = event.data, f"{event.source}/{event.id}"
    row = SaleRow(
        sold_on=sale.sold_on, shop=sale.shop, event_id=event_id, customer_id=sale.customer_id, cents=sale.cents
    )
    return Upsert(id=event_id, version=0, document=row)


def sales(topic: Topic, *, table: str) -> ProjectionJob:
    """The day and the shop come first in the key, for readers who ask by them; nothing is ever deleted."""
    return ProjectionJob(
        code="sales",
        topics=[topic],
        unlisted="skip",
        runbook="docs/clickhouse.md",
        events=[on("sale.made", Sale, sale_row)],
        sink=ClickHouse(
            table=table,
            columns=COLUMNS,
            order_by=["sold_on", "shop", "event_id"],
            partition_by="toYYYYMM(sold_on)",
            row=SaleRow,
        ),
        freshness_sla=dt.timedelta(seconds=30),
    )
