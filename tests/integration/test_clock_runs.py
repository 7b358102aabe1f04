"""Runs on a real Postgres: items once, checkpoints, partial failures, dead and frozen holders, cancellation."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from consumers.failure import RetryPolicy
from tests.integration.clockwork import NOON, Check, Orders, Schedulers, Workshop, forget_lease, minutely, until
from tests.integration.cut_connections import Cut, cut_pool
from tidegate import Context, Rejected, RetryLater, handle, handle_batch
from tidegate.jobs.clockwork.declaration import ScheduledJob
from tidegate.jobs.clockwork.items import Items
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import (
    ClaimedRun,
    RunState,
    Tally,
    end_run,
    put_back,
    settle_unit,
)
from tidegate.jobs.clockwork.scheduler import Scheduler
from tidegate.jobs.clockwork.units import Units
from tidegate.jobs.handlers import answer
from tidegate_kernel.errors import LeaseLost
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.servers

QUICK = RetryPolicy(attempts=3, unexpected_attempts=2, first_delay=timedelta(milliseconds=5))
TTL = timedelta(seconds=15)


@pytest.fixture
def shop(pool: Pool) -> Workshop:
    return Workshop(pool)


def checks(**fields: Any) -> ScheduledJob:
    return minutely(**{"batch_size": 4, "retry": QUICK, "run_retry_delay": timedelta(0)} | fields)


async def started(shop: Workshop, job: ScheduledJob) -> tuple[Scheduler, ClaimedRun]:
    """A scheduler, and its claim of the first run."""
    scheduler = await Schedulers(shop.pool, shop.clock).start(job)
    return scheduler, await next_run(shop, scheduler)


async def next_run(shop: Workshop, scheduler: Scheduler) -> ClaimedRun:
    """The run of the next minute."""
    shop.clock.move(minutes=1)
    await scheduler.make_runs()
    return await claimed(scheduler)


async def claimed(scheduler: Scheduler) -> ClaimedRun:
    (run,) = await scheduler.claim(1)
    return run


async def told(pool: Pool, run: int) -> dict[str, Any]:
    row = await pool.fetchrow("SELECT * FROM tidegate.job_run WHERE id = $1", run)
    assert row is not None
    return dict(row)


async def pause(pool: Pool) -> None:
    await pool.execute(
        "INSERT INTO tidegate.intent (kind, job, reason, actor) SELECT 'pause', id, '-', 'alice' FROM tidegate.job"
    )


async def test_run_does_each_item_once_in_order_and_keeps_its_checkpoint(shop: Workshop) -> None:
    """A night's work: every item, page by page, for its own tenant alone."""
    await shop.prepare(acme=10, zebra=3)
    _, run = await started(shop, checks())

    assert await work_off(shop.hands(checks()), run) is RunState.DONE

    assert shop.handled == [f"o{number:03}" for number in range(10)]
    assert await shop.effects() == [f"acme/o{number:03}" for number in range(10)]
    assert await shop.cursor() == "o009"
    row = await told(shop.pool, run.id)
    assert (row["state"], row["processed"], row["skipped"], row["failed"]) == ("done", 10, 0, 0)


async def test_empty_batch_is_a_successful_no_op(shop: Workshop) -> None:
    """A quiet night is no failure."""
    await shop.prepare()
    _, run = await started(shop, checks())

    assert await work_off(shop.hands(checks()), run) is RunState.DONE
    assert (await shop.items(), await shop.cursor()) == ([], None)


@pytest.mark.parametrize("unit", ["item", "batch"])
async def test_partial_failure_keeps_the_checkpoint_and_the_retry_goes_on_there(shop: Workshop, unit: str) -> None:
    """What was done before the failure stands and is not done again; what failed is done by the retry."""
    await shop.prepare(acme=10)
    is_broken = True

    async def fail(order: str, _: Context[None]) -> None:
        if order == "o006" and is_broken:
            raise RuntimeError("no such account")

    shop.on_order = fail
    job = checks(unit=unit)
    scheduler, run = await started(shop, job)

    assert await work_off(shop.hands(job), run) is RunState.FAILED
    before = await shop.effects()
    is_broken = False
    again = await claimed(scheduler)
    first_again = {"item": 6, "batch": 4}[unit]
    checkpoint = await shop.cursor()
    shop.handled.clear()
    shop.pages.clear()

    assert await work_off(shop.hands(job), again) is RunState.DONE
    assert checkpoint == shop.pages[0] == f"o{first_again - 1:03}"
    assert before == [f"acme/o{number:03}" for number in range(first_again)]
    assert shop.handled == [f"o{number:03}" for number in range(first_again, 10)]
    assert await shop.effects() == [f"acme/o{number:03}" for number in range(10)]
    row = await told(shop.pool, run.id)
    assert (row["error_class"], "no such account" in row["error_message"]) == ("RuntimeError", False)


