"""The job `revenue-by-day`."""

from datetime import timedelta

from examples.shop.orders import Order, OrderViewed
from examples.shop.revenue.rows import COLUMNS, no_revenue, revenue_row
from tidegate import ClickHouse, ProjectionJob, Text, Topic, on


def revenue_by_day(orders: Topic, *, table: str) -> ProjectionJob:
    """Readers sum `cents` by `day`. Finance wants to hear of every type it does not know: nothing is passed over."""
    return ProjectionJob(
        code="revenue-by-day",
        topics=[orders],
        unlisted="dead_letter",
        runbook="docs/runbooks/revenue-by-day.md",
        events=[
            on("order.placed", Order, revenue_row),
            on("order.amended", Order, revenue_row),
            on("order.viewed", OrderViewed, no_revenue),
        ],
        sink=ClickHouse(table=table, columns=COLUMNS, order_by=["order_id"]),
        purpose=Text(
            en="Finance sums the orders of each day here.",
            ru="Финансовый отдел суммирует здесь заказы каждого дня.",
        ),
        freshness_sla=timedelta(seconds=30),
    )
