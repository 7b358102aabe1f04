"""Revenue by day and shop, summed by ClickHouse: each sale goes through a materialized view of yours, exactly once."""

from datetime import timedelta
from pathlib import Path

from examples.clickhouse.append import COLUMNS, SaleRow, sale_row
from examples.clickhouse.events import Sale
from tidegate import ClickHouse, ProjectionJob, Topic, on

VIEWS = Path(__file__).with_name("revenue.sql")


def counted_sales(topic: Topic, *, table: str) -> ProjectionJob:
    """The same rows as of `sales`, in stable batches: run `revenue.sql` once `tidegate migrate` has made the table."""
    return ProjectionJob(
        code="counted-sales",
        topics=[topic],
        unlisted="skip",
        runbook="docs/clickhouse.md",
        events=[on("sale.made", Sale, sale_row)],
        sink=ClickHouse(
            table=table,
            columns=COLUMNS,
            order_by=["sold_on", "shop", "event_id"],
            partition_by="toYYYYMM(sold_on)",
            stable_batches=True,
            row=SaleRow,
        ),
        freshness_sla=timedelta(seconds=30),
    )


def view_statements(table: str) -> list[str]:
    """The statements of `revenue.sql` for a table of that name."""
    text = VIEWS.read_text().replace("counted_sales", table)
    return [statement.strip() for statement in text.split(";") if statement.strip()]
