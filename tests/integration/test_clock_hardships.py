"""What must not end, silence or repeat jobs by the clock: unfit words, a wrong clock, a defect, a run nobody wants."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.integration.clockwork import ACME, Schedulers, Workshop, hosting, minutely, until
from tidegate import Rejected
from tidegate.jobs.clockwork.history import History
from tidegate.jobs.clockwork.host import Pace
from tidegate.jobs.clockwork.requests import RunRequest, ask_for_run
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import ClaimedRun, RunState
from tidegate.jobs.clockwork.scheduler import Scheduler
from tidegate_kernel.clock import ServerClock
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import Scope
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.servers

BRISK = Pace(heartbeat=timedelta(seconds=1))


@pytest.fixture
def shop(pool: Pool) -> Workshop:
    return Workshop(pool)


async def claimed(shop: Workshop, **fields: Any) -> tuple[Scheduler, ClaimedRun]:
    """A scheduler, and its claim of the first run."""
    scheduler = await Schedulers(shop.pool, shop.clock).start(minutely(**fields))
    shop.clock.move(minutes=1)
    await scheduler.make_runs()
    (run,) = await scheduler.claim(1)
    return scheduler, run


@pytest.mark.parametrize("text", ["a\0b", "x\ud800y"], ids=["NUL", "surrogate"])
async def test_an_error_that_postgres_cannot_store_ends_the_run_all_the_same(shop: Workshop, text: str) -> None:
    """It would end the whole host, with whatever else it has in hand, each time that the run is tried again."""
    await shop.prepare(acme=1)

    async def refuse(*_: object) -> None:
        raise Rejected(text)

    shop.on_order = refuse
    _, run = await claimed(shop)

    assert await work_off(shop.hands(minutely()), run) is RunState.FAILED
    (message,) = [row["error_message"] for row in await shop.pool.fetch("SELECT error_message FROM tidegate.job_run")]
    assert text[0] in message


async def test_a_defect_in_one_run_cuts_off_no_other(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is found without a holder later, as if its process had died; the host goes on with the rest."""
    await shop.prepare(acme=1, zebra=1)

    async def work(hands: Any, run: ClaimedRun, **more: Any) -> RunState | None:
        if run.scope == ACME:
            raise RuntimeError("a defect")
        return await work_off(hands, run, **more)

    monkeypatch.setattr("tidegate.jobs.clockwork.host.work_off", work)
    host = await shop.host(minutely(scopes=[ACME, Scope("zebra")]), pace=BRISK)
    shop.clock.move(minutes=1)

    async with hosting(shop, host):
        await until(lambda: has(shop, "zebra", "done"))

    assert await shop.effects() == ["zebra/o000"]


async def has(shop: Workshop, tenant: str, state: str) -> bool:
    query = "SELECT count(*) FROM tidegate.job_run WHERE tenant = $1 AND state = $2"
    return bool(await shop.pool.fetchval(query, tenant, state))


@pytest.mark.parametrize("name", ["a\0b", "x\ud800y", "t" * 3_000], ids=["NUL", "surrogate", "long"])
async def test_a_scope_whose_name_is_unfit_holds_up_its_own_job_only(shop: Workshop, name: str) -> None:
    """A ScopeSource asks another system: what it answers must not keep all other schedules from being made."""

    async def scopes(_: object) -> Sequence[Scope]:
        return [ACME, Scope(name)]

    scheduler = await Schedulers(shop.pool, shop.clock).start(minutely(code="bad", scopes=scopes), minutely())
    shop.clock.move(minutes=1)

    assert await scheduler.make_runs() == 1


