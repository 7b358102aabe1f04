"""From schedules to runs on a real Postgres: any number of schedulers, downtimes, overlaps, pauses, dead holders."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import pytest

from tests.integration.clockwork import ACME, NOON, ZEBRA, Schedulers, forget_lease, minutely, tenants, until
from tidegate.jobs.clockwork.runs import RunState
from tidegate.jobs.clockwork.schedule import Cron, Every
from tidegate.jobs.clockwork.scheduler import Scheduler
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.event import Scope
from tidegate_kernel.postgres import Pool, open_pool

pytestmark = pytest.mark.servers

MINUTE = timedelta(minutes=1)


@pytest.fixture
def schedulers(pool: Pool) -> Schedulers:
    return Schedulers(pool)


async def pause(pool: Pool, *, tenant: str | None = None) -> None:
    await pool.execute(
        "INSERT INTO tidegate.intent (kind, job, tenant, reason, actor) SELECT 'pause', id, $1, 'looking', 'alice' "
        "FROM tidegate.job",
        tenant,
    )


async def resume(pool: Pool) -> None:
    await pool.execute("UPDATE tidegate.intent SET ended_at = now()")


async def test_new_job_owes_nothing(schedulers: Schedulers) -> None:
    """A job that is deployed today has not missed the nights before."""
    scheduler = await schedulers.start(minutely())

    assert await scheduler.make_runs() == 0
    assert scheduler.next_occurrence == NOON + MINUTE


async def test_changed_schedule_owes_nothing(schedulers: Schedulers) -> None:
    """A yearly job that becomes one of every minute has not missed a year of minutes; and it runs from now on."""
    await schedulers.start(minutely(trigger=Cron("0 0 1 1 *", "UTC")))
    schedulers.clock.move(days=1)

    scheduler = await schedulers.start(minutely())
    assert await scheduler.make_runs() == 0
    schedulers.clock.move(minutes=1)
    await scheduler.make_runs()

    assert await schedulers.runs() == [(NOON + timedelta(days=1, minutes=1), "due", 0)]


async def test_three_schedulers_make_one_run_of_an_occurrence(schedulers: Schedulers) -> None:
    """Case 118: every replica runs the schedule, and each tenant gets one run of it."""
    job = minutely(scopes=[ACME, ZEBRA])
    three = [await schedulers.start(job, holder=holder) for holder in ("one", "two", "three")]
    schedulers.clock.move(minutes=1)

    made = await made_at_once(schedulers.pool, three)

    assert sum(made) == 2
    assert await schedulers.runs("tenant, scheduled_at, state") == [
        ("acme", NOON + MINUTE, "due"),
        ("zebra", NOON + MINUTE, "due"),
    ]
    assert await asyncio.gather(*(scheduler.make_runs() for scheduler in three)) == [0, 0, 0]


async def made_at_once(pool: Pool, schedulers: Sequence[Scheduler]) -> list[int]:
    """How many runs each has made, when all have found the occurrence due before any of them has made one."""
    async with pool.acquire() as holder:
        async with holder.transaction():
            await holder.execute("LOCK TABLE tidegate.job_run IN SHARE MODE")
            making = [asyncio.create_task(scheduler.make_runs()) for scheduler in schedulers]
            await until(lambda: are_waiting(pool, len(making)))
        return await asyncio.gather(*making)


async def are_waiting(pool: Pool, count: int) -> bool:
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return bool(await pool.fetchval(waits) == count)


async def test_downtime_becomes_one_run_that_tells_what_was_missed(schedulers: Schedulers) -> None:
    """Case 117: no storm after ten minutes of downtime, no run lost, and the books say how many were passed over."""
    await schedulers.start(minutely())
    schedulers.clock.move(minutes=11)

    scheduler = await schedulers.start(minutely(), holder="restarted")
    await scheduler.make_runs()

    assert await schedulers.runs() == [(NOON + 11 * MINUTE, "due", 10)]


async def test_declared_catch_up_makes_a_run_of_each_and_they_wait_for_each_other(schedulers: Schedulers) -> None:
    """Reports of each hour are wanted, too: in order, and one at a time."""
    job = minutely(catch_up="each", catch_up_limit=3, overlap="wait")
    scheduler = await schedulers.start(job)
    schedulers.clock.move(minutes=5)
    await scheduler.make_runs()

    claimed = await scheduler.claim(10)

    assert await schedulers.runs() == [
        (NOON + 3 * MINUTE, "running", 2),
        (NOON + 4 * MINUTE, "due", 0),
        (NOON + 5 * MINUTE, "due", 0),
    ]
    assert [run.scheduled_at for run in claimed] == [NOON + 3 * MINUTE]
    assert await scheduler.claim(10) == [], "its lease holds the others back"


async def test_overlap_is_recorded(schedulers: Schedulers) -> None:
    """Case 117: a run that is longer than its period skips the next ones in sight of everybody, for its own tenant."""
    scheduler = await schedulers.start(minutely(scopes=[ACME, ZEBRA]))
    schedulers.clock.move(minutes=1)
    await scheduler.make_runs()
    await scheduler.claim(1)
    await schedulers.pool.execute("UPDATE tidegate.job_run SET state = 'done' WHERE tenant = 'zebra'")
    schedulers.clock.move(minutes=1)

    await scheduler.make_runs()

    assert await schedulers.runs("tenant, state") == [
        ("acme", "running"),
        ("zebra", "done"),
        ("acme", "skipped_overlap"),
        ("zebra", "due"),
    ]


async def test_occasions_that_wait_run_one_after_the_other(schedulers: Schedulers) -> None:
    """overlap='wait': nothing is skipped, and nothing runs side by side."""
    scheduler = await schedulers.start(minutely(overlap="wait"))
    for _ in range(2):
        schedulers.clock.move(minutes=1)
        await scheduler.make_runs()

    assert len(await scheduler.claim(10)) == 1
    assert await schedulers.states() == ["running", "due"]


async def test_backlog_of_one_scope_keeps_no_other_from_its_run(schedulers: Schedulers) -> None:
    """A tenant that was paused for hours has the oldest runs, one after the other: whoever has room for four takes one
    of them, and three of other tenants at once, not when he next looks."""
    job = minutely(scopes=[ACME, ZEBRA, *tenants(3)], overlap="wait")
    scheduler = await schedulers.start(job)
    await pause(schedulers.pool, tenant="acme")
    for _ in range(6):
        schedulers.clock.move(minutes=1)
        await scheduler.make_runs()
    await schedulers.pool.execute("UPDATE tidegate.job_run SET state = 'done' WHERE tenant <> 'acme' AND id <= 25")
    await resume(schedulers.pool)

    claimed = await scheduler.claim(4)

    assert len({run.scope for run in claimed}) == len(claimed) == 4
    assert (claimed[0].scope, claimed[0].scheduled_at) == (ACME, NOON + MINUTE)
    assert len(await scheduler.claim(4)) == 1, "each scope's oldest is at work"


async def test_paused_job_stands_still_and_owes_one_run_afterwards(schedulers: Schedulers) -> None:
    """A pause survives restarts, and its end is no storm."""
    await schedulers.start(minutely())
    await pause(schedulers.pool)
    schedulers.clock.move(minutes=5)
    restarted = await schedulers.start(minutely(), holder="restarted")

    assert await restarted.make_runs() == 0
    assert restarted.next_occurrence is None, "it does not spin"
    await resume(schedulers.pool)
    await restarted.make_runs()

    assert await schedulers.runs() == [(NOON + 5 * MINUTE, "due", 4)]


async def test_pause_holds_back_runs_that_were_due_before_it(schedulers: Schedulers) -> None:
    """Whoever pauses a job at 02:00:01 means tonight's run, too; of one tenant only that tenant's."""
    scheduler = await schedulers.start(minutely(scopes=[ACME, ZEBRA]))
    schedulers.clock.move(minutes=1)
    await scheduler.make_runs()

    await pause(schedulers.pool, tenant="acme")
    assert [run.scope for run in await scheduler.claim(10)] == [ZEBRA]
    await pause(schedulers.pool)
    assert await scheduler.claim(10) == []
    await resume(schedulers.pool)
    assert [run.scope for run in await scheduler.claim(10)] == [ACME]


async def test_jitter_puts_runs_off_and_all_agree_by_how_much(schedulers: Schedulers) -> None:
    """A hundred tenants at midnight are no thundering herd."""
    job = minutely(scopes=tenants(100), jitter=timedelta(seconds=50))
    one, two = await schedulers.start(job), await schedulers.start(job, holder="two")
    schedulers.clock.move(minutes=1)
    await asyncio.gather(one.make_runs(), two.make_runs())
    delays = [due - at for at, due in await schedulers.runs("scheduled_at, due_at")]

    at_once = await one.claim(200)
    schedulers.clock.move(seconds=25)
    half_way = await two.claim(200)

    assert len(set(delays)) == 100
    assert len(at_once) == sum(delay == timedelta(0) for delay in delays)
    assert len(half_way) == sum(timedelta(0) < delay <= timedelta(seconds=25) for delay in delays)
    assert 25 < len(half_way) < 75


async def test_scopes_that_cannot_be_told_hold_up_their_own_job_only(schedulers: Schedulers) -> None:
    """The tenants of one job stand in a table that somebody dropped; the others run, and it runs when it is back."""
    is_broken = True

    async def of_tenants(_: object) -> list[Scope]:
        if is_broken:
            raise RuntimeError("no such table")
        return [ACME]

    scheduler = await schedulers.start(minutely(code="broken", scopes=of_tenants), minutely(code="sound"))
    schedulers.clock.move(minutes=1)

    assert await scheduler.make_runs() == 1
    is_broken = False
    assert await scheduler.make_runs() == 1
    assert await schedulers.states() == ["due", "due"]


async def test_ten_thousand_runs_are_made_and_claimed_once_by_three_schedulers(
    schedulers: Schedulers, database: str
) -> None:
    """Case 118: of 10,000 tenants each has one run of the night, and one process works on it."""
    job = minutely(scopes=tenants(10_000))
    async with open_pool(database, size=3) as first, open_pool(database, size=3) as second:
        pools = {"one": schedulers.pool, "two": first, "three": second}
        three = [await schedulers.start(job, holder=name, pool=pool) for name, pool in pools.items()]
        schedulers.clock.move(minutes=1)
        made = await made_at_once(schedulers.pool, three)
        claimed: Counter[int] = Counter()
        holders: Counter[str] = Counter()

        async def claim_all(number: int) -> None:
            while runs := await three[number].claim(100):
                claimed.update(run.id for run in runs)
                holders[str(number)] += len(runs)

        await asyncio.gather(*(claim_all(number) for number in range(3)))

    assert sum(made) == 10_000
    assert (len(claimed), max(claimed.values())) == (10_000, 1)
    assert min(holders.values()) >= 1_000, holders


async def test_run_of_a_dead_process_is_found_by_its_token_and_gone_on_with(schedulers: Schedulers) -> None:
    """Case 112: killed and started again under the same name, a worker is no sign of life of its old run."""
    scheduler = await schedulers.start(minutely(), holder="pod-0")
    schedulers.clock.move(minutes=1)
    await scheduler.make_runs()
    (run,) = await scheduler.claim(1)
    restarted = await schedulers.start(minutely(), holder="pod-0")

    assert await restarted.end_stalled(await restarted.look()) == [], "its lease has not ended yet"
    await forget_lease(schedulers.pool)
    found = await restarted.look()
    (stalled,) = await restarted.end_stalled(found)
    (again,) = await restarted.claim(1)

    assert (stalled.id, again.first_run, again.attempt, again.trigger) == (run.id, run.id, 2, "retry")
    assert (again.scheduled_at, again.correlation_id) == (run.scheduled_at, run.correlation_id)
    assert again.token > run.token
    assert await schedulers.states() == ["stalled", "running"]
    assert found.due == {}, "a run that nobody works on waits for nobody"


async def test_run_that_found_a_new_holder_meanwhile_is_not_stalled(schedulers: Schedulers) -> None:
    """What was found gone a moment ago may be at work again: the token tells the two apart."""
    scheduler = await schedulers.start(minutely())
    schedulers.clock.move(minutes=1)
    await scheduler.make_runs()
    await scheduler.claim(1)
    await forget_lease(schedulers.pool)
    found = await scheduler.look()
    await schedulers.pool.execute("UPDATE tidegate.job_run SET state = 'due'")
    await scheduler.claim(1)

    assert await scheduler.end_stalled(found) == []
    assert await schedulers.states() == ["running"]


async def test_run_whose_processes_keep_dying_ends(schedulers: Schedulers) -> None:
    """Case 112: a run that kills its worker must not do so for ever."""
    scheduler = await schedulers.start(minutely(run_attempts=2))
    schedulers.clock.move(minutes=1)
    await scheduler.make_runs()
    for _ in range(2):
        await scheduler.claim(1)
        await forget_lease(schedulers.pool)
        await scheduler.end_stalled(await scheduler.look())

    assert await schedulers.states() == [RunState.STALLED, RunState.STALLED]
    assert (await scheduler.look()).due == {}


async def test_queue_depth_counts_what_is_due(schedulers: Schedulers) -> None:
    """Case 112: the number that the alert looks at is that of runs that wait, and not of those at work."""
    scheduler = await schedulers.start(minutely(scopes=tenants(5)))
    schedulers.clock.move(minutes=1)
    await scheduler.make_runs()
    await scheduler.claim(2)

    (number,) = scheduler.jobs
    assert (await scheduler.look()).due == {number: 3}


async def test_code_of_another_kind_of_job_is_refused(schedulers: Schedulers) -> None:
    """Runs and claims of two jobs under one number would be each other's."""
    await schedulers.pool.execute(
        "INSERT INTO tidegate.job (service, code, claim_rule) VALUES ('tests', 'check', 'v1')"
    )

    with pytest.raises(Misconfigured, match="job 'check'"):
        await schedulers.start(minutely())


async def test_every_runs_beside_cron_and_by_hand_only_runs_never(schedulers: Schedulers) -> None:
    """A job without a trigger is for people alone."""
    scheduler = await schedulers.start(
        minutely(trigger=Every(timedelta(seconds=90))), minutely(code="asked", trigger=None)
    )
    schedulers.clock.move(minutes=3)

    await scheduler.make_runs()

    assert await schedulers.runs("scheduled_at, missed") == [(NOON + 3 * MINUTE, 1)]


async def test_outage_is_an_error_to_wait_out(schedulers: Schedulers, database: str) -> None:
    """The scheduler's host tells it from a defect."""
    async with open_pool(database, size=2) as pool:
        scheduler = await schedulers.start(minutely(), pool=pool)
    schedulers.clock.move(minutes=1)

    with pytest.raises(Transient):
        await scheduler.make_runs()
