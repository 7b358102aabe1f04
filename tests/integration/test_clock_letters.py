"""Items that failed for good are dead letters: told on their topic, replayed or discarded by permission and audit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.integration.clockwork import ACME, NOON, ZEBRA, Workshop, forget_lease
from tests.integration.quarantined_items import (
    ALICE,
    BOSS,
    TOPIC,
    Closed,
    asked,
    audited,
    failed,
    letters,
    letters_leave,
    lost,
    planned,
    quarantining,
    work_next,
    worked,
)
from tidegate import Context
from tidegate.jobs.clockwork.history import History
from tidegate.jobs.clockwork.quarantine import (
    ItemChoice,
    Replayed,
    discard_items,
)
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import RunState
from tidegate_kernel.errors import Denied, Misconfigured
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.servers


@pytest.fixture
async def shop(pool: Pool) -> Workshop:
    made = Workshop(pool, on_order=Closed("o001"))
    await made.prepare(acme=3)
    return made


async def test_quarantined_item_is_a_dead_letter_told_on_the_topic_of_its_job(shop: Workshop) -> None:
    """A dead-letter job carries reason, correlation id, scope and what to type: on the topic, and in the list."""
    _, run = await failed(shop, quarantining())

    (item,) = await lost(shop)
    (letter,) = await letters(shop.pool)
    assert (item.reason, item.error_message, item.correlation_id) == ("rejected", "closed account", run.correlation_id)
    assert item.instruction == f"tidegate jobs replay check --tenant acme --letter {item.letter} --reason '…'"
    assert letter == {
        "key": "o001",
        "id": str(item.letter),
        "kind": "item",
        "job": "check",
        "run": str(run.id),
        "item": f"{run.scheduled_at.isoformat()} o001",
        "scheduled-at": run.scheduled_at.isoformat(),
        "reason": "rejected",
        "error-class": "tidegate_kernel.errors.Rejected",
        "error-message": "closed account",
        "fingerprint": item.fingerprint,
        "attempts": "1",
        "occurrences": "1",
        "first-failed-at": item.decided_at.isoformat(),
        "last-failed-at": item.decided_at.isoformat(),
        "correlation-id": str(run.correlation_id),
        "tenant": "acme",
        "handler": item.handler,
        "replay-count": "0",
        "replay-instruction": item.instruction,
        "payload": "absent",
        "stack": item.stack,
    }
    assert await shop.pool.fetchval("SELECT DISTINCT topic FROM tidegate.outbox WHERE kind = 'dead_letter'") == TOPIC


async def test_item_that_the_next_run_tries_again_is_no_letter(shop: Workshop) -> None:
    """partial_failure='continue': nobody has to decide anything."""
    await failed(shop, quarantining(partial_failure="continue"))

    (item,) = await lost(shop)
    assert (item.outcome, item.letter, item.instruction) == ("failed", None, None)
    assert await letters(shop.pool) == []


@pytest.mark.parametrize("checkpoint", ["run", "job"])
async def test_replayed_item_is_done_once_and_its_letter_resolved(shop: Workshop, checkpoint: str) -> None:
    """What was done beside it is not done again, the checkpoint stays, and its own occasion is what it is done for."""
    closed = Closed("o001")
    shop.on_order = closed
    job = quarantining(checkpoint=checkpoint)
    scheduler, first = await failed(shop, job)
    (item,) = await lost(shop)
    assert item.letter is not None
    closed.orders.clear()

    replayed = await asked(shop, ItemChoice(job=job, scope=ACME, letters=[item.letter]))
    run = await work_next(shop, job, scheduler)

    assert replayed == Replayed(1, [run.id])
    assert (run.is_replay, run.scheduled_at, run.correlation_id != first.correlation_id) == (
        True,
        first.scheduled_at,
        True,
    )
    assert shop.handled == ["o000", "o001", "o002", "o001"]
    assert await shop.effects() == ["acme/o000", "acme/o001", "acme/o002"]
    assert (await lost(shop), await shop.cursor()) == ([], "o002")
    told = (await letters(shop.pool))[1]
    assert {name: told[name] for name in ("key", "id", "job", "state")} == {
        "key": "o001",
        "id": str(item.letter),
        "job": "check",
        "state": "resolved",
    }
    assert await audited(shop.pool) == [("alice", "dlq:replay", "tests.check", "it is open again", "acme", "done")]


async def test_replay_that_fails_again_is_the_same_letter(shop: Workshop) -> None:
    """Not a second one: readers of the topic, and whoever counts, see it twice under one id."""
    job = quarantining()
    scheduler, _ = await failed(shop, job)
    await asked(shop, ItemChoice(job=job, scope=ACME))
    await work_next(shop, job, scheduler)

    first, again = await letters(shop.pool)
    (item,) = await lost(shop)
    assert first["id"] == again["id"] == str(item.letter)
    assert (again["occurrences"], again["replay-count"], again["first-failed-at"]) == (
        "2",
        "1",
        first["first-failed-at"],
    )
    assert (item.outcome, item.replays, item.replay) == ("quarantined", 1, None)


async def test_items_of_several_nights_are_each_done_for_their_own(shop: Workshop) -> None:
    """An item belongs to its occasion: what a handler sees as the time is the night in which it failed."""
    closed = Closed("o001")
    job = quarantining()
    shop.on_order = closed
    scheduler, _ = await failed(shop, job)
    await worked(shop, job, scheduler)
    seen: list[Any] = []

    async def note(_: str, ctx: Context[None]) -> None:
        seen.append(ctx.event.occurred_at)

    shop.on_order = note
    assert (await asked(shop, ItemChoice(job=job, scope=ACME))).items == 2
    for _ in range(2):
        await work_next(shop, job, scheduler)

    assert sorted(seen) == [NOON + timedelta(minutes=1), NOON + timedelta(minutes=2)]
    assert await lost(shop) == []


async def test_item_that_was_asked_for_twice_is_done_by_one_run(shop: Workshop) -> None:
    """Two operators at once: the second hears that a run is about to do it, and nothing acts twice."""
    job = quarantining()
    scheduler, _ = await failed(shop, job)
    (item,) = await lost(shop)
    choice = ItemChoice(job=job, scope=ACME, keys=[item.key])
    await asked(shop, choice)

    with pytest.raises(Misconfigured, match="a run is about to do it again"):
        await asked(shop, choice)
    assert (await asked(shop, ItemChoice(job=job, scope=ACME))).items == 0
    assert len(await scheduler.claim(5)) == 1


async def test_replay_of_a_killed_process_goes_on_with_what_is_left(shop: Workshop) -> None:
    """kill -9 between two items: the first is not done again, the second is."""
    closed = Closed("o000", "o002")
    shop.on_order = closed
    job = quarantining()
    scheduler, _ = await failed(shop, job)
    await asked(shop, ItemChoice(job=job, scope=ACME))
    closed.orders = {"o002"}
    (run,) = await scheduler.claim(1)
    hands = shop.hands(job)

    async def stop_there(order: str, ctx: Context[None]) -> None:
        await Closed()(order, ctx)
        if order == "o000":
            shop.stop.set()

    shop.on_order = stop_there
    assert await work_off(hands, run) is RunState.DUE
    # As if it had died there: it is found by its lease, and not by what it wrote last.
    await shop.pool.execute("UPDATE tidegate.job_run SET state = 'running' WHERE id = $1", run.id)
    await forget_lease(shop.pool)
    shop.stop.clear()
    await scheduler.end_stalled(await scheduler.look())
    retry = await work_next(shop, job, scheduler)

    assert (retry.is_replay, retry.first_run) == (True, run.id)
    assert shop.handled == ["o000", "o001", "o002", "o000", "o002"]
    assert await lost(shop) == []


async def test_item_that_is_not_there_any_more_stays_a_letter_and_says_so(shop: Workshop) -> None:
    """The order was removed: a replay neither does something else in its stead, nor forgets it."""
    job = quarantining()
    scheduler, _ = await failed(shop, job)
    await shop.pool.execute("DELETE FROM ord WHERE id = 'o001'")
    await asked(shop, ItemChoice(job=job, scope=ACME))
    await work_next(shop, job, scheduler)

    (item,) = await lost(shop)
    assert (item.outcome, item.replay) == ("quarantined", None)
    assert "does not answer with it any more" in (item.error_message or "")
    assert await shop.effects() == ["acme/o000", "acme/o002"]


async def test_replay_finds_an_item_although_others_came_before_it(shop: Workshop) -> None:
    """The page on which it was may begin with new orders today."""
    closed = Closed("o002")
    shop.on_order = closed
    job = quarantining(batch_size=2)
    scheduler, _ = await failed(shop, job)
    await shop.pool.execute("INSERT INTO ord SELECT 'acme', 'o001-' || n FROM generate_series(1, 9) AS n")
    closed.orders.clear()
    await asked(shop, ItemChoice(job=job, scope=ACME))
    await work_next(shop, job, scheduler)

    assert shop.handled[3:] == ["o002"]


async def test_cancelled_replay_ends_between_pages_without_its_item(shop: Workshop) -> None:
    """It looks for one order behind all that came before it since: whoever cancels it does not wait for the end."""
    shop.on_order = Closed("o002")
    job = quarantining(batch_size=2)
    scheduler, _ = await failed(shop, job)
    await shop.pool.execute("INSERT INTO ord SELECT 'acme', 'o001-' || n FROM generate_series(1, 9) AS n")
    await asked(shop, ItemChoice(job=job, scope=ACME))
    (run,) = await scheduler.claim(1)
    pages_before = len(shop.pages)

    async def cancel() -> None:
        await shop.pool.execute("UPDATE tidegate.job_run SET cancel_asked_by = 'alice' WHERE state = 'running'")

    shop.on_page = cancel

    assert await work_off(shop.hands(job), run) is RunState.CANCELLED
    assert len(shop.pages) == pages_before + 1
    assert "o002" not in shop.handled[3:]


async def test_discarded_item_is_done_by_nobody_and_told(shop: Workshop) -> None:
    """A decision, by whoever may decide it; the topic alone says which letters still stand."""
    job = quarantining(idempotency_key=lambda order, _: f"pay {order}")
    scheduler, _ = await failed(shop, job)
    choice = ItemChoice(job=job, scope=ACME, keys=["pay o001"])
    with pytest.raises(Denied, match="has role operator"):
        await discard_items(shop.pool, ALICE, "tests", choice, reason="a test order", topic=TOPIC)

    assert await discard_items(shop.pool, BOSS, "tests", choice, reason="a test order", topic=TOPIC) == 1

    shop.on_order = None
    await worked(shop, job, scheduler)
    assert await shop.effects() == ["acme/o000", "acme/o002"]
    assert await lost(shop) == []
    assert [letter.get("state") for letter in await letters(shop.pool)] == [None, "discarded"]


async def test_decision_needs_a_reason_a_permission_and_an_item(shop: Workshop) -> None:
    """Manual replay requires permission and audit; nothing that does not exist is replayed silently."""
    job = quarantining()
    choice = ItemChoice(job=job, scope=ACME, keys=["o001"])
    by_letter = ItemChoice(job=job, scope=ACME, letters=[UUID(int=1)])

    with pytest.raises(Denied, match="without a reason"):
        await asked(shop, choice, reason="")
    with pytest.raises(Denied, match="has role viewer"):
        await asked(shop, choice, actor=Actor("bob", Role.VIEWER))
    with pytest.raises(Misconfigured, match="has no failed item 'o001'"):
        await asked(shop, choice)
    with pytest.raises(Misconfigured, match="has no failed item '0000"):
        await asked(shop, by_letter)
    assert [row[5] for row in await audited(shop.pool)] == ["denied", "denied", "failed", "failed"]


async def test_letters_of_another_tenant_are_out_of_reach(shop: Workshop) -> None:
    """G12: an operator of zebra does not replay what is acme's, by whatever id."""
    job = quarantining()
    await failed(shop, job)
    (item,) = await lost(shop)
    assert item.letter is not None
    of_zebra = Actor("zoe", Role.OPERATOR, tenants=frozenset({"zebra"}))

    with pytest.raises(Denied):
        await asked(shop, ItemChoice(job=job, scope=ACME, letters=[item.letter]), actor=of_zebra)
    with pytest.raises(Misconfigured, match="has no failed item"):
        await asked(shop, ItemChoice(job=job, scope=ZEBRA, letters=[item.letter]), actor=of_zebra)
    assert [each.outcome for each in await lost(shop)] == ["quarantined"]


