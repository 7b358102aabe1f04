"""`tidegate.testing` drives a fold as it does everything else: on the real road, with Kafka and the sink in memory."""

from __future__ import annotations

from datetime import timedelta

import pytest

from examples.readme_fold import OrderPlaced, Value, app
from examples.shop.app import shop
from tidegate import testing
from tidegate.testing.pytest_plugin import tidegate_postgres, tidegate_postgres_template  # noqa: F401  # fixtures
from tidegate_kernel.errors import Misconfigured


async def test_the_readme_s_fold_adds_each_order_once(tidegate_postgres: str) -> None:  # noqa: F811
    """State and document are there when `send` returns, also after everything was delivered again."""
    async with testing.run(app, db=tidegate_postgres) as t:
        await t.send("orders", OrderPlaced(order_id="o1", customer_id="c1", total_cents=5), key="o1")
        await t.send("orders", OrderPlaced(order_id="o2", customer_id="c1", total_cents=7), key="o2")
        await t.redeliver_all()

        assert await t.state("customer-value", "c1") == Value(orders=2, cents=12)
        assert await t.state("customer-value", "nobody") is None
        assert t.sink("customer-value").get("c1") == {"customer_id": "c1", "orders": 2, "cents": 12}
        assert t.dead_letters == []


async def test_a_fold_goes_on_in_a_test_whose_sink_is_down(tidegate_postgres: str) -> None:  # noqa: F811
    """G5, as a service tests it: folding waits for no sink, and the documents follow."""
    async with testing.run(app, db=tidegate_postgres, deadline=timedelta(seconds=5)) as t:
        t.sink("customer-value").is_down = True
        await t.send("orders", OrderPlaced(order_id="o1", customer_id="c1", total_cents=5), key="o1")
        away = await t.state("customer-value", "c1"), t.sink("customer-value").get("c1")
        t.sink("customer-value").is_down = False
        await t.restart()

        assert away == (Value(orders=1, cents=5), None)
        assert t.sink("customer-value").get("c1") == {"customer_id": "c1", "orders": 1, "cents": 5}


async def test_only_folds_have_states(tidegate_postgres: str) -> None:  # noqa: F811
    """A misspelt job is told, not answered with None."""
    async with testing.run(shop("states-"), db=tidegate_postgres) as t:
        with pytest.raises(Misconfigured, match="is no fold"):
            await t.state("order-search", "x")
