"""Processes that run jobs by the clock: killed, stopped, idle, many at once, behind a pooler."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from tests.bouncer import Bouncer
from tests.integration.clock_process import HANDLER_TIMEOUT
from tests.integration.clockwork import NOON, Schedulers, Workshop, has_turned, hosting, minutely, tenants, until
from tests.integration.cut_connections import Cut, cut_pool
from tidegate import App, Context
from tidegate.jobs.clockwork.history import History
from tidegate.jobs.clockwork.host import Pace
from tidegate.jobs.clockwork.scheduler import register_clock_jobs
from tidegate.jobs.intents import pause, resume
from tidegate.jobs.selection import select
from tidegate.upkeeping import UPKEEP_PACE
from tidegate_kernel import logs
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool, open_pool

pytestmark = pytest.mark.servers

_ROOT = Path(__file__).parents[2]
BRISK = Pace(heartbeat=timedelta(seconds=1))
# Where a test counts whose lease has ended: leases of three seconds outlast what a busy machine holds up.
STEADY = Pace(heartbeat=timedelta(seconds=2))
ALICE = Actor("alice", Role.OPERATOR)


@pytest.fixture
def shop(pool: Pool) -> Workshop:
    return Workshop(pool)


async def ended(shop: Workshop, count: int = 1) -> bool:
    found: int = await shop.pool.fetchval("SELECT count(*) FROM tidegate.job_run WHERE state = 'done'")
    return found >= count


async def test_host_makes_claims_and_works_off_what_comes_due(shop: Workshop) -> None:
    """From a schedule to effects, without a hand."""
    await shop.prepare(acme=3)
    host = await shop.host(minutely(), pace=BRISK)
    shop.clock.move(minutes=1)

    async with hosting(shop, host):
        await until(lambda: ended(shop))

    assert await shop.effects() == ["acme/o000", "acme/o001", "acme/o002"]


@contextmanager
def victim(database: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that works on the same job, under the name `pod-0`."""
    heartbeat = str(STEADY.heartbeat.total_seconds())
    command = [sys.executable, str(Path(__file__).with_name("clock_process.py")), database, heartbeat]
    environment = os.environ | {"PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def until_it_says(process: subprocess.Popen[bytes], words: str) -> None:
    """Returns once the process has written a line with those words."""

    def read() -> bool:
        return any(words.encode() in line for line in process.stdout or ())

    assert await asyncio.wait_for(asyncio.to_thread(read), 60), f"it has ended and never said {words!r}"


async def test_run_of_a_killed_process_is_found_within_two_heartbeats_and_goes_on(
    shop: Workshop, database: str
) -> None:
    """Case 112: kill -9 in the middle of a run. A process of the same name finds it stalled within two heartbeats, by
    its lease, and goes on behind the last item that was settled: each order acts once.

    Two heartbeats are the time that is left of its lease when it dies, one and a half at most, and one look, which
    comes every half. Both are told by the database, however busy the machine is.
    """
    await shop.prepare(acme=30)
    scheduler = await Schedulers(shop.pool, shop.clock).start(minutely())
    shop.clock.move(minutes=1)
    await scheduler.make_runs()
    with victim(database):
        await until(lambda: has_effects(shop, 3))
    killed_at = await shop.pool.fetchval("SELECT clock_timestamp()")
    expires_at = await shop.pool.fetchval("SELECT expires_at FROM tidegate.lease")

    async with hosting(shop, await shop.host(minutely(), holder="pod-0", pace=STEADY)):
        await until(lambda: ended(shop))

    rows = await shop.pool.fetch("SELECT state, processed, finished_at, error_class FROM tidegate.job_run ORDER BY id")
    assert [(row["state"], row["error_class"]) for row in rows] == [("stalled", "stalled"), ("done", None)]
    looks_that_could = [look for look in shop.looks if expires_at < look <= rows[0]["finished_at"]]
    assert (expires_at - killed_at <= 1.5 * STEADY.heartbeat, len(looks_that_could)) == (True, 1)
    assert 1.5 * STEADY.heartbeat.total_seconds() + STEADY.look_seconds <= 2 * STEADY.heartbeat.total_seconds()
    assert sum(row["processed"] for row in rows) == 30
    assert await shop.effects() == [f"acme/o{number:03}" for number in range(30)]
    assert 0 < len(shop.handled) < 30, "it went on, and did not begin anew"


async def test_process_that_slept_through_its_lease_writes_nothing_when_it_wakes(shop: Workshop, database: str) -> None:
    """Case 114, with a process: stopped in the middle of an item, its transaction open. Another goes on, though the
    item's row is locked; the first wakes, and each order has acted once."""
    await shop.prepare(acme=15)
    job = minutely(handler_timeout=HANDLER_TIMEOUT)
    scheduler = await Schedulers(shop.pool, shop.clock).start(job)
    shop.clock.move(minutes=1)
    await scheduler.make_runs()
    with victim(database) as sleeper:
        await until(lambda: has_effects(shop, 3))
        sleeper.send_signal(signal.SIGSTOP)
        async with hosting(shop, await shop.host(job, holder="other", pace=STEADY)):
            await until(lambda: ended(shop))
            sleeper.send_signal(signal.SIGCONT)
            await until_it_says(sleeper, logs.RUN_LOST)
        await until(lambda: nobody_waits_in_a_transaction(shop))

    rows = await shop.pool.fetch("SELECT state, processed, holder FROM tidegate.job_run ORDER BY id")
    assert [(row["state"], row["holder"]) for row in rows] == [("stalled", "pod-0"), ("done", "other")]
    assert sum(row["processed"] for row in rows) == 15
    assert await shop.effects() == [f"acme/o{number:03}" for number in range(15)]


async def nobody_waits_in_a_transaction(shop: Workshop) -> bool:
    asleep = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in trans%'"
    return bool(await shop.pool.fetchval(asleep) == 0)


async def has_effects(shop: Workshop, count: int) -> bool:
    return len(await shop.effects()) >= count


async def test_stop_gives_runs_back_after_the_unit_in_hand(shop: Workshop) -> None:
    """SIGTERM: bounded by one item, not by the run; the next process goes on."""
    await shop.prepare(acme=50)

    async def stop(order: str, _: Context[None]) -> None:
        if order == "o004":
            shop.stop.set()

    shop.on_order = stop
    host = await shop.host(minutely(), pace=BRISK)
    shop.clock.move(minutes=1)

    async with asyncio.timeout(60):
        await host.run(shop.stop)

    assert len(await shop.effects()) == 5
    assert await shop.pool.fetchval("SELECT array_agg(state) FROM tidegate.job_run") == ["due"]


async def test_handler_that_does_not_end_holds_up_the_stop_for_the_grace_period_only(shop: Workshop) -> None:
    """G10: what it did is rolled back, and the run is found by its lease."""
    await shop.prepare(acme=1)

    async def hang(*_: object) -> None:
        shop.stop.set()
        await asyncio.Event().wait()

    shop.on_order = hang
    pace = Pace(heartbeat=timedelta(seconds=1), grace=timedelta(seconds=0.3))
    # Nothing else would cut it off before the deadline.
    host = await shop.host(minutely(handler_timeout=timedelta(minutes=10)), pace=pace)
    shop.clock.move(minutes=1)

    async with asyncio.timeout(60):
        await host.run(shop.stop)

    assert await shop.effects() == []


async def test_idle_host_asks_less_than_one_question_a_second(shop: Workshop, database: str) -> None:
    """A hundred idle replicas must not be a load: counted are all statements, those of the driver too, in the time that
    they took. It was ten times as brisk as a worker is; a machine that is busy only makes it slower."""
    cut, clock = Cut(), asyncio.get_running_loop()
    async with cut_pool(database, cut) as pool:
        host = await shop.host(minutely(), pool=pool, pace=BRISK)
        async with hosting(shop, host):
            await has_turned(host, 2)
            cut.is_armed, began = True, clock.time()
            await has_turned(host, 5)
            asked, seconds = cut.statements, clock.time() - began

    # Beside each statement the pool tidies up its connection with one of its own, which `cut_pool` leaves out.
    in_a_look = 2 * asked / seconds * BRISK.look_seconds
    assert asked >= 4, "the host has looked"
    assert in_a_look / Pace().look_seconds + in_a_look / UPKEEP_PACE.look_seconds < 1, "the service's own upkeep, too"


async def test_three_processes_share_the_work(shop: Workshop, database: str) -> None:
    """Cases 115 and 118, their share: each of three takes as much as it has room for, and leaves the rest to others. Of
    60 tenants each has at least a tenth, and no tenant's orders act twice."""
    await shop.prepare(**{scope.tenant: 2 for scope in tenants(60)})
    job, pace = minutely(scopes=tenants(60)), Pace(heartbeat=timedelta(seconds=4), runs_at_once=6)
    are_all_at_work = asyncio.Event()

    async def wait(*_: object) -> None:
        await are_all_at_work.wait()

    shop.on_order = wait
    async with open_pool(database, size=12) as first, open_pool(database, size=12) as second:
        pools = {"one": shop.pool, "two": first, "three": second}
        hosts = [await shop.host(job, holder=name, pool=pool, pace=pace) for name, pool in pools.items()]
        shop.clock.move(minutes=1)
        async with hosting(shop, *hosts):
            await until(lambda: all_have(shop, 6, [*pools]))
            are_all_at_work.set()
            await until(lambda: ended(shop, 60))

    assert len(await shop.effects()) == len(set(await shop.effects())) == 120


async def all_have(shop: Workshop, runs: int, holders: Sequence[str]) -> bool:
    """Whether each of the holders has so many runs in hand, and no more."""
    rows = await shop.pool.fetch("SELECT holder FROM tidegate.job_run WHERE state = 'running'")
    return Counter(row["holder"] for row in rows) == Counter(dict.fromkeys(holders, runs))


async def test_leases_hold_behind_a_transaction_pooler(shop: Workshop, bouncer: Bouncer, database: str) -> None:
    """Case 115: through PgBouncer each statement may meet another session; leases are rows, so two hosts of 20 tenants
    do each order once, and nothing is left locked."""
    await shop.prepare(**{scope.tenant: 3 for scope in tenants(20)})
    job = minutely(scopes=tenants(20))
    pooled = bouncer.dsn(database)
    async with open_pool(pooled, size=6) as first, open_pool(pooled, size=6) as second:
        hosts = [
            await shop.host(job, holder=name, pool=pool, pace=STEADY)
            for name, pool in (("one", first), ("two", second))
        ]
        shop.clock.move(minutes=1)
        async with hosting(shop, *hosts):
            await until(lambda: ended(shop, 20))

    assert len(await shop.effects()) == len(set(await shop.effects())) == 60
    assert await shop.pool.fetchval("SELECT count(*) FROM tidegate.lease WHERE expires_at > now()") == 0
    advisory = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = $1"
    own = await shop.pool.fetchval("SELECT oid FROM pg_database WHERE datname = current_database()")
    assert await shop.pool.fetchval(advisory, own) == 0


async def test_outage_of_the_database_is_waited_out(shop: Workshop, database: str) -> None:
    """G5: the scheduler's own road breaks for a while; nothing ends, and what came due meanwhile runs afterwards."""
    await shop.prepare(acme=1)
    cut = Cut(1, for_good=True)
    async with cut_pool(database, cut) as pool:
        host = await shop.host(minutely(), pool=pool, pace=BRISK)
        shop.clock.move(minutes=1)
        cut.is_armed = True
        async with hosting(shop, host):
            await asyncio.wait_for(cut.reached.wait(), 60)
            await has_turned(host, 2)
            cut.is_armed = False
            await until(lambda: ended(shop))

    assert await shop.effects() == ["acme/o000"]


async def test_pause_survives_the_end_of_every_process(shop: Workshop, database: str) -> None:
    """Whoever pauses a job by day must not find at night that a deployment has started it again. Paused in the middle
    of a run, it rests; a process that begins meanwhile makes no run and takes none; resumed, it goes on where it was,
    and owes one run for all that came due."""
    await shop.prepare(acme=5)
    job = minutely(overlap="wait")
    declared = App(service="tests", owner="tests", jobs=[], clock_jobs=[job], handlers=shop.handlers())
    check = select(declared, job.code)

    async def stop(order: str, _: Context[None]) -> None:
        if order == "o001":
            await pause(shop.pool, ALICE, check, reason="looking")

    shop.on_order = stop
    host = await shop.host(job, pace=BRISK)
    shop.clock.move(minutes=1)
    async with hosting(shop, host):
        await until(lambda: rests_behind(shop, 2))

    shop.clock.move(minutes=5)
    async with open_pool(database, size=4) as pool:
        later = Workshop(pool, shop.clock)
        host = await later.host(job, holder="later", pool=pool, pace=BRISK)
        async with hosting(later, host):
            await has_turned(host, 3)
            assert (await rests_behind(later, 2), later.handled) == (True, [])
            await resume(pool, ALICE, check, reason="")
            await until(lambda: ended(later, 2))

    assert later.handled == ["o002", "o003", "o004", *(f"o00{number}" for number in range(5))]
    rows = await shop.pool.fetch("SELECT scheduled_at, missed FROM tidegate.job_run ORDER BY id")
    minute = timedelta(minutes=1)
    assert [(row["scheduled_at"], row["missed"]) for row in rows] == [(NOON + minute, 0), (NOON + 6 * minute, 4)]


async def rests_behind(shop: Workshop, items: int) -> bool:
    """Whether there is one run, which nobody has, and which has done so many items."""
    rows = await shop.pool.fetch("SELECT state, processed FROM tidegate.job_run")
    return [(row["state"], row["processed"]) for row in rows] == [("due", items)]


async def test_ended_runs_are_forgotten_after_the_time_that_their_job_says(shop: Workshop) -> None:
    """History with retention: and the results of items with it, but for those of a key of the job's own."""
    await shop.prepare(acme=2)
    own = minutely(code="own", idempotency_key=lambda order, _: order, history=timedelta(days=2))
    jobs = (minutely(history=timedelta(days=2)), own)
    history = History(shop.pool, shop.clock, await register_clock_jobs(shop.pool, "tests", jobs))
    host = await shop.host(*jobs, pace=BRISK)
    shop.clock.move(minutes=1)
    async with hosting(shop, host):
        await until(lambda: ended(shop, 2))
    await shop.pool.execute("UPDATE tidegate.job_run SET finished_at = $1 WHERE job = 1", shop.clock.now())
    await shop.pool.execute("UPDATE tidegate.job_run SET finished_at = $1 WHERE job = 2", shop.clock.now())
    await shop.pool.execute("UPDATE tidegate.job_item SET decided_at = $1", shop.clock.now())

    shop.clock.move(days=1)
    assert await history.forget() == 0
    shop.clock.move(days=2)
    assert await history.forget() == 2

    assert await shop.items() == [("o000", "done"), ("o001", "done")]
