"""Runs over letters while what handlers need is away, or too slow: no letter pays for what is not its fault."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from dlq.letters import Failure
from dlq.parking import Blocking, park, record_key
from dlq.runs import Outcome, RunKind
from tests.integration.parking_bench import BAD, Note, make_bench, of_key, parking_job
from tests.integration.replay_bench import ReplayBench, lenient, mended
from tests.integration.road import TOPIC_ID, MakeRoad
from tidegate import Context, Dependency, Handler, ParkingLimit, Rejected, handle, handle_batch
from tidegate.migrations.schema import migrate
from tidegate.stack.names import ServerName
from tidegate.stack.progress import Silence
from tidegate.stack.stack import Stack
from tidegate_kernel.errors import Reason
from tidegate_kernel.postgres import Pool, open_pool

_DEADLINE_SECONDS = 60.0


async def test_a_handler_that_hangs_is_cut_off_and_costs_its_own_letter_alone(
    make_road: MakeRoad, pool: Pool, database: str
) -> None:
    """Case 61: at night a run must come to its end, also where one letter makes the mended handler wait for ever. The
    event parked behind it goes on waiting; the neighbours in its batch are handled."""
    job = parking_job(handler_timeout=timedelta(seconds=0.3), silence_limit=timedelta(seconds=20))
    bench = await make_bench(make_road, handler_timeout=job.handler_timeout, silence_limit=job.silence_limit)
    await bench.settle([of_key(n, b"k%d" % n, BAD) for n in range(3)])
    await bench.settle([of_key(3, b"k1"), of_key(4, b"k2")])
    replays = ReplayBench(pool, database, job)

    async def hangs(command: Note, ctx: Context[None]) -> None:
        await lenient(command, ctx)
        if command.id == "e1":
            await asyncio.Event().wait()

    replays.handlers = [handle(Note, hangs)]
    async with asyncio.timeout(_DEADLINE_SECONDS):
        outcomes = await replays.replay()

    assert outcomes == {Outcome.RESOLVED: 2, Outcome.FAILED: 1}
    assert sorted(await bench.effects()) == ["e0", "e2", "e4"]
    assert await bench.parked() == ["e3"]
    dead = await pool.fetch("SELECT event_id, error_class FROM tidegate.dead_letter WHERE state = 'dead'")
    assert [tuple(row) for row in dead] == [("e1", "tidegate.jobs.mediator.HandlerTimedOut")]


class BankIsAway(Exception):
    """What the user's client raises."""


class Bank:
    """A dependency that goes away in the middle of a run, and comes back when somebody has waited for it."""

    def __init__(self) -> None:
        self.calls = 0
        self.is_away = False

    def pay(self) -> None:
        self.calls += 1
        self.is_away |= self.calls == 3
        if self.is_away:
            raise BankIsAway

    async def probe(self) -> bool:
        return not self.is_away

    async def one(self, command: Note, ctx: Context[None]) -> None:
        await lenient(command, ctx)
        self.pay()

    async def several(self, commands: Sequence[Note], ctx: Context[None]) -> None:
        for command in commands:
            await self.one(command, ctx)

    async def prepare(self, command: Note, deps: None) -> str:  # as handlers have it
        self.pay()
        return command.id

    async def prepared(self, command: Note, ctx: Context[None], prepared: str) -> None:
        assert prepared == command.id
        await lenient(command, ctx)


@pytest.mark.parametrize(
    "handler",
    [
        lambda bank: handle(Note, bank.one),
        lambda bank: handle_batch(Note, bank.several),
        lambda bank: handle(Note, bank.prepared, prepare=bank.prepare),
    ],
    ids=["one by one", "lists", "prepared"],
)
async def test_an_outage_in_the_middle_of_a_run_is_waited_out(
    make_road: MakeRoad, pool: Pool, database: str, handler: Callable[[Bank], Handler]
) -> None:
    """Case 21: the user's own dependency goes away between two letters. No letter fails, none acts twice, and what is
    parked follows; whoever watches is told that the run waits."""
    bank, job = Bank(), parking_job(needs=["bank"])
    needed = [Dependency("bank", probe=bank.probe, transient=[BankIsAway])]
    bench = await make_bench(make_road)
    await bench.settle([of_key(n, b"k%d" % n, BAD) for n in range(6)])
    await bench.settle([of_key(6, b"k0"), of_key(7, b"k5")])
    replays = ReplayBench(pool, database, job, dependencies=needed)
    replays.handlers = [handler(bank)]
    held = await replays.begin()
    runner = await replays.runner(held)
    told: list[str] = []

    def back(error: Exception) -> None:
        told.append(str(error))
        if len(told) == 2:
            bank.is_away = False

    runner._on_wait = back
    async with asyncio.timeout(_DEADLINE_SECONDS):
        assert await runner.run()

    assert told == ["postgres or a dependency is away: Transient"] * 2
    assert (await replays.run(held)).outcomes == {Outcome.RESOLVED: 6}
    assert sorted(await bench.effects()) == [f"e{n}" for n in range(8)]
    assert await pool.fetchval("SELECT max(replay_count) FROM tidegate.dead_letter") == 1