async def test_next_occasion_begins_at_the_start_and_does_every_item_again(shop: Workshop) -> None:
    """checkpoint='run': tonight's scan is not last night's, although both are of the same orders."""
    await shop.prepare(acme=3)
    scheduler, run = await started(shop, checks())
    await work_off(shop.hands(checks()), run)

    await work_off(shop.hands(checks()), await next_run(shop, scheduler))

    assert shop.handled == ["o000", "o001", "o002"] * 2


async def test_job_that_carries_on_begins_where_the_last_run_ended(shop: Workshop) -> None:
    """checkpoint='job': what only ever grows is read once."""
    await shop.prepare(acme=3)
    job = checks(checkpoint="job")
    scheduler, run = await started(shop, job)
    await work_off(shop.hands(job), run)
    await shop.pool.execute("INSERT INTO ord VALUES ('acme', 'o003')")

    await work_off(shop.hands(job), await next_run(shop, scheduler))

    assert shop.handled == ["o000", "o001", "o002", "o003"]


async def test_item_that_is_done_once_for_all_is_not_done_by_another_run(shop: Workshop) -> None:
    """Money is moved once, whoever asks again: a second trigger, another night, a run by hand."""
    await shop.prepare(acme=3)
    job = checks(idempotency_key=lambda order, _: f"transfer {order}")
    scheduler, run = await started(shop, job)
    await work_off(shop.hands(job), run)

    again = await next_run(shop, scheduler)
    assert await work_off(shop.hands(job), again) is RunState.DONE

    assert shop.handled == ["o000", "o001", "o002"]
    assert (await told(shop.pool, again.id))["skipped"] == 3


@pytest.mark.parametrize("unit", ["item", "batch"])
@pytest.mark.parametrize("mode, outcome", [("continue", "failed"), ("quarantine", "quarantined")])
async def test_failing_item_costs_only_itself(shop: Workshop, mode: str, outcome: str, unit: str) -> None:
    """G6: two bad orders of ten; the eight others are done, and the books name the two without their data."""
    await shop.prepare(acme=10)

    async def fail(order: str, _: Context[None]) -> None:
        if order in ("o002", "o005"):
            raise Rejected("closed account")

    shop.on_order = fail
    job = checks(partial_failure=mode, unit=unit)
    _, run = await started(shop, job)

    assert await work_off(shop.hands(job), run) is RunState.DONE

    assert await shop.effects() == [f"acme/o{number:03}" for number in range(10) if number not in (2, 5)]
    lost = [key[-4:] for key, became in await shop.items() if became == outcome]
    assert lost == ["o002", "o005"]
    row = await told(shop.pool, run.id)
    assert (row["processed"], row["failed"]) == (8, 2)


async def test_failed_item_is_tried_again_by_the_next_run_and_a_quarantined_one_is_not(shop: Workshop) -> None:
    """'continue' leaves it to the next night; 'quarantine' to a person."""
    await shop.prepare(acme=2)
    is_broken = True

    async def fail(order: str, _: Context[None]) -> None:
        if order == "o001" and is_broken:
            raise Rejected("closed account")

    shop.on_order = fail
    once = {"idempotency_key": lambda order, _: order}
    jobs = [checks(code=mode, partial_failure=mode, **once) for mode in ("continue", "quarantine")]
    for job in jobs:
        scheduler, run = await started(shop, job)
        await work_off(shop.hands(job), run)
        is_broken = False
        await work_off(shop.hands(job), await next_run(shop, scheduler))
        is_broken = True

    assert await shop.items() == [("o000", "done"), ("o000", "done"), ("o001", "done"), ("o001", "quarantined")]


