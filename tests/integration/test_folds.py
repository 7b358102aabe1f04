"""Folds on real Postgres: states once, in order, with every failure told apart."""

from typing import Any

from projections.memory import MemorySink
from tests.integration.folds import balances, spent
from tests.integration.road import MakeRoad, Road, SentRecord, record
from tidegate_kernel.errors import Reason
from tidegate_kernel.postgres import Pool


def purchase(offset: int, account: str, cents: int, *, key: bytes = b"", **fields: Any) -> SentRecord:
    """An event of the account, under its own record key unless given."""
    return record(offset, spent(account, cents), type="spent", key=key or account.encode(), **fields)


def closing(offset: int, account: str) -> SentRecord:
    return record(offset, b'{"account":"%s"}' % account.encode(), type="closed", key=account.encode())


async def states(pool: Pool) -> dict[str, tuple[str | None, int]]:
    rows = await pool.fetch("SELECT key, state::text, revision FROM tidegate.fold_state ORDER BY key")
    return {row["key"]: (row["state"], row["revision"]) for row in rows}


async def make(make_road: MakeRoad, **fields: Any) -> tuple[Road, MemorySink]:
    sink = MemorySink("balances")
    await sink.prepare()
    return await make_road(balances(sink, **fields), sink=sink), sink


async def render(road: Road) -> None:
    assert road.parts.renderer is not None
    await road.parts.renderer.render_all()


async def test_events_of_a_key_are_folded_in_order_and_once(make_road: MakeRoad, pool: Pool) -> None:
    """G2: a sum that counts a redelivered event twice is a wrong sum for ever."""
    road, sink = await make(make_road)

    first = await road.handle(
        [purchase(0, "a", 5), purchase(1, "b", 7), purchase(2, "a", 6), purchase(3, "a", 6, id="e2")]
    )
    again = await road.handle([purchase(4, "a", 5, id="e0"), purchase(5, "b", 1)])
    await render(road)

    assert (first.applied, first.duplicates) == (3, 1)
    assert (again.applied, again.duplicates) == (1, 1)
    assert await states(pool) == {"a": ('{"cents":11,"purchases":2}', 1), "b": ('{"cents":8,"purchases":2}', 2)}
    assert sink.rows()["a"] == {"account": "a", "cents": 11, "purchases": 2}
    assert sink._stored["b"].version == 2
    assert await pool.fetchval("SELECT count(*) FROM tidegate.dirty") == 0


async def test_a_failing_event_costs_itself_and_what_is_behind_it(make_road: MakeRoad, pool: Pool) -> None:
    """G4, G6: the others of its batch are folded, the later ones of its record key wait."""
    road, _ = await make(make_road)

    outcome = await road.handle(
        [purchase(0, "a", 5), purchase(1, "b", -1), purchase(2, "b", 9), purchase(3, "c", 13), purchase(4, "a", 1)]
    )

    assert (outcome.applied, outcome.parked, len(outcome.failures)) == (2, 1, 2)
    letters = await road.dead_letters()
    assert [(row["offset"], row["reason"], row["error_class"]) for row in letters] == [
        (1, Reason.PROJECTION_FAILED, "ValueError"),
        (3, Reason.REJECTED, "tidegate_kernel.errors.Rejected"),
    ]
    assert (await states(pool))["a"] == ('{"cents":6,"purchases":2}', 1)
    assert (await states(pool))["b"] == (None, 0)


async def test_a_deleted_state_keeps_its_revision(make_road: MakeRoad, pool: Pool) -> None:
    """G3: a revision that restarts at 1 is older than the delete before it, and the sink would keep the delete."""
    road, sink = await make(make_road)
    await road.handle([purchase(0, "a", 5)])
    await render(road)

    await road.handle([closing(1, "a")])
    await render(road)
    gone = sink.get("a")
    await road.handle([purchase(2, "a", 2)])
    await render(road)

    assert gone is None
    assert await states(pool) == {"a": ('{"cents":2,"purchases":1}', 3)}
    assert sink.get("a") == {"account": "a", "cents": 2, "purchases": 1}
