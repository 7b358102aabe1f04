"""Checkpoint values of every kind of job, as `tidegate jobs show --json` tells them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.integration.clockwork import Schedulers, Workshop, minutely
from tests.integration.notes import Note, Noted, note_nothing, to_note
from tests.integration.road import MakeRoad, record
from tidegate import CloudEvents, ConsumerJob, Json, Topic, handle, on
from tidegate.console.progress import progress_of
from tidegate.jobs.clockwork.runner import work_off
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.servers


async def test_progress_of_a_job_by_the_clock_is_told_by_scope(pool: Pool) -> None:
    """Whoever asks at night where a run stands gets the key, and of a provider the cursor."""
    shop = Workshop(pool)
    await shop.prepare(acme=3)
    job = minutely()
    scheduler = await Schedulers(pool, shop.clock).start(job)
    shop.clock.move(minutes=1)
    await scheduler.make_runs()
    (run,) = await scheduler.claim(1)
    await work_off(shop.hands(job), run)
    until = datetime(2026, 5, 1, tzinfo=UTC)
    await pool.execute(
        """
        INSERT INTO tidegate.provider_cursor (job, tenant, brand, run, token, synced_until)
        VALUES ($1, 'zebra', 'kids', 7, 1, $2)
        """,
        run.job,
        until,
    )

    async with pool.acquire() as connection:
        acme, zebra = await progress_of(connection, "tests", job)

    assert (acme["tenant"], acme["checkpoint"], acme["token"], acme["synced_until"]) == (
        "acme",
        "o002",
        run.token,
        None,
    )
    assert (zebra["tenant"], zebra["brand"], zebra["checkpoint"], zebra["synced_until"]) == (
        "zebra",
        "kids",
        None,
        until,
    )


async def test_progress_of_a_topic_job_is_told_by_partition(make_road: MakeRoad, pool: Pool) -> None:
    """Its checkpoint is the first offset that is not settled."""
    orders = Topic("orders", format=Json(), envelope=CloudEvents())
    job = ConsumerJob(code="notes", topics=[orders], unlisted="skip", runbook="-", events=[on("noted", Noted, to_note)])
    road = await make_road(job, [handle(Note, note_nothing)])
    await road.handle([record(0), record(1)])

    async with pool.acquire() as connection:
        (partition,) = await progress_of(connection, "tests", job)

    assert (partition["topic"], partition["partition"], partition["next_offset"]) == ("orders", 0, 2)