async def test_batch_handler_gets_the_batch_and_a_bad_item_of_it_stands_alone(shop: Workshop) -> None:
    """A list in one call, of one scope; the failing item of it is found."""
    await shop.prepare(acme=5)
    lists: list[list[str]] = []

    async def check_all(commands: Sequence[Check], ctx: Context[None]) -> None:
        lists.append([command.order for command in commands])
        if "o001" in lists[-1]:
            raise Rejected("closed account")
        for command in commands:
            await ctx.db.execute("INSERT INTO effect (id) VALUES ($1)", command.order)

    handlers = [answer(Orders, shop._orders), handle_batch(Check, check_all)]
    job = checks(unit="batch", partial_failure="continue")
    _, run = await started(shop, job)

    assert await work_off(shop.hands(job, handlers=handlers), run) is RunState.DONE
    assert await shop.effects() == ["o000", "o002", "o003", "o004"]
    assert lists[0] == ["o000", "o001", "o002", "o003"]


async def test_transient_failure_is_retried_in_place_and_moves_nothing_twice(shop: Workshop) -> None:
    """A retry does not double money: the attempt that failed has left nothing behind."""
    await shop.prepare(acme=2)
    tries = 0

    async def fail_twice(order: str, ctx: Context[None]) -> None:
        nonlocal tries
        tries += order == "o001"
        ctx.publish("ledger", {"order": order}, key=order)
        if order == "o001" and tries < 3:
            raise RetryLater("the bank is busy", after=0)

    shop.on_order = fail_twice
    _, run = await started(shop, checks())

    assert await work_off(shop.hands(checks()), run) is RunState.DONE
    assert (await shop.effects(), tries) == (["acme/o000", "acme/o001"], 3)
    assert await shop.pool.fetchval("SELECT count(*) FROM tidegate.outbox") == 2


async def test_outage_gives_the_run_back_and_nothing_pays_for_it(shop: Workshop) -> None:
    """G5: with the bank away no item fails and no attempt is counted; the run goes on when it is back."""
    await shop.prepare(acme=2)

    async def no_bank(order: str, _: Context[None]) -> None:
        if order == "o001" and not shop.answers:
            raise ConnectionError("bank")

    shop.on_order, shop.answers = no_bank, False
    scheduler, run = await started(shop, checks(run_attempts=1))

    assert await work_off(shop.hands(checks()), run) is RunState.DUE
    assert await scheduler.claim(1) == [], "it rests first"
    shop.answers = True
    shop.clock.move(seconds=30)
    again = await claimed(scheduler)

    assert (again.id, again.attempt, again.tally) == (run.id, 1, Tally(1, 0, 0))
    assert await work_off(shop.hands(checks()), again) is RunState.DONE
    assert await shop.effects() == ["acme/o000", "acme/o001"]
    assert (await told(shop.pool, run.id))["processed"] == 2


async def test_business_no_that_stops_a_run_is_not_retried(shop: Workshop) -> None:
    """Business failures are never retried: the next night would hear the same no."""
    await shop.prepare(acme=1)

    async def refuse(*_: object) -> None:
        raise Rejected("closed account")

    shop.on_order = refuse
    scheduler, run = await started(shop, checks())

    assert await work_off(shop.hands(checks()), run) is RunState.FAILED
    assert (shop.handled, await scheduler.claim(1)) == (["o000"], [])


async def test_run_that_fails_again_and_again_ends(shop: Workshop) -> None:
    """run_attempts bounds it; each attempt is a run of its own in the history, of one correlation id."""
    await shop.prepare(acme=1)

    async def fail(*_: object) -> None:
        raise RuntimeError

    shop.on_order = fail
    job = checks(run_attempts=2)
    scheduler, run = await started(shop, job)
    await work_off(shop.hands(job), run)
    again = await claimed(scheduler)
    await work_off(shop.hands(job), again)

    assert await scheduler.claim(1) == []
    assert (again.attempt, again.first_run, again.correlation_id) == (2, run.id, run.correlation_id)


