"""Runs by hand: permitted, audited, asked for once, for later, and cancelled."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Struct
from pydantic import BaseModel

from tests.integration.clockwork import ACME, NOON, ZEBRA, Schedulers, Workshop, minutely
from tidegate.jobs.clockwork.declaration import ScheduledJob
from tidegate.jobs.clockwork.history import recent_runs
from tidegate.jobs.clockwork.items import Items
from tidegate.jobs.clockwork.requests import Requested, RunRequest, ask_for_run, cancel_run
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import RunState
from tidegate.jobs.clockwork.scopes import AcrossScopes
from tidegate_kernel.errors import Denied, Misconfigured
from tidegate_kernel.event import NO_SCOPE
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.servers

ALICE = Actor("alice", Role.OPERATOR)


@pytest.fixture
def shop(pool: Pool) -> Workshop:
    return Workshop(pool)


async def ask(shop: Workshop, job: ScheduledJob, *, actor: Actor = ALICE, **fields: Any) -> Requested:
    told: dict[str, Any] = {"scope": ACME, "at": shop.clock.now(), "reason": "a complaint"}
    asked = RunRequest(job=job, **told | fields)
    return await ask_for_run(shop.pool, actor, "tests", asked, now=shop.clock.now())


async def audited(pool: Pool) -> list[tuple[Any, ...]]:
    rows = await pool.fetch("SELECT actor, action, target, reason, tenant, outcome FROM tidegate.audit ORDER BY seq")
    return [tuple(row) for row in rows]


async def test_run_by_hand_is_permitted_audited_and_run(shop: Workshop) -> None:
    """Who asked, for whom and why stands in the books of the run, too."""
    await shop.prepare(acme=2)
    job = minutely(trigger=None)
    scheduler = await Schedulers(shop.pool, shop.clock).start(job)

    asked = await ask(shop, job)
    (run,) = await scheduler.claim(5)

    assert (asked, await work_off(shop.hands(job), run)) == (Requested(run.id, is_new=True), RunState.DONE)
    assert await shop.effects() == ["acme/o000", "acme/o001"]
    assert await audited(shop.pool) == [("alice", "run:trigger", "tests.check", "a complaint", "acme", "done")]
    async with shop.pool.acquire() as connection:
        (record,) = await recent_runs(connection, "tests", code="check", limit=5)
    assert (record.trigger, record.asked_by, record.reason) == ("manual", "alice", "a complaint")


@pytest.mark.parametrize(
    "actor",
    [Actor("bob", Role.VIEWER), Actor("nobody"), Actor("zoe", Role.OPERATOR, tenants=frozenset({"zebra"}))],
    ids=["viewer", "no token", "another tenant"],
)
async def test_who_may_not_is_refused_and_audited(shop: Workshop, actor: Actor) -> None:
    """A run moves money: asking for one, and cancelling one, is a deed."""
    job = minutely(trigger=None)
    run = (await ask(shop, job)).run

    with pytest.raises(Denied):
        await ask(shop, job, actor=actor)
    with pytest.raises(Denied):
        await cancel_run(shop.pool, actor, "tests", run)

    assert [(row[1], row[5]) for row in await audited(shop.pool)] == [
        ("run:trigger", "done"),
        ("run:trigger", "denied"),
        ("run:cancel", "denied"),
    ]
    assert await shop.pool.fetchval("SELECT array_agg(state) FROM tidegate.job_run") == ["due"]


async def test_asking_twice_under_one_key_is_one_run(shop: Workshop) -> None:
    """A script that lost the answer asks again; with other parameters it is told that it means another run."""

    class Options(BaseModel):
        limit: int = 5

    job = minutely(trigger=None, input=Options)
    first = await ask(shop, job, key="ticket-7", parameters={"limit": "3"})

    again = await ask(shop, job, key="ticket-7", parameters={"limit": "3"})
    other = await ask(shop, job, key="ticket-8")
    with pytest.raises(Misconfigured, match=f"'ticket-7' was used for run {first.run}, with other parameters"):
        await ask(shop, job, key="ticket-7", parameters={"limit": "4"})

    assert (again, other.is_new, first.is_new) == (Requested(first.run, is_new=False), True, True)
    assert await shop.pool.fetchval("SELECT count(*) FROM tidegate.job_run") == 2


async def test_run_for_later_waits_and_holds_up_no_schedule(shop: Workshop) -> None:
    """One-off and delayed: due at its time, and until then no reason to skip what the schedule brings."""
    job = minutely()
    scheduler = await Schedulers(shop.pool, shop.clock).start(job)
    later = await ask(shop, job, at=NOON + timedelta(hours=1))
    shop.clock.move(minutes=1)
    await scheduler.make_runs()

    assert [run.trigger for run in await scheduler.claim(5)] == ["schedule"]
    await shop.pool.execute("UPDATE tidegate.job_run SET state = 'done' WHERE trigger = 'schedule'")
    await shop.pool.execute("UPDATE tidegate.lease SET expires_at = now()")
    shop.clock.move(hours=1)
    assert later.run in [run.id for run in await scheduler.claim(5)]


async def test_run_for_an_occasion_that_has_passed_does_what_it_left_undone(shop: Workshop) -> None:
    """--at: items are done once for their occasion, so that a repair touches only what was not done."""
    await shop.prepare(acme=3)
    job = minutely()
    scheduler = await Schedulers(shop.pool, shop.clock).start(job)
    shop.clock.move(minutes=1)
    await scheduler.make_runs()
    (run,) = await scheduler.claim(1)
    await work_off(shop.hands(job), run)
    await shop.pool.execute("INSERT INTO ord VALUES ('acme', 'o001b')")

    shop.clock.move(seconds=30)
    await ask(shop, job, at=run.scheduled_at)
    (repair,) = await scheduler.claim(1)
    await work_off(shop.hands(job), repair)

    assert shop.handled == ["o000", "o001", "o002", "o001b"]


class PydanticInput(BaseModel):
    limit: int = 5


class StructInput(Struct):
    limit: int = 5


@dataclass
class DataclassInput:
    limit: int = 5


@pytest.mark.parametrize("model", [PydanticInput, StructInput, DataclassInput])
async def test_parameters_reach_the_query_as_the_declared_model(shop: Workshop, model: type[Any]) -> None:
    """Texts of a command line become what the job declares, and wrong ones are refused without telling their values."""
    job = minutely(trigger=None, input=model)
    scheduler = await Schedulers(shop.pool, shop.clock).start(job)
    await ask(shop, job, parameters={"limit": "7"})
    (run,) = await scheduler.claim(1)

    page = Items(job, run).page(None).event.data

    assert page.occasion.input == model(limit=7)
    with pytest.raises(Misconfigured, match="limit") as wrong:
        await ask(shop, job, parameters={"limit": "jane@example.org"})
    assert "jane" not in str(wrong.value)
    with pytest.raises(Misconfigured, match="has no parameter speed; it has limit"):
        await ask(shop, job, parameters={"speed": "7"})


async def test_job_without_parameters_takes_none(shop: Workshop) -> None:
    """A typing error must not run the default."""
    with pytest.raises(Misconfigured, match="job 'check' takes no parameters, and was given limit"):
        await ask(shop, minutely(), parameters={"limit": "7"})


async def test_scope_must_be_one_that_the_job_is_declared_for(shop: Workshop) -> None:
    """G12: no run by hand for a tenant that the schedule would never run for, nor for all by leaving it out."""
    across = minutely(code="all", scopes=AcrossScopes("one ledger"))

    with pytest.raises(Misconfigured, match="is not declared for tenant 'zebra'"):
        await ask(shop, minutely(), scope=ZEBRA)
    with pytest.raises(Misconfigured, match="one tenant at a time"):
        await ask(shop, minutely(), scope=NO_SCOPE)
    with pytest.raises(Misconfigured, match="takes no tenant"):
        await ask(shop, across, scope=ACME)
    assert (await ask(shop, across, scope=NO_SCOPE)).is_new


async def test_run_that_has_not_begun_is_cancelled_at_once_and_one_at_work_is_asked(shop: Workshop) -> None:
    """And nobody runs it later, or cancels it twice."""
    job = minutely(trigger=None)
    scheduler = await Schedulers(shop.pool, shop.clock).start(job)
    first, second = (await ask(shop, job)).run, (await ask(shop, job)).run
    (at_work,) = await scheduler.claim(1)

    assert (await cancel_run(shop.pool, ALICE, "tests", at_work.id)).is_over is False
    assert (await cancel_run(shop.pool, ALICE, "tests", second)).is_over is True

    assert at_work.id == first
    with pytest.raises(Misconfigured, match=f"run {second} has ended already: it is cancelled"):
        await cancel_run(shop.pool, ALICE, "tests", second)
    with pytest.raises(Misconfigured, match="has no run 999"):
        await cancel_run(shop.pool, ALICE, "tests", 999)
    rows = await shop.pool.fetch("SELECT state, cancel_asked_by FROM tidegate.job_run ORDER BY id")
    assert [tuple(row) for row in rows] == [("running", "alice"), ("cancelled", "alice")]
