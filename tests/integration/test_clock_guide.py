"""The applications of docs/jobs-by-the-clock.md run as it says, on a real Postgres."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from examples.by_the_clock import points, prices, receipts
from examples.by_the_clock.test_points import test_idle_points_expire_once as points_test_of_the_guide
from tidegate import testing

pytestmark = pytest.mark.servers

NIGHT = datetime(2026, 5, 1, tzinfo=UTC)


async def test_scheduled_job_and_its_test_are_as_the_guide_says(database: str) -> None:
    """A test that readers copy has to pass before they have changed anything."""
    await points_test_of_the_guide(database)


async def test_item_that_failed_is_set_aside_and_the_others_are_done(database: str) -> None:
    """The guide says so of partial_failure="quarantine"."""
    async with testing.run(points.app, db=database) as t:
        await t.db.execute("INSERT INTO account SELECT 'acme', name, 5, $1 FROM unnest($2::text[]) AS name", *_idle())
        await t.db.execute("ALTER TABLE account ADD CHECK (customer_id <> 'ben' OR points > 0)")

        run = await t.run_job("expire-points", tenant="acme", at=NIGHT)

        assert (run.state, run.processed, run.failed) == ("done", 2, 1)
        assert len(t.published("points.expired")) == 2


def _idle() -> tuple[datetime, list[str]]:
    return NIGHT - timedelta(days=400), ["ann", "ben", "cid"]


async def test_maintenance_job_removes_what_is_too_old_of_one_tenant(database: str) -> None:
    """In chunks, and nothing that is younger than its retention."""
    async with testing.run(receipts.app, db=database) as t:
        await t.db.execute(
            "INSERT INTO receipt (tenant, made_at) SELECT name, now() - make_interval(days => days) "
            "FROM unnest('{acme,bolt}'::text[]) AS name, unnest('{89,91,120}'::int[]) AS days"
        )

        run = await t.run_job("old-receipts", tenant="acme")

        assert (run.state, run.processed, run.error) == ("done", 2, None)
        left = await t.db.fetch("SELECT tenant, count(*) FROM receipt GROUP BY tenant ORDER BY tenant")
        assert [tuple(row) for row in left] == [("acme", 1), ("bolt", 3)]
        assert await t.db.fetchval("SELECT count(*) FROM tidegate.audit WHERE action = 'maintenance:remove'") == 1


async def test_provider_job_takes_each_version_of_a_price_once(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page by page, with the tenant's own key; what is read again is known."""
    cents = {"a": 100, "b": 200, "c": 300}

    async def answer(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer s3cret"
        listed = [{"sku": sku, "cents": cents[sku], "changed_at": f"v{cents[sku]}"} for sku in cents]
        if "page" in request.query:
            return web.json_response({"prices": listed[2:]})
        return web.json_response({"prices": listed[:2], "next": "two"})

    supplier = web.Application()
    supplier.router.add_get("/prices", answer)
    async with TestServer(supplier) as server:
        monkeypatch.setenv("SUPPLIER_URL", str(server.make_url("")))
        monkeypatch.setenv("SUPPLIER_KEY_ACME", "s3cret")
        async with testing.run(prices.app, db=database) as t:
            first = await t.run_job("supplier-prices", tenant="acme")
            cents["b"] = 250
            second = await t.run_job("supplier-prices", tenant="acme")
            found = await t.db.fetch("SELECT sku, cents FROM price WHERE tenant = 'acme' ORDER BY sku")

    assert (first.processed, first.skipped, first.error) == (3, 0, None)
    assert (second.processed, second.skipped, second.error) == (1, 2, None)
    assert {row["sku"]: row["cents"] for row in found} == cents
