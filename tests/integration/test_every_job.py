"""The seven tests that every job has to pass, whatever its kind: one suite for all jobs of the shop, on real servers.

What jobs read comes from Kafka, and what they publish is read from it: a repeat that the outbox has forgotten shows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from examples.shop.app import app as shop
from tests.integration.driven import Driven, Place
from tests.integration.driven_clock import DiscCatalogueDriven, ExpiredExportsDriven, ReconciliationDriven
from tests.integration.driven_topics import CustomerValueDriven, LedgerDriven, OrderSearchDriven, RevenueDriven
from tidegate.jobs.docs.coverage import Rule, covering_tests
from tidegate.stack.names import StackAddresses
from tidegate_kernel.errors import Denied
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool

pytestmark = [
    pytest.mark.servers,
    pytest.mark.covers(
        jobs=[
            "customer-ledger",
            "order-search",
            "revenue-by-day",
            "customer-value",
            "expired-exports",
            "disc-catalogue",
            "nightly-reconciliation",
        ]
    ),
]

JOBS: list[type[Driven]] = [
    LedgerDriven,
    OrderSearchDriven,
    RevenueDriven,
    CustomerValueDriven,
    ExpiredExportsDriven,
    DiscCatalogueDriven,
    ReconciliationDriven,
]
ANNA, VICTOR = Actor("anna", Role.OPERATOR), Actor("victor", Role.VIEWER)


@pytest.fixture(params=JOBS, ids=lambda job: job.code)
async def job(
    request: pytest.FixtureRequest,
    database: str,
    stack: StackAddresses,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    pool: Pool,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Driven]:
    monkeypatch.setenv("TIDEGATE_ELASTICSEARCH_URL", stack.elasticsearch_url)
    monkeypatch.setenv("TIDEGATE_CLICKHOUSE_URL", stack.clickhouse_url)
    async with request.param.at(
        Place(pool, database, stack, unique_name("s")[-40:].strip("-") + "-", tmp_path)
    ) as made:
        yield made


@pytest.mark.covers("empty_batch")
async def test_nothing_to_do_is_done_well(job: Driven) -> None:
    """A night without work must not wake anybody."""
    await job.work()

    assert (await job.done(), await job.failed()) == (0, 0)


@pytest.mark.covers("partial_failure")
async def test_partial_failure_keeps_the_checkpoint(job: Driven) -> None:
    """What was done stays done, the rest is known, and the next work goes on there.

    Where a job by the clock does not stop at a failure, its next occasion looks at everything anew; that its retry goes
    on at the checkpoint is part of `work_with_a_death`.
    """
    await job.offer(2)
    await job.offer_bad()
    await job.offer(2)

    await job.work()
    before = (await job.done(), await job.failed(), await job.progress())
    letters = await job.letters()
    await job.mend()
    await job.work()

    assert before == ((2, 1, 2) if job.stops_at_failure else (4, 1, 5))
    assert letters == int(job.makes_letters)
    assert await job.done() == (5 if job.is_mended_by_work else 4)
    assert job.began_behind() in (None, 2 if job.stops_at_failure else 0)


@pytest.mark.covers("single_runner")
async def test_two_processes_never_do_the_same_work(job: Driven) -> None:
    """Whoever is not the owner finishes nothing, also where it believes that it is, and both are at it at once."""
    await job.offer(4)

    assert await job.contend() == 1
    assert await job.done() == 4


@pytest.mark.covers("repeat_is_idempotent")
async def test_repeated_trigger_changes_nothing(job: Driven) -> None:
    """Kafka delivers twice, people ask twice."""
    await job.offer(4)
    await job.work()
    await job.trigger_again()

    assert (await job.done(), await job.failed()) == (4, 0)
    assert await job.events() in (None, 4)


@pytest.mark.covers("retry_duplicates_nothing")
async def test_retry_moves_no_money_and_tells_no_event_twice(job: Driven) -> None:
    """A process dies in the middle of its work, or forgets how far it was; another goes on. What the first has
    published is in the topic by then, and no more comes of it: neither an event nor a dead letter is there twice."""
    await job.offer(7)
    if job.makes_letters:
        await job.offer_bad()
    await job.work_with_a_death()

    assert (await job.done(), await job.failed()) == (7, int(job.makes_letters))
    assert await job.events() in (None, 7)
    assert await job.letters() == int(job.makes_letters)


@pytest.mark.covers("replay_needs_permission")
async def test_replay_by_hand_needs_a_permission_and_is_audited(job: Driven) -> None:
    """Who may not is refused, and both are kept."""
    await job.offer_bad()
    await job.work()

    with pytest.raises(Denied):
        await job.by_hand(VICTOR)
    refused = await _last_deed(job)
    left = (await job.done(), await job.failed())
    await job.mend()
    await job.by_hand(ANNA)

    assert (refused, left) == (("victor", job.deed_by_hand, "denied"), (0, 1))
    assert await _last_deed(job) == ("anna", job.deed_by_hand, "done")
    assert await job.done() == (1 if job.is_mended_by_work else 0)


@pytest.mark.covers("cancellation")
async def test_process_that_is_asked_to_stop_ends_what_it_has_in_hand(job: Driven) -> None:
    """What it has begun is settled and counted; the rest is done by the next process, and nothing twice."""
    await job.offer(12)
    await job.work_stopped()
    stopped_at = await job.done()

    assert 0 < stopped_at == await job.progress()
    await job.go_on()
    assert (await job.done(), await job.failed()) == (12, 0)


def test_every_job_of_the_shop_is_in_the_suite() -> None:
    """A job that joins the shop joins the suite; its document would say that no test covers it."""
    codes = sorted(job.code for job in (*shop.jobs, *shop.clock_jobs))
    file = Path(__file__)

    assert sorted(driven.code for driven in JOBS) == codes
    assert set(covering_tests(file.parent, [file])) == {(code, rule) for code in codes for rule in Rule}


async def _last_deed(job: Driven) -> tuple[str, str, str]:
    """By whom, what, and how it ended."""
    row = await job.place.pool.fetchrow(
        "SELECT actor, action, outcome FROM tidegate.audit WHERE actor IN ('anna', 'victor') ORDER BY seq DESC LIMIT 1"
    )
    assert row is not None
    return row["actor"], row["action"], row["outcome"]