async def test_plan_says_how_many_and_why_and_changes_nothing(shop: Workshop) -> None:
    """Plan first, as for the letters of a consumer."""
    job = quarantining()
    await failed(shop, job)
    plan = await planned(shop, ItemChoice(job=job, scope=ACME))

    assert (plan.items, plan.occasions, plan.reasons) == (1, 1, {"rejected": 1})
    assert [each.outcome for each in await lost(shop)] == ["quarantined"]
    assert await audited(shop.pool) == []


async def test_replay_holds_up_no_schedule(shop: Workshop) -> None:
    """A repair that is due is no reason to skip tonight's run."""
    job = quarantining()
    scheduler, _ = await failed(shop, job)
    await asked(shop, ItemChoice(job=job, scope=ACME))
    shop.clock.move(minutes=1)
    await scheduler.make_runs()

    states = await shop.pool.fetch("SELECT state, is_replay FROM tidegate.job_run ORDER BY id")
    assert [tuple(row) for row in states] == [("done", False), ("due", True), ("due", False)]


async def test_replay_of_an_early_item_leaves_the_checkpoint_where_it_was(shop: Workshop) -> None:
    """A job that carries on would read everything behind the item again, and do it once more for another occasion."""
    job = quarantining(checkpoint="job")
    scheduler, _ = await failed(shop, job)
    shop.on_order = None
    await asked(shop, ItemChoice(job=job, scope=ACME))
    await work_next(shop, job, scheduler)
    await worked(shop, job, scheduler)

    assert shop.handled == ["o000", "o001", "o002", "o001"]


async def test_history_forgets_what_was_discarded_and_no_letter_that_nobody_has_decided_about(shop: Workshop) -> None:
    """Letters have a retention, those of items the same; one that is undecided has none."""
    shop.on_order = Closed("o001", "o002")
    job = quarantining()
    scheduler, _ = await failed(shop, job)
    discarded = next(item.key for item in await lost(shop) if item.key.endswith("o001"))
    choice = ItemChoice(job=job, scope=ACME, keys=[discarded])
    await discard_items(shop.pool, BOSS, "tests", choice, reason="a test order", topic=TOPIC)
    # By the database's clock it is 91 days ago, by that of the history, which stands in May, 31.
    await shop.pool.execute("UPDATE tidegate.job_item SET decided_at = least($1, now() - interval '91 days')", NOON)

    shop.clock.move(days=31)
    history = History(shop.pool, shop.clock, scheduler.jobs)
    await history.forget()
    assert len(await shop.items()) == 2, "it is a letter, and leaves as letters do"

    await letters_leave(shop.pool)
    await history.forget()
    assert [(key[-4:], outcome) for key, outcome in await shop.items()] == [("o002", "quarantined")]
