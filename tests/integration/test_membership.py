"""Nothing that happens to a job's work makes its members rebalance. On real Kafka, with the shortest session."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from consumers.failure import RetryPolicy
from consumers.loop import ConsumerLoop
from tests.integration.live import Note, Service, has_settled, note, running, until
from tidegate import Context
from tidegate_kernel.errors import RetryLater

pytestmark = pytest.mark.timeout(120)

# The fixture's session lasts 6 s, the shortest that a broker takes by default.
_BEYOND_THE_SESSION = 8.0
# A member learns of a rebalance with its next heartbeat, one a second; two cores do other things as well.
_BETWEEN_HEARTBEATS = 3.0
_LONG = timedelta(seconds=45)


async def _owned_by_two(service: Service, entered: AsyncExitStack) -> list[ConsumerLoop]:
    loops = [await service.loop(name) for name in ("first", "second")]
    for loop in loops:
        await entered.enter_async_context(running(loop))
    await until(lambda: [len(loop.holdings.owned) for loop in loops] == [2, 2])
    return loops


async def _epochs(service: Service) -> list[int]:
    """Each takeover raises one: unchanged, nobody has rebalanced."""
    return [row["epoch"] for row in await service.pool.fetch("SELECT epoch FROM tidegate.position ORDER BY partition")]


async def test_a_handler_slower_than_the_session_keeps_its_partition(service: Service) -> None:
    """Case 15: handed from member to member, its message would be begun for ever and never end."""
    begun = 0

    async def slow(command: Note, ctx: Context[None]) -> None:
        nonlocal begun
        if command.n == 0:
            begun += 1
            await asyncio.sleep(_BEYOND_THE_SESSION)
        await ctx.db.execute("INSERT INTO effect (id, n) VALUES ($1, $2)", command.id, command.n)

    service.handler = slow
    async with AsyncExitStack() as entered:
        await _owned_by_two(service, entered)
        before = await _epochs(service)
        await service.produce(range(20))
        await until(lambda: has_settled(service, 20), seconds=60)
        assert await _epochs(service) == before
    assert begun == 1
    assert await service.effects() == list(range(20))


async def test_a_hanging_handler_holds_nobody_up(service: Service) -> None:
    """Case 16: a member joins while a handler hangs. The revoke waits for it no longer than the drain time-out, the
    hanging member stays in the group all the while, and what it had begun is cancelled, uncommitted, and done once by
    whoever owns the partition next; its lane is free again long before the handler's own time-out."""
    hangs, may_go = asyncio.Event(), asyncio.Event()

    async def hang_once(command: Note, ctx: Context[None]) -> None:
        await note(command, ctx)
        if command.n == 0 and not hangs.is_set():
            hangs.set()
            await asyncio.sleep(3600)
        await may_go.wait()

    service.handler, service.drain_timeout = hang_once, timedelta(seconds=1)
    first, second = [await service.loop(name, handler_timeout=_LONG) for name in ("first", "second")]
    async with running(first):
        await until(lambda: len(first.holdings.owned) == 4)
        await service.produce(range(1))
        await hangs.wait()
        joined = asyncio.get_running_loop().time()
        async with running(second):
            await until(lambda: _assigned(first, second) == 4)
            rebalanced = asyncio.get_running_loop().time() - joined
            assert rebalanced < service.drain_timeout.total_seconds() + _BETWEEN_HEARTBEATS
            assert await service.effects() == []
            assert await service.committed() == 0
            await until(lambda: [len(each.holdings.owned) for each in (first, second)] == [2, 2])
            epochs = await _epochs(service)
            may_go.set()
            await service.produce(range(1, 40))
            await until(lambda: has_settled(service, 40), seconds=20)
            assert await _epochs(service) == epochs, "the hanging member was thrown out of the group"
    assert await service.effects() == list(range(40))


def _assigned(*loops: ConsumerLoop) -> int:
    """How many partitions have a member, where every member has some."""
    counts = [len(loop.source.assignment()) if loop.source is not None else 0 for loop in loops]
    return sum(counts) if all(counts) else 0


async def test_an_event_that_fails_for_long_causes_no_rebalance(service: Service) -> None:
    """G5, Cases 13 and 85: its partition is paused, its transaction is closed, its member goes on beating."""
    is_away = True

    async def needs_something(command: Note, ctx: Context[None]) -> None:
        if is_away and command.n == 0:
            raise RetryLater("away", after=0.5)
        await ctx.db.execute("INSERT INTO effect (id, n) VALUES ($1, $2)", command.id, command.n)

    service.handler = needs_something
    patient = RetryPolicy(attempts=1000, longest_delay=timedelta(seconds=1))
    async with AsyncExitStack() as entered:
        loops = [await service.loop(name, retry=patient, batch_size=1) for name in ("first", "second")]
        for loop in loops:
            await entered.enter_async_context(running(loop))
        await until(lambda: [len(loop.holdings.owned) for loop in loops] == [2, 2])
        before = await _epochs(service)
        await service.produce(range(20))
        await asyncio.sleep(_BEYOND_THE_SESSION)  # nothing to wait for: what must not happen, does not
        held = await service.pool.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND state = 'idle in transaction' AND now() - state_change > interval '1 second'"
        )
        assert held == 0, "a transaction is open while its batch waits"
        is_away = False
        await until(lambda: has_settled(service, 20))
        assert await _epochs(service) == before
    assert await service.effects() == list(range(20))


async def test_a_static_member_that_comes_back_causes_no_rebalance(service: Service) -> None:
    """A pod that is restarted under its name gets its partitions back; the others do not even notice."""
    stays, restarts = service.as_member("stays"), service.as_member("restarts")
    first = await stays.loop("stays")
    async with running(first):
        await _run_beside(first, restarts, range(20))
        before = _epochs_held(first)
        for start in (20, 40):
            await _run_beside(first, restarts, range(start, start + 20))
            assert _epochs_held(first) == before
    assert await service.effects() == list(range(60))


async def _run_beside(first: ConsumerLoop, other: Service, numbers: range) -> None:
    loop = await other.loop("restarts")
    async with running(loop):
        await until(lambda: [len(each.holdings.owned) for each in (first, loop)] == [2, 2])
        await other.produce(numbers)
        await until(lambda: has_settled(other, numbers.stop))


def _epochs_held(loop: ConsumerLoop) -> dict[int, int]:
    return {held.partition.partition: held.position.epoch for held in loop.holdings.all()}
