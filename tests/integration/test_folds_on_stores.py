"""Folds on the real stores: documents at their revisions, gone and back again, and a store that was lost."""

from __future__ import annotations

import pytest

from tests.integration.folds import Balance, assembled, balances, closing, dirty, purchase, renderer_of
from tests.integration.parking_bench import Bench
from tests.integration.test_fold_rendering import OPERATOR
from tests.integration.test_projections_on_stores import Store, store  # noqa: F401  # the fixture
from tidegate import App
from tidegate.jobs.rerendering import plan_rerender, rerender
from tidegate_kernel.errors import TidegateError
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.servers


def row(key: str, state: Balance) -> dict[str, object]:
    return {"key": key, "n": state.cents}


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
