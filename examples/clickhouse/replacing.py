"""The newest state of each article: a later version replaces the row, a repeat changes nothing."""

from datetime import timedelta

from examples.clickhouse.events import Stock
from tidegate import ClickHouse, Event, ProjectionJob, Topic, Upsert, on


def stock_row(event: Event[Stock]) -> Upsert:
    """The version is the producer's own count of changes, so that events may come in any order."""
    stock = event.data
    row = {"article": stock.article, "shop": stock.shop, "pieces": stock.pieces}
    return Upsert(id=stock.article, version=stock.version, document=row)


def stock(topic: Topic, *, table: str) -> ProjectionJob:
    """`order_by` is the article alone: one row each, and deletes know which."""
    columns = {"article": "String", "shop": "LowCardinality(String)", "pieces": "Int32"}
    return ProjectionJob(
        code="stock",
        topics=[topic],
        unlisted="skip",
        runbook="docs/clickhouse.md",
        events=[on("stock.changed", Stock, stock_row)],
        sink=ClickHouse(table=table, columns=columns, order_by=["article"]),
        freshness_sla=timedelta(seconds=30),
    )
