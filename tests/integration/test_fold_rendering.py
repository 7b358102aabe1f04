"""Renderers of folds on real Postgres: every state reaches the sink, the newest one stays, nothing is lost silently."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from projections.folds.dirty import DirtyKeys, failed_keys, rendering_of
from projections.folds.written import RenderedUpTo
from projections.memory import MemorySink
from tests.integration.cut_connections import Cut, cut_pool
from tests.integration.folds import (
    Balance,
    assembled,
    balances,
    closing,
    dirty,
    document,
    prepared_sink,
    purchase,
    renderer_of,
)
from tests.integration.live import until
from tests.integration.parking_bench import Bench
from tests.integration.road import PARTITION
from tidegate import App
from tidegate.jobs.rerendering import plan_rerender, rerender
from tidegate_kernel.errors import Denied, Transient
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool

OPERATOR = Actor("op", Role.OPERATOR)
# Take, read, and clear, each on a connection from the pool.
_STATEMENTS_OF_A_ROUND = 3


@pytest.fixture
async def sink() -> MemorySink:
    return await prepared_sink()


@pytest.fixture
async def bench(database: str, pool: Pool, sink: MemorySink) -> Bench:
    return Bench(await assembled(database, pool, balances(sink), sink), pool)


async def test_a_key_that_changes_while_it_is_rendered_is_rendered_again(bench: Bench, sink: MemorySink) -> None:
    """Cleared whatever its revision, the newer state would never be seen."""
    renderer = renderer_of(bench.parts)
    await bench.settle([purchase(0, "a", 5)])
    apply = sink.apply

    async def overtaken(encoded: Any) -> Any:
        sink.apply = apply  # type: ignore[method-assign]  # once
        await bench.settle([purchase(1, "a", 6)])
        return await apply(encoded)

    sink.apply = overtaken  # type: ignore[method-assign]  # a sink that is slow at the wrong moment
    await renderer.render_once()
    seen, still_dirty = sink.get("a"), await dirty(bench.pool)
    await renderer.render_once()

    assert seen == {"account": "a", "cents": 5, "purchases": 1}
    assert still_dirty == ["a"]
    assert sink.get("a") == {"account": "a", "cents": 11, "purchases": 2}
    assert await dirty(bench.pool) == []


async def test_two_renderers_share_the_keys_and_the_later_revision_stays(
    bench: Bench, database: str, pool: Pool, sink: MemorySink
) -> None:
    """G3: one that was thought dead writes late, and its write is the older one."""
    late = renderer_of(bench.parts)
    other = renderer_of(await assembled(database, pool, balances(sink), sink))
    await bench.settle([purchase(0, "a", 5), purchase(1, "b", 1)])
    apply, may_go = sink.apply, asyncio.Event()

    async def held(encoded: Any) -> Any:
        sink.apply = apply  # type: ignore[method-assign]  # the other renderer's goes through
        await may_go.wait()
        return await apply(encoded)

    sink.apply = held  # type: ignore[method-assign]  # a write that hangs
    hanging = asyncio.create_task(late.render_once())
    await until(lambda: sink.apply is apply)
    nothing_left = await other.render_once()
    await bench.settle([purchase(2, "a", 6)])
    await other.render_all()
    may_go.set()
    await hanging

    assert nothing_left == 0
    assert sink.get("a") == {"account": "a", "cents": 11, "purchases": 2}
    assert sink.get("b") == {"account": "b", "cents": 1, "purchases": 1}
    assert await dirty(pool) == []


async def test_while_the_sink_is_away_folding_goes_on(bench: Bench, sink: MemorySink) -> None:
    """G5: an outage of the readers' store costs no event anything; afterwards everything is there, once."""
    renderer = renderer_of(bench.parts)
    running = asyncio.create_task(renderer.run())
    sink.is_down = True
    for offset in range(5):
        await bench.settle([purchase(offset, "a", 1)])
    await until(lambda: renderer.trouble is not None)
    waiting = await dirty(bench.pool)
    sink.is_down = False
    await until(lambda: sink.get("a") is not None)
    await until(lambda: renderer.trouble is None)
    running.cancel()
    await asyncio.wait([running])

    assert waiting == ["a"]
    assert sink.get("a") == {"account": "a", "cents": 5, "purchases": 5}


def moody(key: str, state: Balance) -> Mapping[str, Any]:
    if state.cents == 13:
        raise ValueError("a secret of 13 cents")
    return document(key, state)


