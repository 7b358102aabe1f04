"""What people want of a run while it calls its provider, also between pages that bring nothing, and in a call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from examples.shop.catalogue.provider_server import Fault
from tests.integration.clockwork import forget_lease
from tests.integration.disc_company import VINYL, Records, catalogue_job, record_shop
from tidegate import RateLimit
from tidegate.jobs.clockwork.quarantine import ItemChoice, replay_items
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import RunState
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.servers

PAUSE = "INSERT INTO tidegate.intent (kind, job, reason, actor) SELECT 'pause', id, '-', 'alice' FROM tidegate.job"
CANCEL = "UPDATE tidegate.job_run SET cancel_asked_by = 'alice' WHERE state = 'running'"
ALICE = Actor("alice", Role.OPERATOR)


@pytest.fixture
async def shop(pool: Pool, database: str, tmp_path: Path) -> AsyncIterator[Records]:
    async with record_shop(pool, database, tmp_path / "keys.json") as opened:
        yield opened


def without_discs(pages: Sequence[str]) -> list[Fault]:
    """Answers without a disc, each of which names the next page."""
    return [Fault(200, body=f'{{"discs": [], "next": "{page}"}}') for page in pages]


@pytest.mark.parametrize("wish, state", [(PAUSE, RunState.DUE), (CANCEL, RunState.CANCELLED)], ids=["pause", "cancel"])
async def test_wish_is_heard_between_pages_that_bring_nothing(shop: Records, wish: str, state: RunState) -> None:
    """A provider may page through a year without a change: whoever pauses the job must not wait for its end."""
    shop.company.faults += without_discs("ABC")

    async def act() -> None:
        await shop.pool.execute(wish)
        shop.company.before_answer = None

    shop.company.before_answer = act

    assert await shop.sync(catalogue_job()) is state
    assert (shop.pages, await shop.has_cursor()) == ([None], False)


async def test_pages_that_bring_nothing_keep_to_the_rate(shop: Records) -> None:
    """They cost the provider as much as others: each call has a place of its own in the row of all."""
    shop.company.faults += [*without_discs("ABC"), Fault(200, body='{"discs": []}')]
    times: list[float] = []

    async def note() -> None:
        times.append(asyncio.get_running_loop().time())

    shop.company.before_answer = note
    spacing, began_at = RateLimit(10).spacing.total_seconds(), asyncio.get_running_loop().time()

    assert await shop.sync(catalogue_job(rate_limit=RateLimit(10))) is RunState.DONE

    places = "SELECT extract(epoch FROM next_at - $1)::float8 FROM tidegate.provider"
    began = (await shop.run())["started_at"]
    assert len(times) == 4
    # Not since the first call: one that arrives late, on a busy machine, holds up no place behind it.
    assert times[-1] - began_at >= 3 * spacing - spacing / 10
    assert await shop.pool.fetchval(places, began) >= 4 * spacing


async def test_cancelled_replay_ends_between_pages_without_its_disc(shop: Records) -> None:
    """It looks for one disc among all that have changed since it failed: that may be the whole catalogue."""
    job = catalogue_job(partial_failure="quarantine")
    shop.sell(1, title="\0")  # what Postgres cannot hold
    assert await shop.sync(job) is RunState.DONE
    choice = ItemChoice(job=job, scope=VINYL)
    await replay_items(shop.pool, ALICE, "shop", choice, reason="a test", now=shop.clock.now())
    scheduler = await shop.scheduler(job)
    asked = len(shop.pages)
    shop.company.faults += without_discs("ABC")

    async def cancel() -> None:
        await shop.pool.execute(CANCEL)

    shop.company.before_answer = cancel

    assert await work_off(shop.hands(job), await shop.claimed(scheduler)) is RunState.CANCELLED
    assert shop.pages[asked:] == [None]


async def test_provider_is_not_called_for_a_run_that_another_has(shop: Records) -> None:
    """Case 114: the provider would be asked for the same page by two, and the answer of one is worth nothing."""
    shop.company.faults += without_discs("ABC")
    job = catalogue_job()
    other = await shop.scheduler(job, holder="other")

    async def take_over() -> None:
        await forget_lease(shop.pool, tenant=VINYL.tenant)
        assert len(await other.end_stalled(await other.look())) == 1

    shop.company.before_answer = take_over

    assert await shop.sync(job) is None
    assert shop.pages == [None]


async def test_call_is_cut_off_when_its_run_loses_the_lease(shop: Records) -> None:
    """Case 114: the provider hangs for longer than anybody waits. Who has lost the run meanwhile does not stay in the
    call until its time limit, ten minutes here: the next renewal of the lease fails, and the call with it."""
    shop.sell(1)
    is_called, hangs = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        is_called.set()
        await hangs.wait()

    shop.company.before_answer = hang
    job = catalogue_job(handler_timeout=timedelta(minutes=10))
    run = await shop.due(await shop.scheduler(job))
    work = asyncio.create_task(work_off(shop.hands(job), run, ttl=timedelta(seconds=1.5)))
    await asyncio.wait_for(is_called.wait(), 60)
    await shop.pool.execute("UPDATE tidegate.lease SET token = token + 1, holder = 'other'")

    assert await asyncio.wait_for(work, 60) is None
    hangs.set()
    assert (len(shop.pages), await shop.discs()) == (1, {})