async def test_many_events_behind_one_letter_follow_in_order(make_road: MakeRoad, pool: Pool, database: str) -> None:
    """A key that was blocked for a day is one sequence of thousands: it is worked off in whole batches, in order."""
    room = ParkingLimit(per_key=20_000)
    bench = await make_bench(make_road, parking=room)
    # A row that was rolled back would leave room at the beginning, and the order of rows is what is looked at.
    await pool.execute("ALTER TABLE effect SET (autovacuum_enabled = false)")
    await bench.settle([of_key(0, b"k", BAD)])
    for start in range(1, 10_001, 2500):
        await bench.settle([of_key(n, b"k") for n in range(start, start + 2500)])
    replays = ReplayBench(pool, database, parking_job(parking=room))
    replays.handlers = mended()
    held = await replays.begin()
    batches: list[int] = []
    runner = await replays.runner(held)
    runner._on_taken = lambda taken: batches.append(len(taken.outcomes) + taken.parked)

    async with asyncio.timeout(_DEADLINE_SECONDS):
        await runner.run()

    run = await replays.run(held)
    assert (run.outcomes, run.parked, await bench.blocked_keys()) == ({Outcome.RESOLVED: 1}, 10_000, 0)
    assert await bench.effects() == [f"e{n}" for n in range(10_001)]
    assert len(batches) == 21


@pytest.mark.timeout(180)
async def test_a_restart_of_postgres_in_the_middle_of_a_run_is_waited_out(tmp_path: Path) -> None:
    """Case 21: stopped between two batches and started again. The run goes on by itself, and each letter acts once."""
    own = Stack(tmp_path, names=[ServerName.POSTGRES], environment={})
    dsn = (await asyncio.to_thread(own.up, Silence()))[ServerName.POSTGRES]
    try:
        await migrate(dsn)
        async with open_pool(dsn, size=6) as pool:
            await pool.execute("CREATE TABLE effect (id text, n bigint)")
            replays = ReplayBench(pool, dsn)
            replays.handlers = mended()
            await _keep(replays, 40)
            held = await replays.begin()
            runner = await replays.runner(held, rate=40)  # in batches of ten
            told: list[str] = []
            runner._on_wait = lambda error: told.append(str(error))
            running = asyncio.create_task(runner.run())
            async with asyncio.timeout(_DEADLINE_SECONDS):
                await _until(lambda: runner.tally.handled >= 10)
                await asyncio.to_thread(own.down, wipe=False)
                await _until(lambda: bool(told))
                await asyncio.to_thread(own.up, Silence())
                assert await running
            assert (await replays.run(held)).outcomes == {Outcome.RESOLVED: 40}
            assert sorted(r["id"] for r in await pool.fetch("SELECT id FROM effect")) == sorted(
                f"e{n}" for n in range(40)
            )
    finally:
        await asyncio.to_thread(own.down, wipe=True)


async def _keep(replays: ReplayBench, count: int) -> None:
    ledger, _ = await replays._hands(RunKind.REPLAY)
    records = [of_key(n, b"k%d" % n, BAD) for n in range(count)]
    failures = [
        Failure(record=each, topic_id=TOPIC_ID, reason=Reason.REJECTED, error=Rejected("negative")) for each in records
    ]
    async with ledger.transaction() as connection:
        kept = await ledger.keep(connection, failures)
        blocking = [Blocking(kept[each.offset], key, each.offset) for each in records if (key := record_key(each))]
        await park(connection, ledger.origin.job, blocking, [])


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # nobody tells us
        await asyncio.sleep(0.02)