async def test_what_cannot_be_rendered_rests_with_its_error_and_holds_up_nobody(database: str, pool: Pool) -> None:
    """A document that the sink refuses, or a render function that raises, is that key's matter, and is never lost."""
    sink = await prepared_sink(refuse={"refused"})
    bench = Bench(await assembled(database, pool, balances(sink, render=moody), sink), pool)
    await bench.settle([purchase(0, "raises", 6), purchase(1, "raises", 7)][:1])
    await bench.settle([purchase(1, "raises", 7), purchase(2, "refused", 1), purchase(3, "fine", 1)])

    await renderer_of(bench.parts).render_all()
    await renderer_of(bench.parts).render_all()

    async with pool.acquire() as connection:
        state = await rendering_of(connection, bench.parts.id)
        failed = {each.key: each for each in await failed_keys(connection, bench.parts.id, most=10)}
    assert (state.waiting, state.failed) == (0, 2)
    assert sink.rows().keys() == {"fine"}
    assert failed["raises"].error == "the render function raised ValueError"
    assert failed["raises"].failures == 1, "it is not tried again and again"
    assert "refuses" in failed["refused"].error


async def test_a_key_that_rests_is_tried_again_when_it_changes(database: str, pool: Pool) -> None:
    """The next event may be what mends it."""
    sink = await prepared_sink()
    bench = Bench(await assembled(database, pool, balances(sink, render=moody), sink), pool)
    await bench.settle([purchase(0, "a", 6), purchase(1, "a", 7)])
    await renderer_of(bench.parts).render_all()

    await bench.settle([purchase(2, "a", 1)])
    await renderer_of(bench.parts).render_all()

    assert sink.get("a") == {"account": "a", "cents": 14, "purchases": 3}
    assert await dirty(pool) == []


async def test_a_new_release_tries_what_the_old_one_could_not_once(database: str, pool: Pool) -> None:
    """Two releases side by side must not pass a key to and fro for ever."""
    sink = await prepared_sink()
    bench = Bench(await assembled(database, pool, balances(sink, render=moody), sink), pool)
    await bench.settle([purchase(0, "a", 6), purchase(1, "a", 7)])
    await renderer_of(bench.parts).render_all()

    still = await assembled(database, pool, balances(sink, render=moody), sink, version="2")
    again = renderer_of(still)
    assert await again._begin()
    tried = await again.render_once()
    old = renderer_of(await assembled(database, pool, balances(sink, render=moody), sink, version="1"))
    assert await old._begin()
    tried_by_old = await old.render_once()
    mended = renderer_of(await assembled(database, pool, balances(sink), sink, version="3"))
    assert await mended._begin()
    await mended.render_all()

    assert (tried, tried_by_old) == (1, 0)
    assert sink.get("a") == {"account": "a", "cents": 13, "purchases": 2}


async def test_a_sink_that_is_ahead_of_the_states_is_told(bench: Bench, sink: MemorySink) -> None:
    """After Postgres was restored to an earlier time every write would be older than the document: silently ignored."""
    await bench.settle([purchase(0, "a", 5)])
    await bench.settle([purchase(1, "a", 6)])
    await renderer_of(bench.parts).render_all()
    await bench.pool.execute("UPDATE tidegate.fold_state SET revision = 0, state = NULL")

    await bench.settle([purchase(2, "a", 1)])
    await renderer_of(bench.parts).render_all()

    async with bench.pool.acquire() as connection:
        (failed,) = await failed_keys(connection, bench.parts.id, most=10)
    assert "newer version than the state's revision" in failed.error


async def test_a_renderer_killed_at_any_statement_loses_no_key(
    database: str, pool: Pool, bench: Bench, sink: MemorySink
) -> None:
    """G1: whatever it had in hand is rendered by another one, at the latest when its lease ends."""
    for at in range(1, 50):
        first = bench.places[PARTITION].next_offset if PARTITION in bench.places else 0
        await bench.settle([purchase(first, "a", 1), purchase(first + 1, "b", 1), purchase(first + 2, "c", 13)])
        cut = Cut(at, for_good=True)
        async with cut_pool(database, cut) as mortal:
            dying = renderer_of(await assembled(database, mortal, balances(sink), sink))
            cut.is_armed = True
            with suppress(Transient):
                await dying.render_all()
        await pool.execute("UPDATE tidegate.dirty SET taken_until = now() - interval '1 second'")
        await renderer_of(bench.parts).render_all()
        assert sink.get("a") == {"account": "a", "cents": at, "purchases": at}
        assert await dirty(pool) == []
        if not cut.reached.is_set():
            assert at > _STATEMENTS_OF_A_ROUND
            return
    raise AssertionError("rendering never came to its end")


