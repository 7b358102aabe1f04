"""What operators want of jobs, as workers obey it: on a real Postgres, with Kafka in memory."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from consumers.lags import lags_of
from tests.integration.notes import Note
from tests.integration.pausing import OPERATOR, P0, P1, Bench, keep, running, until
from tidegate import Context, RetryLater
from tidegate.jobs.intents import Paused, pause, resume
from tidegate.jobs.selection import select
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def bench(pool: Pool, database: str) -> Bench:
    return Bench(pool, database)


async def pause_it(
    bench: Bench,
    code: str = "notes",
    *,
    place: str | None = None,
    tenant: str | None = None,
    seconds: float | None = None,
) -> Paused:
    lasting = None if seconds is None else timedelta(seconds=seconds)
    selection = select(bench.app, code, place=place, tenant=tenant)
    [paused] = await pause(bench.pool, OPERATOR, selection, reason="looking", lasting=lasting)
    return paused


async def resume_it(bench: Bench, code: str = "notes", *, place: str | None = None, tenant: str | None = None) -> None:
    [resumed] = await resume(bench.pool, OPERATOR, select(bench.app, code, place=place, tenant=tenant), reason="")
    assert resumed.ended, "there was something to resume"


async def test_a_paused_job_begins_nothing_and_goes_on_when_resumed(bench: Bench) -> None:
    """An operator's pause is worth nothing if events trickle on; its end must need no restart."""
    bench.send(0)
    async with running(await bench.loop()):
        await bench.stands_at(1)
        await pause_it(bench)
        await bench.says("paused")
        bench.send(1, 2)
        bench.send(3, partition=1)
        await resume_it(bench)
        await bench.stands_at(3)
        await bench.stands_at(1, P1)

    assert await bench.noted() == ["e0", "e1", "e2", "e3"]


async def test_a_pause_is_obeyed_within_two_seconds_by_every_worker(bench: Bench) -> None:
    """Whoever typed it looks at the clock: two workers, each with a partition, both rest in time."""
    async with running(await bench.loop(owner="one")), running(await bench.loop(owner="two")):
        bench.send(0)
        bench.send(1, partition=1)
        await bench.stands_at(1)
        await bench.stands_at(1, P1)
        await both_say(bench, "caught_up")
        await pause_it(bench)
        async with asyncio.timeout(2):
            await both_say(bench, "paused")
        bench.send(2)
        bench.send(3, partition=1)
        owners = await bench.pool.fetch("SELECT DISTINCT owner FROM tidegate.presence")

    assert await bench.noted() == ["e0", "e1"]
    assert {row["owner"] for row in owners} == {"one", "two"}


async def both_say(bench: Bench, state: str) -> None:
    await bench.says(state, P0)
    await bench.says(state, P1)


async def test_a_new_owner_knows_the_pause_before_its_first_fetch(bench: Bench) -> None:
    """A rebalance or a restart must not let a paused job handle one batch each time."""
    await pause_it(bench)
    bench.send(0, 1, 2)
    async with running(await bench.loop()):
        await bench.says("paused")

    assert await bench.noted() == []
    assert await bench.position() == 0


async def test_a_paused_partition_leaves_the_others_alone(bench: Bench) -> None:
    """One bad partition is looked at while the rest of the job serves its readers."""
    await pause_it(bench, place="notes:0")
    bench.send(0)
    bench.send(1, 2, partition=1)
    async with running(await bench.loop()):
        await bench.stands_at(2, P1)
        await bench.says("paused", P0)
        assert await bench.noted() == ["e1", "e2"]
        await resume_it(bench, place="notes:0")
        await bench.stands_at(1, P0)


async def test_a_pause_ends_by_itself(bench: Bench) -> None:
    """--for: nobody has to remember it at the end of the shift."""
    await pause_it(bench, seconds=1.5)
    bench.send(0)
    async with running(await bench.loop()):
        await bench.says("paused")
        await bench.stands_at(1)


