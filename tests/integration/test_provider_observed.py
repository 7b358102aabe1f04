"""What is seen of a provider's synchronisation: its calls by outcome, its page in the log, its cursor as a metric."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from examples.shop.catalogue.provider_server import Fault
from tests.integration.disc_company import Records, catalogue_job, record_shop
from tidegate.jobs.clockwork.provider.question import Question
from tidegate.jobs.clockwork.runs import RunState
from tidegate.jobs.clockwork.success import Successes
from tidegate_kernel import logs
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.servers


@pytest.fixture
async def shop(pool: Pool, database: str, tmp_path: Path) -> AsyncIterator[Records]:
    async with record_shop(pool, database, tmp_path / "keys.json") as opened:
        yield opened


def calls(shop: Records, outcome: str) -> float:
    labels = {"job": "disc-catalogue", "outcome": outcome}
    return shop.metrics.registry.get_sample_value("tidegate_provider_calls_total", labels) or 0


async def test_calls_are_counted_by_what_came_of_them_and_pages_told(shop: Records) -> None:
    """A provider that throttles or fails shows before its circuit opens, and where a run stands in its answer is in the
    log of each page and at the end."""
    shop.sell(*range(10))
    shop.company.faults += [Fault(429, {"Retry-After": "1"}), Fault(503)]

    with capture_logs() as told:
        assert await shop.sync(catalogue_job()) is RunState.DONE

    pages = [line["checkpoint"] for line in told if line["event"] == logs.RUN_BATCH]
    assert [calls(shop, outcome) for outcome in ("throttled", "failed", "refused")] == [1, 1, 0]
    assert calls(shop, "answered") == len(pages) == 3
    assert all(Question.read(page) is not None for page in pages)
    assert told[-1]["checkpoint"] == pages[-1]


async def test_cursor_of_the_scope_furthest_behind_is_a_metric(shop: Records) -> None:
    """A tenant whose catalogue is not brought any more must not hide behind one whose is."""
    shop.sell(*range(3))
    job = catalogue_job(freshness_sla=timedelta(hours=1))
    scheduler = await shop.scheduler(job)
    successes = Successes(shop.pool, scheduler.jobs, scheduler.known_scopes, shop.metrics)
    await successes.measure()
    before = shop.metrics.registry.get_sample_value(
        "tidegate_provider_synced_until_timestamp_seconds", {"job": "disc-catalogue"}
    )
    await shop.sync(job)

    await successes.measure()

    cursor = (await shop.cursor())["synced_until"]
    synced = shop.metrics.registry.get_sample_value(
        "tidegate_provider_synced_until_timestamp_seconds", {"job": "disc-catalogue"}
    )
    assert (before, synced) == (0, cursor.timestamp())