async def test_frozen_holder_writes_nothing_once_another_has_its_lease(shop: Workshop) -> None:
    """Case 114: its process stood still for longer than its lease; another goes on. What the old one then writes,
    ends or gives back changes nothing, and the token has grown."""
    await shop.prepare(acme=6)
    frozen, thaw = asyncio.Event(), asyncio.Event()

    async def freeze(order: str, _: Context[None]) -> None:
        if order == "o002" and not frozen.is_set():
            frozen.set()
            await thaw.wait()

    shop.on_order = freeze
    scheduler, run = await started(shop, checks())
    old = asyncio.create_task(work_off(shop.hands(checks()), run))
    await asyncio.wait_for(frozen.wait(), 60)
    await forget_lease(shop.pool)
    await scheduler.end_stalled(await scheduler.look())
    again = await claimed(scheduler)
    # The old one's transaction holds the item's key: the new one waits for it, and must not wait in vain.
    new = asyncio.create_task(work_off(shop.hands(checks()), again))
    await until(lambda: waits_for_a_lock(shop.pool))
    thaw.set()

    assert await old is None
    assert await new is RunState.DONE
    assert again.token > run.token
    assert await shop.effects() == [f"acme/o{number:03}" for number in range(6)]
    assert (await told(shop.pool, run.id))["state"] == "stalled"
    async with shop.pool.acquire() as connection:
        for write in (
            settle_unit(connection, run, Tally(1), cursor="o999"),
            end_run(connection, run, RunState.DONE),
            put_back(connection, run, due_at=NOON),
        ):
            with pytest.raises(LeaseLost, match=f"token {run.token} is worth nothing"):
                await write
    assert await shop.cursor() == "o005"


async def waits_for_a_lock(pool: Pool) -> bool:
    waits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return bool(await pool.fetchval(waits))


async def test_holder_that_lost_its_lease_is_cancelled_within_a_heartbeat(shop: Workshop) -> None:
    """Case 114: it does not go on until its next write: the handler that it is in is cut off by the next renewal, which
    comes three times in the life of a lease. Nothing else would: its time limit is ten minutes away."""
    await shop.prepare(acme=1)
    is_at_work, is_cut_off = asyncio.Event(), asyncio.Event()

    async def hang(*_: object) -> None:
        is_at_work.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            is_cut_off.set()
            raise

    shop.on_order = hang
    ttl, job = timedelta(seconds=1.5), checks(handler_timeout=timedelta(minutes=10))
    scheduler = await Schedulers(shop.pool, shop.clock).start(job, ttl=ttl)
    run = await next_run(shop, scheduler)
    work = asyncio.create_task(work_off(shop.hands(job), run, ttl=ttl))
    await asyncio.wait_for(is_at_work.wait(), 60)
    await forget_lease(shop.pool)

    assert await asyncio.wait_for(work, 60) is None
    assert is_cut_off.is_set()
    assert await shop.effects() == []


async def test_lease_is_kept_for_as_long_as_a_handler_takes(shop: Workshop) -> None:
    """A handler that is slower than a lease lasts: the run is renewed beside it, and nobody else gets it."""
    await shop.prepare(acme=1)
    ttl = timedelta(seconds=3)
    may_end = asyncio.Event()

    async def slow(*_: object) -> None:
        await may_end.wait()

    shop.on_order = slow
    scheduler = await Schedulers(shop.pool, shop.clock).start(checks(), ttl=ttl)
    run = await next_run(shop, scheduler)
    claimed_until = await shop.pool.fetchval("SELECT expires_at FROM tidegate.lease")
    work = asyncio.create_task(work_off(shop.hands(checks()), run, ttl=ttl))
    await until(lambda: is_past(shop.pool, claimed_until))
    gone = (await scheduler.look()).gone
    may_end.set()

    assert (await work, gone) == (RunState.DONE, {})


async def is_past(pool: Pool, at: datetime) -> bool:
    return bool(await pool.fetchval("SELECT now() > $1", at))


async def test_cancelled_run_ends_after_the_unit_in_hand(shop: Workshop) -> None:
    """Graceful: what was begun is finished, its checkpoint stands, nothing more begins."""
    await shop.prepare(acme=10)

    async def ask(order: str, _: Context[None]) -> None:
        if order == "o003":
            await shop.pool.execute("UPDATE tidegate.job_run SET cancel_asked_by = 'alice'")

    shop.on_order = ask
    scheduler, run = await started(shop, checks())

    assert await work_off(shop.hands(checks()), run) is RunState.CANCELLED
    assert (await shop.cursor(), len(await shop.effects())) == ("o003", 4)
    assert await scheduler.claim(1) == [], "nobody retries what somebody has cancelled"


async def test_process_that_is_to_end_gives_its_run_back_and_another_goes_on(shop: Workshop) -> None:
    """SIGTERM: after the unit in hand, without an attempt burnt, and at once."""
    await shop.prepare(acme=5)

    async def ask(order: str, _: Context[None]) -> None:
        if order == "o002":
            shop.stop.set()

    shop.on_order = ask
    scheduler, run = await started(shop, checks(run_attempts=1))

    assert await work_off(shop.hands(checks()), run) is RunState.DUE
    shop.stop.clear()
    shop.on_order = None
    again = await claimed(scheduler)
    assert await work_off(shop.hands(checks()), again) is RunState.DONE
    assert (again.id, shop.handled) == (run.id, [f"o{number:03}" for number in range(5)])