async def test_the_lag_of_a_paused_partition_grows(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """G11: nothing is fetched while it rests, and its readers are behind all the same: no alert may sleep over that."""
    monkeypatch.setattr("consumers.resting.LOOK_EVERY_SECONDS", 0.2)
    loop = await bench.loop()
    bench.send(0)

    async def lag_of_p0() -> tuple[int | None, bool]:
        assert loop.source is not None
        found = next(each for each in lags_of(loop.holdings, loop.source, SystemClock().now()) if each.partition == 0)
        return None if found.lag is None else found.lag.records, found.is_paused

    async def is_told() -> bool:
        return await lag_of_p0() == (3, True)

    async with running(loop):
        await bench.stands_at(1)
        await bench.says("caught_up")
        assert await lag_of_p0() == (0, False)
        await pause_it(bench)
        await bench.says("paused")
        bench.send(1, 2, 3)
        await until(is_told)
        await resume_it(bench)
        await bench.stands_at(4)


async def test_the_batch_in_hand_is_finished(bench: Bench) -> None:
    """A pause cuts nothing off: what a handler has begun commits, what comes after does not begin."""
    at_work, may_end = asyncio.Event(), asyncio.Event()

    async def slow(command: Note, ctx: Context[None]) -> None:
        at_work.set()
        await may_end.wait()
        await keep(command, ctx)

    bench.handler = slow
    bench.send(0)
    async with running(await bench.loop()):
        await at_work.wait()
        await pause_it(bench)
        await bench.says("paused")
        bench.send(1)
        may_end.set()
        await bench.stands_at(1)
        await bench.says("paused")

    assert await bench.noted() == ["e0"]


async def test_a_retry_that_waits_does_not_run_while_paused(bench: Bench) -> None:
    """A pause is how one stops a handler that hurts; trying it again each second would go on hurting."""
    calls: list[str] = []

    async def hurting(command: Note, ctx: Context[None]) -> None:
        calls.append(command.id)
        if len(calls) == 1:
            raise RetryLater("not now", after=4.0)
        await keep(command, ctx)

    bench.handler = hurting
    bench.send(0)
    async with running(await bench.loop()):
        await bench.says("waiting")
        await pause_it(bench)
        await bench.says("paused")
        await until_paused_for(bench, 3.0)
        assert calls == ["e0"]
        await resume_it(bench)
        await bench.stands_at(1)

    assert calls == ["e0", "e0"]


async def presence_ages(bench: Bench) -> list[float]:
    rows = await bench.pool.fetch("SELECT extract(epoch FROM now() - since)::float8 AS age FROM tidegate.presence")
    return [row["age"] for row in rows]


async def until_paused_for(bench: Bench, seconds: float) -> None:
    """The partition's row says that it has been paused for so long: the retry has fallen due meanwhile."""

    async def is_long() -> bool:
        return await bench.state() == "paused" and max(await presence_ages(bench)) > seconds

    await until(is_long)


@pytest.mark.parametrize("code", ["notes", "index"])
async def test_a_tenants_pause_stops_before_its_first_record(bench: Bench, code: str) -> None:
    """What came before it in the batch goes on, what comes after it waits: order is kept, the position says where."""
    await pause_it(bench, code, tenant="acme")
    bench.send(0, 1)
    bench.send(2, tenant="acme")
    bench.send(3)
    bench.send(4, partition=1)
    async with running(await bench.loop(code)):
        await bench.stands_at(1, P1)
        await rests(bench)
        stood_at = await bench.position()
        done = await bench.noted() if code == "notes" else sorted(bench.sink.rows())
        await resume_it(bench, code, tenant="acme")
        await bench.stands_at(4)

    assert (stood_at, done) == (2, ["e0", "e1", "e4"])
    told = await bench.noted() if code == "notes" else sorted(bench.sink.rows())
    assert told == ["e0", "e1", "e2", "e3", "e4"]


async def rests(bench: Bench) -> None:
    """Returns once nothing of partition 0 is under way, whether or not a pause is the reason."""

    async def is_said() -> bool:
        return await bench.state() in ("paused", "caught_up") and (await bench.position() or 0) >= 2

    await until(is_said)


async def test_a_partition_stops_anew_at_the_next_paused_tenant(bench: Bench) -> None:
    """Two tenants are paused and one is resumed: its records go on, the other's still wait."""
    await pause_it(bench, tenant="acme")
    await pause_it(bench, tenant="beta")
    bench.send(0, tenant="acme")
    bench.send(1)
    bench.send(2, tenant="beta")
    async with running(await bench.loop()):
        await bench.says("paused")
        await resume_it(bench, tenant="acme")
        await bench.stands_at(2)
        await bench.says("paused")

    assert await bench.noted() == ["e0", "e1"]


async def test_what_has_no_tenant_goes_on_while_a_tenant_is_paused(bench: Bench) -> None:
    """A record that nobody can decode belongs to nobody: it is a dead letter at once, as always."""
    await pause_it(bench, tenant="acme")
    bench.send(0, tenant="")
    bench.send(-1, tenant="")
    async with running(await bench.loop()):
        await bench.stands_at(2)

    letters = await bench.pool.fetchval("SELECT count(*) FROM tidegate.dead_letter")
    assert (await bench.noted(), letters) == (["e0"], 1)


async def test_a_paused_tenants_undecodable_record_waits_too(bench: Bench) -> None:
    """Its envelope says whose it is: whoever pauses a tenant for its broken events wants no more dead letters."""
    await pause_it(bench, tenant="acme")
    bench.send(0)
    bench.send(-1, tenant="acme")
    async with running(await bench.loop()):
        await bench.stands_at(1)
        await bench.says("paused")

    assert await bench.pool.fetchval("SELECT count(*) FROM tidegate.dead_letter") == 0


async def test_a_tenant_paused_while_its_batch_waits_keeps_the_attempts(bench: Bench) -> None:
    """The batch that waits for another try is not begun, and not forgotten: it is tried again after the pause."""
    calls: list[str] = []

    async def twice(command: Note, ctx: Context[None]) -> None:
        calls.append(command.id)
        if len(calls) == 1:
            raise RetryLater("not now", after=4.0)
        await keep(command, ctx)

    bench.handler = twice
    bench.send(0, tenant="acme")
    async with running(await bench.loop()):
        await bench.says("waiting")
        await pause_it(bench, tenant="acme")
        await bench.says("paused")
        assert calls == ["e0"]
        await resume_it(bench, tenant="acme")
        await bench.stands_at(1)

    assert await bench.noted() == ["e0"]


async def test_a_paused_tenants_record_is_no_attempt(bench: Bench) -> None:
    """A record that may have ended its process is counted before it is begun: a pause must not use its attempts up."""
    async with running(await bench.loop()):
        await bench.says("caught_up")
    await bench.pool.execute("UPDATE tidegate.position SET attempt_offset = 0, attempts = 1 WHERE partition = 0")
    await pause_it(bench, tenant="acme")
    bench.send(0, tenant="acme")
    async with running(await bench.loop()):
        await bench.says("paused")
        row = await bench.pool.fetchrow("SELECT attempt_offset, attempts FROM tidegate.position WHERE partition = 0")
        await resume_it(bench, tenant="acme")
        await bench.stands_at(1)

    assert row is not None
    assert row["attempts"] <= 1
    assert await bench.noted() == ["e0"]
