"""The shop's nightly reconciliation: orders against ledger by tenant, on a real Postgres."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from examples.shop.reconciliation.differences import CorrectAccount
from tests.integration.shop_books import AURORA, BOREALIS, CLOSED, BookShop, own_correct
from tidegate import Context, RetryLater
from tidegate.jobs.clockwork.quarantine import lost_items
from tidegate.jobs.clockwork.runs import RunState
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.servers


@pytest.fixture
async def books(pool: Pool, database: str) -> BookShop:
    """Three differences of aurora, one of borealis; everything else agrees."""
    made = BookShop(pool, database)
    await made.prepare()
    await made.order(AURORA, "c1", 250)  # an event that was never published
    await made.account(AURORA, "c3", 3, 2000)  # an order that was counted twice
    await made.order(AURORA, "c7", 700)  # a customer whom the ledger has never heard of
    await made.account(BOREALIS, "c2", 2, 1501)  # somebody's hand
    return made


RIGHT = {"c0": (2, 1500), "c1": (3, 1750), "c2": (2, 1500), "c3": (2, 1500), "c4": (2, 1500), "c7": (1, 700)}
CORRECTED = [("aurora", "c1", 1, 250), ("aurora", "c3", -1, -500), ("aurora", "c7", 1, 700)]


async def test_planted_differences_are_found_exactly_and_set_right(books: BookShop) -> None:
    """No more and no fewer; one tenant's run touches nothing of another's."""
    run = await books.ask()
    assert await books.work_off(run) is RunState.DONE

    assert await books.ledger(AURORA) == RIGHT
    assert (await books.ledger(BOREALIS))["c2"] == (2, 1501)
    assert await books.corrections() == CORRECTED
    assert await books.published() == ["c1", "c3", "c7"]
    tag = await books.pool.fetchrow("SELECT DISTINCT run, token, correlation_id FROM ledger_correction")
    assert tag is not None
    assert tuple(tag) == (run.id, run.token, run.correlation_id)


async def test_second_trigger_changes_nothing(books: BookShop) -> None:
    """Asked for again in the same night: a successful no-op."""
    await books.work_off(await books.ask())
    assert await books.work_off(await books.ask()) is RunState.DONE

    assert await books.ledger(AURORA) == RIGHT
    assert await books.corrections() == CORRECTED
    assert await books.published() == ["c1", "c3", "c7"]


async def test_retry_moves_money_and_tells_once(books: BookShop) -> None:
    """The handler fails after it has done everything, once an account."""
    seen: set[str] = set()

    async def fail_once(command: CorrectAccount, ctx: Context[Any]) -> None:
        await own_correct(command, ctx)
        if command.customer_id not in seen:
            seen.add(command.customer_id)
            raise RetryLater("the answer was lost", after=0)

    assert await books.work_off(await books.ask(), correct=fail_once) is RunState.DONE

    assert seen == {"c1", "c3", "c7"}
    assert await books.ledger(AURORA) == RIGHT
    assert await books.corrections() == CORRECTED
    assert await books.published() == ["c1", "c3", "c7"]


async def test_run_of_a_killed_process_is_gone_on_with(books: BookShop) -> None:
    """kill -9 in the middle of the second account: what was settled stands, what was open is done by who goes on."""
    is_there = asyncio.Event()

    async def hang_at_the_second(command: CorrectAccount, ctx: Context[Any]) -> None:
        await own_correct(command, ctx)
        if command.customer_id == "c3":
            is_there.set()
            await asyncio.Event().wait()

    first = await books.ask()
    killed = asyncio.create_task(books.work_off(first, correct=hang_at_the_second))
    await asyncio.wait_for(is_there.wait(), 30)
    killed.cancel()
    await asyncio.gather(killed, return_exceptions=True)
    before = await books.corrections()
    second = await books.claim_after_death()
    assert await books.work_off(second) is RunState.DONE

    assert before == CORRECTED[:1]
    assert (second.first_run, second.correlation_id) == (first.id, first.correlation_id)
    assert await books.ledger(AURORA) == RIGHT
    assert await books.corrections() == CORRECTED
    assert await books.published() == ["c1", "c3", "c7"]


async def test_what_is_too_much_waits_for_a_person(books: BookShop) -> None:
    """A thousand dollars are not moved by a machine that found them at night; the others are."""
    await books.account(AURORA, "c4", 2, 1_000_000)
    assert await books.work_off(await books.ask()) is RunState.DONE
    assert (await books.ledger(AURORA))["c4"] == (2, 1_000_000)
    async with books.pool.acquire() as connection:
        (item,) = await lost_items(connection, books.app.service, code=None, limit=5)
    assert (item.outcome, item.reason, item.tenant) == ("quarantined", "rejected", "aurora")
    assert len(await books.corrections()) == 3

    assert await books.work_off(await books.ask(cents="2000000")) is RunState.DONE
    assert await books.ledger(AURORA) == RIGHT


async def test_account_that_moves_is_looked_at_another_night(books: BookShop) -> None:
    """An order since the books were closed may be in one of the two and on its way to the other."""
    await books.order(AURORA, "c1", 300, at=CLOSED + timedelta(hours=1))
    await books.work_off(await books.ask())

    assert (await books.ledger(AURORA))["c1"] == (2, 1500)
    assert await books.corrections() == CORRECTED[1:]


async def test_books_that_nobody_has_closed_change_nothing(pool: Pool, database: str) -> None:
    """Empty books are no reason to take everybody's money away; an empty batch is a successful no-op."""
    books = BookShop(pool, database)
    await books.prepare(are_closed=[BOREALIS])
    await pool.execute("DELETE FROM order_record WHERE tenant = 'aurora'")

    assert await books.work_off(await books.ask()) is RunState.DONE
    assert await books.ledger(AURORA) == await books.ledger(BOREALIS)
    assert await books.corrections() == []


async def test_purchase_that_comes_while_an_account_is_set_right_is_not_lost(books: BookShop) -> None:
    """The account is locked and read again: what was bought in between is no difference by then, or is seen as one."""

    async def buy_first(command: CorrectAccount, ctx: Context[Any]) -> None:
        if command.customer_id == "c1":  # the late event comes after all, in a transaction of its own
            await books.account(AURORA, "c1", 3, 1750)
        await own_correct(command, ctx)

    await books.work_off(await books.ask(), correct=buy_first)

    assert await books.ledger(AURORA) == RIGHT
    assert await books.corrections() == CORRECTED[1:]
