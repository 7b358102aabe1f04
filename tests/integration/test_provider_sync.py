"""Synchronising with a provider: nothing is lost or doubled, whatever the provider or the process does meanwhile."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from examples.shop.catalogue.provider_server import Fault
from tests.integration.clockwork import until
from tests.integration.disc_company import VINYL, Records, catalogue_job, record_shop
from tidegate.jobs.clockwork.host import Pace
from tidegate.jobs.clockwork.quarantine import ItemChoice, replay_items
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import RunState
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.servers

_ROOT = Path(__file__).parents[2]
BRISK = Pace(heartbeat=timedelta(seconds=2))
REACH_BACK = timedelta(minutes=15)


@pytest.fixture
async def shop(pool: Pool, database: str, tmp_path: Path) -> AsyncIterator[Records]:
    async with record_shop(pool, database, tmp_path / "keys.json") as opened:
        yield opened


@dataclass
class Only:
    only: str = ""


def prices(*numbers: int) -> dict[str, int]:
    return {f"d{number:02}": 1000 + number for number in numbers}


async def test_catalogue_comes_page_by_page_and_each_disc_once(shop: Records) -> None:
    """The first run asks for everything; the next from a reach_back before that one began."""
    shop.sell(*range(10))
    job = catalogue_job()

    assert await shop.sync(job) is RunState.DONE
    began = shop.clock.now()
    shop.sell(10)
    assert await shop.sync(job) is RunState.DONE

    assert await shop.discs() == prices(*range(11))
    assert [disc for disc, _ in await shop.published()] == [f"d{number:02}" for number in range(11)]
    assert (shop.since[:3], len(shop.pages)) == ([None] * 3, 4)
    assert shop.since[3] == (began - REACH_BACK).isoformat()


async def test_nothing_is_lost_or_doubled_when_the_second_page_fails(shop: Records) -> None:
    """Case 119: page 2 of 3 answers 503, and a disc of page 1 changes during the run. The cursor stays where the last
    successful run began; the retry goes on at page 2 and ends with the changed disc; the next run reads from the start
    of that one, and nothing acts twice."""
    job = catalogue_job()
    shop.sell(99)
    await shop.sync(job)  # the last successful run
    first_began = shop.clock.now()
    shop.sell(*range(10))
    began = shop.clock.now() + timedelta(minutes=15)
    shop.on_page(1, lambda: shop.sell(2, price_cents=77))
    shop.company.faults += [Fault(503, when=lambda asked: "page" in asked)] * 3

    assert await shop.sync(job) is RunState.FAILED
    assert (await shop.cursor())["synced_until"] == first_began
    assert await shop.discs() == prices(0, 1, 2, 99), "page 1, with what the first run knew"
    scheduler = await shop.scheduler(job)
    assert await work_off(shop.hands(job), await shop.claimed(scheduler)) is RunState.DONE

    assert await shop.discs() == prices(*range(10), 99) | {"d02": 77}
    assert len(await shop.published()) == 12 == len(set(await shop.published()))
    assert shop.pages.count(None) == 2, "page 1 was not asked for again"
    assert set(shop.since[1:]) == {(first_began - REACH_BACK).isoformat()}
    assert (await shop.cursor())["synced_until"] == began, "when the question was first asked, not the retry"
    assert await shop.sync(job) is RunState.DONE
    assert shop.since[-1] == (began - REACH_BACK).isoformat()
    assert len(await shop.published()) == 12, "what was read again is known"


@pytest.mark.parametrize("checkpoint, first_page_again", [("job", False), ("run", True)])
async def test_next_occasion_asks_since_the_last_success_and_not_since_a_failure(
    shop: Records, checkpoint: str, first_page_again: bool
) -> None:
    """Case 119: every attempt has failed at page 2. Whether the next occasion goes on there or begins anew, it asks the
    question of the last success, and misses nothing."""
    job = catalogue_job(checkpoint=checkpoint, run_attempts=1)
    shop.sell(99)
    await shop.sync(job)
    began = shop.clock.now()
    shop.sell(*range(10))
    shop.company.faults += [Fault(503, when=lambda asked: "page" in asked)] * 3
    assert await shop.sync(job) is RunState.FAILED
    shop.sell(11)

    assert await shop.sync(job) is RunState.DONE

    assert await shop.discs() == prices(*range(10), 11, 99)
    assert len(await shop.published()) == 12
    assert set(shop.since[1:]) == {(began - REACH_BACK).isoformat()}
    assert (shop.pages.count(None) == 3) is first_page_again


async def test_empty_page_is_a_successful_no_op(shop: Records) -> None:
    """A provider that has nothing is no failure, and neither is one that has nothing new."""
    assert await shop.sync(catalogue_job()) is RunState.DONE

    row = await shop.run()
    assert (row["processed"], row["skipped"], row["failed"], len(shop.pages)) == (0, 0, 0, 1)
    assert (await shop.discs(), await shop.published()) == ({}, [])


async def test_what_has_not_changed_is_answered_without_a_body(shop: Records) -> None:
    """ETag: a run that brought nothing new leaves its question and the answer's etag; the same is asked with it
    (If-None-Match), and 304 is a success. Once something is new, the question moves on and the etag is dropped."""
    job = catalogue_job()
    shop.sell(1)
    for _ in range(4):
        assert await shop.sync(job) is RunState.DONE
    etags = [asked.get("etag") for asked in shop.company.asked]
    assert etags[:2] == [None, None]
    assert etags[2] == etags[3] is not None
    assert shop.since[1] == shop.since[2] == shop.since[3] is not None

    shop.sell(2)
    assert await shop.sync(job) is RunState.DONE
    began = shop.clock.now()
    assert await shop.sync(job) is RunState.DONE

    assert await shop.discs() == prices(1, 2)
    assert (shop.since[-1], shop.company.asked[-1].get("etag")) == ((began - REACH_BACK).isoformat(), None)


async def test_etag_of_a_full_page_is_not_believed(shop: Records) -> None:
    """A page that is full stays the same while others come behind it: 304 for it would lose those."""
    job = catalogue_job(reach_back=timedelta(hours=1))
    shop.sell(*range(4))
    for _ in range(3):
        await shop.sync(job)

    assert [asked.get("etag") for asked in shop.company.asked] == [None, None, None]


async def test_page_that_is_gone_makes_the_run_ask_from_the_beginning(shop: Records) -> None:
    """Names of pages expire: the question is asked anew, what came before is known, nothing is lost."""
    shop.sell(*range(10))
    shop.company.faults += [Fault(410, when=lambda asked: "page" in asked)]

    assert await shop.sync(catalogue_job()) is RunState.DONE

    assert await shop.discs() == prices(*range(10))
    assert len(await shop.published()) == 10
    assert shop.pages.count(None) == 2


async def test_provider_that_keeps_no_page_but_the_first_ends_the_run(shop: Records) -> None:
    """Else the run would ask from the beginning for as long as it may last, and so would each after it."""
    shop.sell(*range(10))
    shop.company.faults += [Fault(410, when=lambda asked: "page" in asked)] * 2

    assert await shop.sync(catalogue_job(run_attempts=1)) is RunState.FAILED

    row = await shop.run()
    assert (row["error_class"].rpartition(".")[2], len(shop.pages)) == ("PageGone", 4)
    assert not await shop.has_cursor()


async def test_provider_that_names_the_page_it_was_asked_for_ends_the_run(shop: Records) -> None:
    """Else the run would go round for ever."""
    shop.sell(*range(10))
    shop.company.faults += [Fault(200, body='{"discs": [], "next": "again"}')] * 2

    assert await shop.sync(catalogue_job(run_attempts=1)) is RunState.FAILED
    assert "the page that it was asked for as the next one" in (await shop.run())["error_message"]


async def test_provider_whose_pages_go_round_ends_the_run(shop: Records) -> None:
    """A leads to B and B to A: the run sees that when it meets A again, and not after half an hour."""
    shop.company.faults += [Fault(200, body=f'{{"discs": [], "next": "{name}"}}') for name in "ABA"]

    assert await shop.sync(catalogue_job(run_attempts=1)) is RunState.FAILED
    assert "already answered with" in (await shop.run())["error_message"]
    assert shop.pages == [None, "A", "B"]


async def test_failed_disc_is_met_again_until_its_price_is_right(shop: Records) -> None:
    """partial_failure='continue': the run passes over a disc that cannot be kept. The next runs ask since before it, so
    that it is tried again, until the provider has another version of it: then the old one is forgotten."""
    job = catalogue_job(partial_failure="continue")
    shop.sell(1)
    await shop.sync(job)
    since_success = (shop.clock.now() - REACH_BACK).isoformat()
    shop.sell(2, price_cents=-1)
    shop.sell(3)
    assert await shop.sync(job) is RunState.DONE
    shop.clock.move(hours=3)
    shop.sell(4)
    assert await shop.sync(job) is RunState.DONE
    assert await shop.discs() == prices(1, 3, 4)
    shop.sell(2)

    assert await shop.sync(job) is RunState.DONE

    assert await shop.discs() == prices(1, 2, 3, 4)
    assert set(shop.since[1:]) == {since_success}
    assert await shop.pool.fetchval("SELECT count(*) FROM tidegate.job_item WHERE outcome <> 'done'") == 0
    assert (await shop.cursor())["lost_since"] is None
    began = shop.clock.now()
    await shop.sync(job)
    assert shop.since[-1] == (began - REACH_BACK).isoformat()


async def test_quarantined_disc_is_replayed_by_a_run_of_its_own(shop: Records) -> None:
    """partial_failure='quarantine': the run passes over the disc and its cursor moves on. A replay asks since before it
    was met, does it and nothing else, and moves no cursor; one whose disc has another version by now stays a letter."""
    job = catalogue_job(partial_failure="quarantine")
    shop.sell(1)
    await shop.sync(job)
    since_success = (shop.clock.now() - REACH_BACK).isoformat()
    shop.sell(2, 3, title="\0")  # what Postgres cannot hold
    shop.sell(4, 5, 6, 7, 8)
    assert await shop.sync(job) is RunState.DONE
    shop.clock.move(hours=3)
    shop.sell(3)
    assert await shop.sync(job) is RunState.DONE
    cursor, asked = await shop.cursor(), len(shop.since)
    assert await shop.discs() == prices(1, *range(3, 9))
    shop.mend("d02")

    choice = ItemChoice(job=job, scope=VINYL)
    alice, now = Actor("alice", Role.OPERATOR), shop.clock.now()
    replayed = await replay_items(shop.pool, alice, "shop", choice, reason="the title is mended", now=now)
    scheduler = await shop.scheduler(job)
    states = [await work_off(shop.hands(job), await shop.claimed(scheduler)) for _ in replayed.runs]

    assert (replayed.items, set(states)) == (2, {RunState.DONE})
    assert await shop.discs() == prices(*range(1, 9))
    assert len(await shop.published()) == 8
    assert set(shop.since[asked:]) == {since_success}
    assert await shop.cursor() == cursor
    left = await shop.pool.fetch("SELECT key, outcome FROM tidegate.job_item WHERE outcome <> 'done'")
    assert [(row["key"].split()[0], row["outcome"]) for row in left] == [("d03", "quarantined")]


async def test_killed_process_leaves_its_page_to_the_next(shop: Records, database: str, tmp_path: Path) -> None:
    """kill -9 while the company is asked for page 3: another process finds the run, asks for page 3 again and for no
    page before it, and each disc acts once."""
    shop.sell(*range(10))
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        if len(shop.pages) == 3:
            is_asked.set()
            await may_answer.wait()

    shop.company.before_answer = hold
    job = catalogue_job()
    scheduler = await shop.scheduler(job)
    shop.clock.move(minutes=15)
    await scheduler.make_runs()
    with victim(database, shop.url, tmp_path / "keys.json"):
        async with asyncio.timeout(60):
            await is_asked.wait()
    may_answer.set()

    host = asyncio.create_task((await shop.host(job, pace=BRISK)).run(shop.stop))
    await until(lambda: ended(shop), seconds=60)
    shop.stop.set()
    await host

    *gone, last = await shop.pool.fetch("SELECT state, trigger FROM tidegate.job_run ORDER BY id")
    assert {row["state"] for row in gone} == {"stalled"}
    assert tuple(last) == ("done", "retry")
    assert await shop.discs() == prices(*range(10))
    assert len(await shop.published()) == 10
    assert len(set(shop.pages[:3])) == 3
    assert set(shop.pages[3:]) == {shop.pages[2]}, "nothing before it was asked for again"


async def ended(shop: Records) -> bool:
    return bool(await shop.pool.fetchval("SELECT count(*) FROM tidegate.job_run WHERE state = 'done'"))


@contextmanager
def victim(database: str, url: str, keys_file: Path) -> Iterator[None]:
    """Another process that works on the run, until it is killed."""
    command = [sys.executable, str(Path(__file__).with_name("provider_process.py")), database, url, str(keys_file)]
    process = subprocess.Popen(command, cwd=_ROOT, env=os.environ | {"PYTHONPATH": str(_ROOT)})
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def test_no_transaction_is_open_while_the_provider_is_called(shop: Records) -> None:
    """External calls before the commit: a provider that takes half a minute holds no lock and no connection."""
    seen: list[int] = []
    idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in trans%'"

    async def look() -> None:
        seen.append(await shop.pool.fetchval(idle))

    shop.company.before_answer = look
    shop.sell(*range(10))

    assert await shop.sync(catalogue_job()) is RunState.DONE
    assert seen == [0, 0, 0]


async def test_cancelled_run_ends_before_the_next_page(shop: Records) -> None:
    """Graceful: the page in hand has settled what it has, the provider is not called again, the cursor stays."""
    shop.sell(*range(10))

    async def cancel() -> None:
        await shop.pool.execute("UPDATE tidegate.job_run SET cancel_asked_by = 'alice'")

    shop.company.before_answer = cancel

    assert await shop.sync(catalogue_job()) is RunState.CANCELLED
    assert (len(shop.pages), len(await shop.discs()), await shop.has_cursor()) == (1, 1, False)


async def test_process_that_is_to_end_gives_its_run_back_and_the_next_goes_on(shop: Records) -> None:
    """SIGTERM: at once, also while it waits for the provider; no attempt is burnt, no page is asked for twice."""
    shop.sell(*range(10))
    job = catalogue_job(run_attempts=1)
    shop.on_page(2, shop.stop.set)

    assert await shop.sync(job) is RunState.DUE
    shop.stop.clear()
    scheduler = await shop.scheduler(job)
    assert await work_off(shop.hands(job), await shop.claimed(scheduler)) is RunState.DONE

    assert await shop.discs() == prices(*range(10))
    assert len(await shop.published()) == 10
    assert shop.pages.count(None) == 1
    assert (await shop.run())["attempt"] == 1


async def test_run_that_lost_its_lease_moves_no_cursor(shop: Records) -> None:
    """Case 114: another has the scope; what the old run then brings is rolled back with its last write."""
    shop.sell(1)

    async def take_over() -> None:
        await shop.pool.execute("UPDATE tidegate.lease SET token = token + 1, holder = 'other'")

    shop.company.before_answer = take_over

    assert await shop.sync(catalogue_job()) is None
    assert (await shop.discs(), await shop.published(), await shop.has_cursor()) == ({}, [], False)


async def test_run_with_parameters_moves_no_cursor(shop: Records) -> None:
    """What it was told may have left something out: the next run by the clock asks as if it had not been."""
    job = catalogue_job()
    shop.sell(1)
    scheduler = await shop.scheduler(job)
    run = await shop.due(scheduler)
    told = replace(run, parameters={"only": "d01"})

    assert await work_off(shop.hands(catalogue_job(input=Only)), told) is RunState.DONE
    assert (await shop.discs(), await shop.has_cursor()) == (prices(1), False)
