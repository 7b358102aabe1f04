"""Processes that run jobs by the clock: killed, stopped, idle, many at once, behind a pooler."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from tests.bouncer import Bouncer
from tests.integration.clock_process import HANDLER_TIMEOUT, ITEM_SECONDS
from tests.integration.clockwork import Schedulers, Workshop, hosting, minutely, tenants, until
from tests.integration.cut_connections import Cut, cut_pool
from tidegate import Context
from tidegate.jobs.clockwork.history import History
from tidegate.jobs.clockwork.host import Pace
from tidegate.jobs.clockwork.scheduler import register_clock_jobs
from tidegate.upkeeping import UPKEEP_PACE
from tidegate_kernel.postgres import Pool, open_pool

pytestmark = pytest.mark.servers

_ROOT = Path(__file__).parents[2]
BRISK = Pace(heartbeat=timedelta(seconds=1))


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
    command = [sys.executable, str(Path(__file__).with_name("clock_process.py")), database, "1"]
    process = subprocess.Popen(command, cwd=_ROOT, env=os.environ | {"PYTHONPATH": str(_ROOT)})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def test_run_of_a_killed_process_is_found_within_two_heartbeats_and_goes_on(
    shop: Workshop, database: str
) -> None:
    """Case 112: kill -9 in the middle of a run. A process of the same name finds it stalled within two heartbeats, by
    its lease, and goes on behind the last item that was settled: each order acts once."""
    await shop.prepare(acme=30)
    scheduler = await Schedulers(shop.pool, shop.clock).start(minutely())
    shop.clock.move(minutes=1)
    await scheduler.make_runs()
    with victim(database):
        await until(lambda: has_effects(shop, 3))
    killed_at = await shop.pool.fetchval("SELECT clock_timestamp()")

    async with hosting(shop, await shop.host(minutely(), holder="pod-0", pace=BRISK)):
        await until(lambda: ended(shop))

    rows = await shop.pool.fetch("SELECT state, processed, finished_at, error_class FROM tidegate.job_run ORDER BY id")
    assert [(row["state"], row["error_class"]) for row in rows] == [("stalled", "stalled"), ("done", None)]
    assert rows[0]["finished_at"] - killed_at < 2 * BRISK.heartbeat + timedelta(seconds=0.5), "half a second of grace"
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
        async with hosting(shop, await shop.host(job, holder="other", pace=BRISK)):
            await until(lambda: ended(shop))
            sleeper.send_signal(signal.SIGCONT)
            await until(lambda: nobody_waits_in_a_transaction(shop))
        await asyncio.sleep(2 * ITEM_SECONDS)

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

    async with asyncio.timeout(10):
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
    host = await shop.host(minutely(), pace=pace)
    shop.clock.move(minutes=1)

    began = time.monotonic()
    await host.run(shop.stop)

    assert time.monotonic() - began < 5
    assert await shop.effects() == []


async def test_idle_host_asks_less_than_one_question_a_second(shop: Workshop, database: str) -> None:
    """A hundred idle replicas must not be a load: counted are all statements, those of the driver too."""
    cut = Cut()
    async with cut_pool(database, cut) as pool:
        host = await shop.host(minutely(), pool=pool, pace=BRISK)
        async with hosting(shop, host):
            await until(lambda: has_run_for(host_turns=2))
            cut.is_armed = True
            looks = 4
            await asyncio.sleep(looks * BRISK.look_seconds)
            asked = cut.statements

    # Beside each statement the pool tidies up its connection with one of its own, which `cut_pool` leaves out.
    per_look = 2 * asked / looks
    assert asked >= looks - 1, "the host has looked"
    assert per_look / Pace().look_seconds + per_look / UPKEEP_PACE.look_seconds < 1, "the service's own upkeep, too"


async def has_run_for(*, host_turns: int) -> bool:
    await asyncio.sleep(host_turns * BRISK.look_seconds)
    return True


async def test_three_processes_share_the_work(shop: Workshop, database: str) -> None:
    """Cases 115 and 118, their share: each of three takes its part of 60 tenants, and no tenant's orders act twice."""
    await shop.prepare(**{scope.tenant: 2 for scope in tenants(60)})
    job = minutely(scopes=tenants(60))
    async with open_pool(database, size=6) as first, open_pool(database, size=6) as second:
        pools = {"one": shop.pool, "two": first, "three": second}
        hosts = [await shop.host(job, holder=name, pool=pool, pace=BRISK) for name, pool in pools.items()]
        shop.clock.move(minutes=1)
        async with hosting(shop, *hosts):
            await until(lambda: ended(shop, 60))

    holders = Counter(row["holder"] for row in await shop.pool.fetch("SELECT holder FROM tidegate.job_run"))
    assert len(await shop.effects()) == len(set(await shop.effects())) == 120
    assert min(holders[name] for name in pools) >= 6, holders


async def test_leases_hold_behind_a_transaction_pooler(shop: Workshop, bouncer: Bouncer, database: str) -> None:
    """Case 115: through PgBouncer each statement may meet another session; leases are rows, so two hosts of 20 tenants
    do each order once, and nothing is left locked."""
    await shop.prepare(**{scope.tenant: 3 for scope in tenants(20)})
    job = minutely(scopes=tenants(20))
    pooled = bouncer.dsn(database)
    async with open_pool(pooled, size=6) as first, open_pool(pooled, size=6) as second:
        hosts = [
            await shop.host(job, holder=name, pool=pool, pace=BRISK) for name, pool in (("one", first), ("two", second))
        ]
        shop.clock.move(minutes=1)
        async with hosting(shop, *hosts):
            await until(lambda: ended(shop, 20))

    assert len(await shop.effects()) == len(set(await shop.effects())) == 60
    assert await shop.pool.fetchval("SELECT count(*) FROM tidegate.lease WHERE expires_at > now()") == 0
    assert await shop.pool.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


async def test_outage_of_the_database_is_waited_out(shop: Workshop, database: str) -> None:
    """G5: the scheduler's own road breaks for a while; nothing ends, and what came due meanwhile runs afterwards."""
    await shop.prepare(acme=1)
    cut = Cut(1, for_good=True)
    async with cut_pool(database, cut) as pool:
        host = await shop.host(minutely(), pool=pool, pace=BRISK)
        shop.clock.move(minutes=1)
        cut.is_armed = True
        async with hosting(shop, host):
            await cut.reached.wait()
            await asyncio.sleep(2 * BRISK.look_seconds)
            cut.is_armed = False
            await until(lambda: ended(shop))

    assert await shop.effects() == ["acme/o000"]


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
