"""Folds on the real stores: documents at their revisions, gone and back again, and a store that was lost."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import SecretStr

from projections.sink import Sink
from projections.writes import Upsert
from tests.integration.folds import Balance, assembled, balances, closing, dirty, purchase, renderer_of
from tests.integration.parking_bench import Bench
from tests.integration.test_fold_rendering import OPERATOR
from tests.integration.test_projections_on_stores import Store, store  # noqa: F401  # the fixture
from tidegate import App
from tidegate.backfilling import BackfillOptions, BackfillStart
from tidegate.console.resetting import ResetReport, plan_reset, reset_projection
from tidegate.jobs.rerendering import plan_rerender, rerender
from tidegate_kernel.errors import Denied, TidegateError
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.servers


def row(key: str, state: Balance) -> dict[str, object]:
    return {"key": key, "n": state.cents}


async def write(sink: Sink, *writes: Upsert) -> None:
    await sink.apply([sink.encode(each) for each in writes])


async def test_a_store_that_was_lost_is_rendered_again_equal_to_before(
    store: Store,  # noqa: F811  # the fixture
    database: str,
    pool: Pool,
) -> None:
    """G3: index or table deleted, made anew and written from the states; the same again where nothing was lost."""
    async with store.declared.open(store.settings) as sink:
        await sink.prepare()
        job = balances(store.declared, render=row)
        bench = Bench(await assembled(database, pool, job, sink), pool)
        renderer = renderer_of(bench.parts)
        await bench.settle([purchase(0, "a", 5), purchase(1, "b", 1), purchase(2, "gone", 1), purchase(3, "back", 1)])
        await renderer.render_all()
        await bench.settle([purchase(4, "a", 5), closing(5, "gone"), closing(6, "back")])
        await renderer.render_all()
        await bench.settle([purchase(7, "back", 9)])
        await renderer.render_all()
        before = await store.rows()

        await store.drop()
        await bench.settle([purchase(8, "a", 1)])
        with pytest.raises(TidegateError):
            await renderer.render_all()
        still_waiting = await dirty(pool)
        await sink.prepare()
        app = App(service="tests", owner="tests", jobs=[job])
        async with pool.acquire() as connection:
            plan = await plan_rerender(connection, app, job)
            marked = await rerender(connection, OPERATOR, app, plan, reason="lost")
        await renderer.render_all()
        after = await store.rows()
        async with pool.acquire() as connection:
            await rerender(connection, OPERATOR, app, plan, reason="equal versions are taken, too")
        await renderer.render_all()

        assert before == {"a": 10, "b": 1, "back": 9}
        assert still_waiting == ["a"]
        assert (plan.keys, marked) == (4, 4)
        assert after == {**before, "a": 11}
        assert await store.rows() == after
        assert await dirty(pool) == []


async def test_reset_of_a_fold_drops_its_store_and_renders_all_states(
    store: Store,  # noqa: F811  # the fixture
    database: str,
    pool: Pool,
) -> None:
    """G3: what was in the store and belongs to no state is gone, every state is there again at its revision, and what
    was deleted is so again: an older document does not come back."""
    settings = store.settings.model_copy(update={"postgres_dsn": SecretStr(database)})
    async with store.declared.open(store.settings) as sink:
        await sink.prepare()
        job = balances(store.declared, render=row)
        app = App(service="tests", owner="tests", jobs=[job])
        bench = Bench(await assembled(database, pool, job, sink), pool)
        renderer = renderer_of(bench.parts)
        await bench.settle([purchase(0, "a", 5), purchase(1, "b", 1), purchase(2, "gone", 1)])
        await bench.settle([purchase(3, "a", 5), closing(4, "gone")])
        await renderer.render_all()
        await write(sink, Upsert("stray", 9, {"key": "stray", "n": 9}))
        assert await store.rows() == {"a": 10, "b": 1, "stray": 9}

        async def reset() -> ResetReport:
            plan = await plan_reset(app, settings, job)
            options = BackfillOptions(BackfillStart(is_beginning=True))
            admin, stop = Actor("ada", Role.ADMIN), asyncio.Event()
            return await reset_projection(app, settings, plan, options, actor=admin, reason="strays", stop=stop)

        await pool.execute(
            "INSERT INTO tidegate.intent (kind, job, reason, actor) SELECT 'pause', id, 'x', 'x' FROM tidegate.job"
        )
        await pool.execute(
            """
            INSERT INTO tidegate.presence (job, topic, partition, owner, epoch, state, since, seen_at)
            SELECT id, 'orders', 0, 'host:1', 1, 'paused', now(), now() FROM tidegate.job
            """
        )
        with pytest.raises(Denied, match="host:1 still renders the fold"):
            await reset()
        assert await store.rows() == {"a": 10, "b": 1, "stray": 9}
        await pool.execute("DELETE FROM tidegate.presence")
        report = await reset()

        assert (report.is_done, report.backfill, report.states) == (True, None, 3)
        assert await store.rows() == {}
        assert await dirty(pool) == ["a", "b", "gone"]
        await renderer.render_all()
        assert await store.rows() == {"a": 10, "b": 1}
        assert await dirty(pool) == []
        await write(sink, *(Upsert(key, 1, {"key": key, "n": 0}) for key in ("a", "gone")))
        assert await store.rows() == {"a": 10, "b": 1}
    audited = "SELECT action, outcome FROM tidegate.audit ORDER BY seq"
    assert [tuple(each) for each in await pool.fetch(audited)] == [
        ("projection:reset", "denied"),
        ("projection:reset", "done"),
        ("projection:rerender", "done"),
    ]