async def test_process_that_is_to_end_does_not_wait_for_the_next_try(shop: Workshop) -> None:
    """SIGTERM while an item waits to be tried again."""
    await shop.prepare(acme=1)

    async def later(*_: object) -> None:
        shop.stop.set()
        raise RetryLater("busy", after=60)

    shop.on_order = later
    _, run = await started(shop, checks())

    async with asyncio.timeout(30):
        assert await work_off(shop.hands(checks()), run) is RunState.DUE


async def test_paused_job_rests_after_the_unit_in_hand(shop: Workshop) -> None:
    """A pause holds back what runs, too, and its end lets it go on where it was."""
    await shop.prepare(acme=5)

    async def ask(order: str, _: Context[None]) -> None:
        if order == "o001":
            await pause(shop.pool)

    shop.on_order = ask
    scheduler, run = await started(shop, checks())

    assert await work_off(shop.hands(checks()), run) is RunState.DUE
    assert (await scheduler.claim(1), len(shop.handled)) == ([], 2)
    await shop.pool.execute("UPDATE tidegate.intent SET ended_at = now()")
    assert await work_off(shop.hands(checks()), await claimed(scheduler)) is RunState.DONE


async def test_run_that_takes_too_long_fails_and_its_retry_goes_on(shop: Workshop) -> None:
    """max_duration is a bound, also where a handler hangs; what was done stands."""
    await shop.prepare(acme=3)

    async def hang(order: str, _: Context[None]) -> None:
        if order == "o001":
            await asyncio.Event().wait()

    shop.on_order = hang
    job = checks(max_duration=timedelta(seconds=1), handler_timeout=timedelta(seconds=1))
    scheduler, run = await started(shop, job)

    assert await work_off(shop.hands(job), run) is RunState.FAILED
    assert "max_duration" in (await told(shop.pool, run.id))["error_message"]
    shop.on_order = None
    assert await work_off(shop.hands(checks()), await claimed(scheduler)) is RunState.DONE
    assert await shop.effects() == ["acme/o000", "acme/o001", "acme/o002"]


async def test_cancellation_is_no_failure_to_retry(shop: Workshop) -> None:
    """Case 121: cancelled at the first attempt, in the handler or in the wait before the next, it leaves at once."""
    await shop.prepare(acme=1)
    at_work = asyncio.Event()

    async def hang(*_: object) -> None:
        at_work.set()
        await asyncio.Event().wait()

    async def later(*_: object) -> None:
        at_work.set()
        raise RetryLater("busy", after=60)

    for handler in (hang, later):
        shop.on_order = handler
        at_work.clear()
        shop.handled.clear()
        _, run = await started(shop, checks(code=handler.__name__))
        work = asyncio.create_task(work_off(shop.hands(checks(code=handler.__name__)), run))
        await asyncio.wait_for(at_work.wait(), 60)
        work.cancel()
        async with asyncio.timeout(30):
            with pytest.raises(asyncio.CancelledError):
                await work
        assert shop.handled == ["o000"]


async def test_ids_of_what_is_published_stay_and_tell_tenants_apart(shop: Workshop) -> None:
    """A repeat publishes the same ids, which readers drop; two tenants' orders of one number are two events."""
    await shop.prepare(acme=1)
    keys: list[str] = []

    async def publish(order: str, ctx: Context[None]) -> None:
        keys.append(ctx.idempotency_key)
        ctx.publish("ledger", {"order": order}, key=order)

    shop.on_order = publish
    job = checks()
    _, run = await started(shop, job)
    await work_off(shop.hands(job), run)
    item = Items(job, run).batch(["o000"], after=None)[0].arrival.event

    headers = await shop.pool.fetchrow("SELECT header_names, header_values FROM tidegate.outbox")
    assert headers is not None
    told_headers = dict(zip(headers["header_names"], headers["header_values"], strict=True))
    assert told_headers[b"ce_correlationid"] == str(run.correlation_id).encode()
    assert told_headers[b"ce_tenantid"] == b"acme"
    assert keys == [f"check:{item.id}"]
    assert item.id.startswith("acme//")