async def test_all_keys_are_rendered_again_at_their_revisions(
    bench: Bench, pool: Pool, database: str, sink: MemorySink
) -> None:
    """A sink that was lost is whole again, equal to before, and one that is there takes equal versions."""
    await bench.settle([purchase(0, "a", 5), purchase(1, "b", 1), purchase(2, "gone", 1), closing(3, "gone")])
    await bench.settle([purchase(4, "a", 5), purchase(5, "shut", 1)])
    await bench.settle([closing(6, "shut")])
    await renderer_of(bench.parts).render_all()
    before, versions = sink.rows(), {key: each.version for key, each in sink._stored.items()}
    sink._stored.clear()
    app = App(service="tests", owner="tests", jobs=[bench.parts.job])

    async with pool.acquire() as connection:
        plan = await plan_rerender(connection, app, bench.parts.job)
        nothing_yet = await dirty(pool)
        marked = await rerender(connection, OPERATOR, app, plan, reason="index lost")
    await renderer_of(bench.parts).render_all()

    assert (plan.keys, nothing_yet, marked) == (3, [], 3)
    assert sink.rows() == before
    assert {key: each.version for key, each in sink._stored.items()} == versions
    rows = await pool.fetch("SELECT action, outcome, reason FROM tidegate.audit")
    assert [tuple(row) for row in rows] == [("projection:rerender", "done", "index lost")]


async def test_rendering_again_needs_a_role_and_a_reason(bench: Bench, pool: Pool) -> None:
    """It may be a long load on the sink; the next one asks who wanted that, and why."""
    await bench.settle([purchase(0, "a", 5)])
    await renderer_of(bench.parts).render_all()
    app = App(service="tests", owner="tests", jobs=[bench.parts.job])
    async with pool.acquire() as connection:
        plan = await plan_rerender(connection, app, bench.parts.job)
        with pytest.raises(Denied):
            await rerender(connection, Actor("eye", Role.VIEWER), app, plan, reason="why not")
        with pytest.raises(Denied):
            await rerender(connection, OPERATOR, app, plan, reason="")

    assert await dirty(pool) == []


async def test_only_failed_keys_can_be_rendered_again(database: str, pool: Pool) -> None:
    """After a mapping was mended, without writing millions of documents that are right."""
    sink = await prepared_sink(refuse={"refused"})
    bench = Bench(await assembled(database, pool, balances(sink), sink), pool)
    await bench.settle([purchase(0, "refused", 1), purchase(1, "fine", 1)])
    await renderer_of(bench.parts).render_all()
    sink._refuse = set()
    app = App(service="tests", owner="tests", jobs=[bench.parts.job])
    async with pool.acquire() as connection:
        plan = await plan_rerender(connection, app, bench.parts.job, only_failed=True)
        marked = await rerender(connection, OPERATOR, app, plan, reason="mapping mended")
    await renderer_of(bench.parts).render_all()

    assert (plan.to_mark, marked) == (1, 1)
    assert sink.rows().keys() == {"refused", "fine"}


async def test_positions_count_as_written_when_all_before_them_is_rendered(bench: Bench, sink: MemorySink) -> None:
    """G11: `wait-for` would say visible of an event whose document nobody has written."""
    written = RenderedUpTo(bench.pool, bench.parts.id)
    renderer = renderer_of(bench.parts)
    await bench.settle([purchase(0, "a", 5)])
    before = await written()
    await renderer.render_all()
    rendered = await written()
    await bench.settle([purchase(1, "a", 5)])
    behind = await written()
    await bench.settle([purchase(2, "b", 5)])
    await renderer.render_all()
    after = await written()

    assert before.points == {}
    assert rendered.points[PARTITION].next_offset == 1
    assert behind.points[PARTITION].next_offset == 1
    assert after.points[PARTITION].next_offset == 3


async def test_a_key_that_could_not_be_rendered_holds_no_position_back(database: str, pool: Pool) -> None:
    """As a dead letter does not: it is told elsewhere, and all others are visible."""
    sink = await prepared_sink(refuse={"refused"})
    bench = Bench(await assembled(database, pool, balances(sink), sink), pool)
    written = RenderedUpTo(pool, bench.parts.id)
    await bench.settle([purchase(0, "refused", 1)])
    await renderer_of(bench.parts).render_all()

    assert (await written()).points[PARTITION].next_offset == 1


async def test_a_key_that_never_rests_is_no_alarm(bench: Bench, pool: Pool, sink: MemorySink) -> None:
    """It is dirty at every look, and rendered at every one: it has waited since the last one only."""
    keys = DirtyKeys(pool, bench.parts.id)
    await bench.settle([purchase(0, "a", 5)])
    await pool.execute("UPDATE tidegate.dirty SET since = now() - interval '1 hour'")
    before = (await keys.state()).waiting_seconds
    taken = await keys.take(10)
    await bench.settle([purchase(1, "a", 5)])
    await keys.clear(taken)

    after = await keys.state()
    assert before > 3000
    assert after.waiting == 1
    assert after.waiting_seconds < 60