async def test_a_host_whose_clock_is_a_year_ahead_makes_no_run_too_early(shop: Workshop) -> None:
    """It would keep the schedule from all others for a year: what it has made of it is made."""
    shop.clock.at = datetime.now(UTC) + timedelta(days=365)
    scheduler = Scheduler(shop.pool, ServerClock(shop.clock), service="tests", holder="ahead")
    await scheduler.begin([minutely()])

    await scheduler.make_runs()

    until_now = await shop.pool.fetchval("SELECT scheduled_until <= now() FROM tidegate.job_clock")
    early = await shop.pool.fetchval("SELECT count(*) FROM tidegate.job_run WHERE scheduled_at > now()")
    assert (until_now, early) == (True, 0)


async def test_a_cancelled_run_that_fails_is_not_tried_again(shop: Workshop) -> None:
    """Whoever has cancelled it does not want it back."""
    await shop.prepare(acme=1)

    async def cancelled_and_failing(*_: object) -> None:
        await shop.pool.execute("UPDATE tidegate.job_run SET cancel_asked_by = 'alice'")
        raise ValueError("a defect")

    shop.on_order = cancelled_and_failing
    scheduler, run = await claimed(shop, run_retry_delay=timedelta(0))

    assert await work_off(shop.hands(minutely(run_retry_delay=timedelta(0))), run) is RunState.FAILED
    assert await scheduler.claim(1) == []


async def ask(shop: Workshop, **fields: Any) -> int:
    told: dict[str, Any] = {"scope": ACME, "at": shop.clock.now(), "reason": "-"}
    request = RunRequest(job=minutely(trigger=None), **told | fields)
    asked = await ask_for_run(shop.pool, Actor("alice", Role.OPERATOR), "tests", request, now=shop.clock.now())
    return asked.run


@pytest.mark.parametrize(
    "field, value",
    [
        ("key", "a\0b"),
        ("reason", "x\ud800y"),
        ("at", datetime.min.replace(tzinfo=UTC)),
        ("at", datetime.max.replace(tzinfo=UTC)),
    ],
)
async def test_a_request_that_cannot_be_kept_is_refused(shop: Workshop, field: str, value: object) -> None:
    """A traceback of the driver names neither the thing nor the remedy; a time of year 1 would fail when it runs."""
    with pytest.raises(Misconfigured):
        await ask(shop, **{field: value})


async def test_a_key_stands_for_its_time_too(shop: Workshop) -> None:
    """In three days is not now: whoever asks for both under one key is told, as for other parameters."""
    later = shop.clock.now() + timedelta(days=3)
    run = await ask(shop, key="k")

    with pytest.raises(Misconfigured, match="take another key"):
        await ask(shop, key="k", at=later)

    assert await ask(shop, key="k") == run
    assert await ask(shop, key="l", at=later) == await ask(shop, key="l", at=later) != run


async def test_a_run_of_next_month_is_no_backlog(shop: Workshop) -> None:
    """The alert on runs that are due would fire until then."""
    scheduler = await Schedulers(shop.pool, shop.clock).start(minutely(trigger=None))
    await ask(shop, at=shop.clock.now() + timedelta(days=30))

    found = await scheduler.look()

    assert list(found.due.values()) == [0]
    assert found.next_due_at == shop.clock.now() + timedelta(days=30)


async def test_a_run_stays_as_long_as_one_of_its_items_waits_for_a_decision(shop: Workshop) -> None:
    """A replay of it is told what the run was told: forgotten, it would be done with other parameters."""
    await shop.prepare(acme=2)

    async def refuse(order: str, _: object) -> None:
        if order == "o001":
            raise Rejected("no")

    shop.on_order = refuse
    job = minutely(partial_failure="quarantine")
    _, run = await claimed(shop, partial_failure="quarantine")
    assert await work_off(shop.hands(job), run) is RunState.DONE
    shop.clock.at = datetime.now(UTC) + timedelta(days=400)
    history = History(shop.pool, shop.clock, {run.job: job})

    kept = await history.forget()
    await shop.pool.execute("UPDATE tidegate.job_item SET outcome = 'discarded'")

    assert (kept, await history.forget()) == (0, 1)