async def test_query_that_repeats_itself_ends_the_run(shop: Workshop) -> None:
    """A query that ignores page.after would keep its run going for ever."""
    await shop.prepare()

    async def always(_: Orders, __: Context[None]) -> list[str]:
        return ["o000", "o001"]

    job = checks()
    handlers = [answer(Orders, always), handle(Check, shop._check)]
    scheduler, run = await started(shop, job)

    assert await work_off(shop.hands(job, handlers=handlers), run) is RunState.FAILED
    assert "page.after" in (await told(shop.pool, run.id))["error_message"]
    assert (shop.handled, await scheduler.claim(1)) == (["o000", "o001"], [])


async def test_what_a_query_writes_is_rolled_back(shop: Workshop) -> None:
    """It runs outside the transaction of any item: what it wrote would stand without any of them."""
    await shop.prepare(acme=1)

    async def writes(query: Orders, ctx: Context[None]) -> list[str]:
        await ctx.db.execute("INSERT INTO effect (id) VALUES ('query')")
        return await shop._orders(query, ctx)

    handlers = [answer(Orders, writes), handle(Check, shop._check)]
    _, run = await started(shop, checks())

    await work_off(shop.hands(checks(), handlers=handlers), run)
    assert await shop.effects() == ["acme/o000"]


async def test_job_function_that_raises_fails_its_run_and_nothing_else(shop: Workshop) -> None:
    """`key` of an item that has none: the run says so, and its process goes on."""
    await shop.prepare(acme=1)

    def no_key(_: object) -> str:
        raise KeyError("id")

    job = checks(key=no_key)
    _, run = await started(shop, job)

    assert await work_off(shop.hands(job), run) is RunState.FAILED
    assert (await told(shop.pool, run.id))["error_class"] == "KeyError"


async def test_handler_that_breaks_its_connection_pays_for_it(shop: Workshop) -> None:
    """The transaction in which its failure was to be kept is gone with it: the next attempt keeps it without a call."""
    await shop.prepare(acme=3)

    async def cut(order: str, ctx: Context[None]) -> None:
        if order == "o001":
            ctx.db.raw.terminate()
            raise RuntimeError("broken")

    shop.on_order = cut
    job = checks(partial_failure="continue")
    _, run = await started(shop, job)

    assert await work_off(shop.hands(job), run) is RunState.DONE
    assert await shop.effects() == ["acme/o000", "acme/o002"]
    assert [became for _, became in await shop.items()] == ["done", "failed", "done"]


async def test_unit_whose_commit_got_no_answer_is_counted_once(shop: Workshop) -> None:
    """The answer to COMMIT is lost: the unit is found to have settled, and neither done nor counted again."""
    await shop.prepare(acme=2)
    _, run = await started(shop, checks())
    hands = shop.hands(checks())
    units = Units(hands, run)
    (item,) = Items(checks(), run).batch(["o000"], after=None)
    await units.do([item])
    forgetful = Units(hands, run)  # as it was before the answer came

    assert await forgetful._settled_after_all([item]) is not None
    assert await forgetful._settled_after_all([item]) is None
    row = await told(shop.pool, run.id)
    assert (row["processed"], json.loads(row["parameters"])) == (1, {})


@pytest.mark.parametrize("cuts", [range(1, 11), range(11, 21), range(21, 31)], ids=str)
async def test_any_answer_of_the_database_may_be_lost(shop: Workshop, database: str, cuts: range) -> None:
    """G2 and G11: whichever statement of a run loses its answer, every item acts once and is counted once."""
    await shop.prepare(acme=3)
    for at in cuts:
        await shop.pool.execute("TRUNCATE effect")
        row = await run_with_a_cut(shop, database, Cut(at))
        assert await shop.effects() == ["acme/o000", "acme/o001", "acme/o002"], at
        assert (row["state"], row["processed"], row["skipped"], row["failed"]) == ("done", 3, 0, 0), at


async def run_with_a_cut(shop: Workshop, database: str, cut: Cut) -> dict[str, Any]:
    """A run of its own job, gone on with until it ends; returns how it stands then."""
    job = checks(code=f"check-{secrets.token_hex(4)}", batch_size=2)
    scheduler, run = await started(shop, job)
    async with cut_pool(database, cut) as pool:
        cut.is_armed = True
        state = await work_off(shop.hands(job, pool=pool), run)
    while state is RunState.DUE:
        shop.clock.move(seconds=30)
        run = await claimed(scheduler)
        state = await work_off(shop.hands(job), run)
    assert cut.reached.is_set(), "the run has more statements than this test cuts"
    return await told(shop.pool, run.id)
