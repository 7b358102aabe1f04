"""A query whose pages are not ordered by its items' keys would leave items out; it is refused instead."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.integration.clockwork import Check, Orders, Schedulers, Workshop, minutely
from tidegate import Context, answer, handle
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import RunState
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.servers


async def run_over(pool: Pool, pages: Sequence[Sequence[str]], **declared: str) -> tuple[RunState | None, list[str]]:
    """Runs the job over pages that its query answers with, whatever it is asked for; returns what was handled."""
    left, handled = [*pages, ()], list[str]()

    async def orders(_: Orders, __: Context[None]) -> list[str]:
        return list(left.pop(0))

    async def check(command: Check, _: Context[None]) -> None:
        handled.append(command.order)

    shop = Workshop(pool)
    job = minutely(run_attempts=1, **declared)
    scheduler = await Schedulers(pool, shop.clock).start(job)
    shop.clock.move(minutes=1)
    await scheduler.make_runs()
    (run,) = await scheduler.claim(1)
    hands = shop.hands(job, handlers=[answer(Orders, orders), handle(Check, check)])
    return await work_off(hands, run), handled


@pytest.mark.parametrize("pages", [(["b", "a"],), (["a", "c"], ["b", "d"]), (["9", "10"], ["8"])], ids=str)
async def test_page_that_goes_back_is_refused(pool: Pool, pages: Sequence[Sequence[str]]) -> None:
    """The checkpoint is the last key: what a page in another order has left out is behind it for ever."""
    state, handled = await run_over(pool, pages)

    told = await pool.fetchval("SELECT error_message FROM tidegate.job_run")
    assert state is RunState.FAILED
    assert handled == list(pages[0] if len(pages) > 1 else ()), "nothing of the page is done"
    assert "job 'check': its query answers with a page that goes back" in told
    assert "key_order='of_query'" in told


async def test_order_of_the_databases_own_collation_passes(pool: Pool) -> None:
    """Capitals come first by character, and not for whoever orders by a column of the database's language."""
    ordered = await pool.fetch("SELECT unnest($1::text[]) AS key ORDER BY key", ["B", "a", "C", "b"])

    state, handled = await run_over(pool, [[row["key"] for row in ordered]])

    assert state is RunState.DONE
    assert len(handled) == 4


async def test_order_that_is_promised_otherwise_is_not_looked_at(pool: Pool) -> None:
    """Two columns joined, a column of another collation: nobody but the owner knows that they are in order."""
    state, handled = await run_over(pool, [["b", "a"], ["d", "c"]], key_order="of_query")

    assert state is RunState.DONE
    assert handled == ["b", "a", "d", "c"]
