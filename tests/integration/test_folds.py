"""Folds on real Postgres: states once, in order, with every failure told apart (G1, G2, G4, G6, G9)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from consumers.batch import Attempts, Batch
from dlq.runs import Outcome
from projections.memory import MemorySink
from tests.integration.cut_connections import Cut, cut_pool
from tests.integration.folds import (
    Balance,
    Spent,
    account_of,
    assembled,
    balance_of,
    balances,
    closing,
    dirty,
    prepared_sink,
    purchase,
    renderer_of,
    spent,
    states,
)
from tests.integration.parking_bench import Bench
from tests.integration.replay_bench import ReplayBench
from tests.integration.road import PARTITION, TOPIC_ID, SentRecord, record
from tests.integration.test_rehearsal import rehearse
from tidegate import CloudEvents, Event, Json, Rejected, ScopeFields, Topic, fold
from tidegate.backfill_plan import refuse_fold
from tidegate_kernel.errors import Misconfigured, Reason, StaleOwner
from tidegate_kernel.postgres import Pool

_DEADLINE_SECONDS = 20.0


@pytest.fixture
async def sink() -> MemorySink:
    return await prepared_sink()


@pytest.fixture
async def bench(database: str, pool: Pool, sink: MemorySink) -> Bench:
    """A fold whose batches are given to any partition."""
    return Bench(await assembled(database, pool, balances(sink), sink), pool)


async def test_events_of_a_key_are_folded_in_order_and_once(bench: Bench, sink: MemorySink) -> None:
    """G2: a sum that counts a redelivered event twice is a wrong sum for ever."""
    bought = [purchase(0, "a", 5), purchase(1, "b", 7), purchase(2, "a", 6), purchase(3, "a", 6, id="e2")]

    first = await bench.settle(bought)
    again = await bench.settle([purchase(4, "a", 5, id="e0"), purchase(5, "b", 1)])
    await renderer_of(bench.parts).render_all()

    assert (first.applied, first.duplicates) == (3, 1)
    assert (again.applied, again.duplicates) == (1, 1)
    assert await states(bench.pool) == {"a": ('{"cents":11,"purchases":2}', 1), "b": ('{"cents":8,"purchases":2}', 2)}
    assert sink.rows()["a"] == {"account": "a", "cents": 11, "purchases": 2}
    assert await dirty(bench.pool) == []


async def test_failing_events_cost_themselves_and_what_is_behind_them(bench: Bench) -> None:
    """G4, G6: the others of their batch are folded, later ones of their record key wait, states are as without them."""
    outcome = await bench.settle(
        [purchase(0, "a", 5), purchase(1, "b", -1), purchase(2, "b", 9), purchase(3, "c", 13), purchase(4, "a", 1)]
    )

    assert (outcome.applied, outcome.parked, len(outcome.failures)) == (2, 1, 2)
    letters = await bench.pool.fetch('SELECT reason, error_class, handler FROM tidegate.dead_letter ORDER BY "offset"')
    assert [row["reason"] for row in letters] == [Reason.PROJECTION_FAILED, Reason.REJECTED]
    assert "ValueError" in letters[0]["error_class"]
    assert {row["handler"] for row in letters} == {"spend"}
    assert await states(bench.pool) == {"a": ('{"cents":6,"purchases":2}', 1)}


async def test_an_event_that_spoils_its_state_before_it_fails_leaves_it_as_it_was(
    database: str, pool: Pool, sink: MemorySink
) -> None:
    """A fold that changes the state it is given is wrong, and costs its own event only."""

    def spoil(state: Balance | None, event: Event[Spent]) -> Balance:
        kept = state or Balance(0)
        kept.cents += event.data.cents
        if event.data.cents == 1:
            raise Rejected("after the change")
        return kept

    job = balances(sink, events=[fold("spent", Spent, spoil)])
    bench = Bench(await assembled(database, pool, job, sink), pool)

    await bench.settle([purchase(0, "a", 5), purchase(1, "a", 1, key=b"other"), purchase(2, "a", 7)])

    assert await balance_of(pool, "a") == (12, 0)


@pytest.mark.parametrize("key", [7, "", "nul\0", "k" * 513, "\ud800"])
async def test_a_key_that_cannot_be_one_is_its_events_failure(
    key: Any, database: str, pool: Pool, sink: MemorySink
) -> None:
    """Postgres would refuse the whole batch for it, again and again."""

    def odd(event: Event[Any]) -> Any:
        return key if event.data.cents == 1 else account_of(event)

    bench = Bench(await assembled(database, pool, balances(sink, key=odd), sink), pool)

    outcome = await bench.settle([purchase(0, "a", 5), purchase(1, "x", 1)])

    assert (outcome.applied, len(outcome.failures)) == (1, 1)
    assert await balance_of(pool, "a") == (5, 1)


class Loose(msgspec.Struct):
    value: Any


def only_key(key: str, _: Loose) -> dict[str, str]:
    return {"k": key}


@pytest.mark.parametrize("made", [float("nan"), "\ud800", "x" * (4 * 1024 * 1024)], ids=["nan", "surrogate", "large"])
async def test_a_state_that_cannot_be_kept_is_its_events_failure(
    made: Any, database: str, pool: Pool, sink: MemorySink
) -> None:
    """Bent on its way into Postgres it would be wrong for all events to come."""

    def make(_: Loose | None, event: Event[Spent]) -> Loose:
        return Loose(made if event.data.cents == 1 else "well")

    job: Any = balances(sink, events=[fold("spent", Spent, make)], state=Loose, render=only_key)
    bench = Bench(await assembled(database, pool, job, sink), pool)

    outcome = await bench.settle([purchase(0, "a", 5), purchase(1, "a", 1), purchase(2, "b", 5)])

    assert (outcome.applied, len(outcome.failures)) == (2, 1)
    assert await states(pool) == {"a": ('{"value":"well"}', 1), "b": ('{"value":"well"}', 1)}


async def test_a_state_kept_by_other_code_costs_events_no_more_than_a_letter(bench: Bench, pool: Pool) -> None:
    """G1: a release that cannot read old states loses nothing: the next one replays what this one could not fold."""
    await bench.settle([purchase(0, "a", 5)])
    await pool.execute("""UPDATE tidegate.fold_state SET state = '{"pence": 5}'""")

    outcome = await bench.settle([purchase(1, "a", 1), purchase(2, "b", 1)])

    assert (outcome.applied, len(outcome.failures)) == (1, 1)
    assert "give new fields a default" in str(outcome.failures[0].error)


async def test_a_deleted_state_keeps_its_revision(bench: Bench, sink: MemorySink) -> None:
    """G3: a revision that restarts at 1 is older than the delete before it, and the sink would keep the delete."""
    renderer = renderer_of(bench.parts)
    await bench.settle([purchase(0, "a", 5)])
    await renderer.render_all()

    await bench.settle([closing(1, "a")])
    await renderer.render_all()
    gone = sink.get("a")
    await bench.settle([purchase(2, "a", 2)])
    await renderer.render_all()

    assert gone is None
    assert await states(bench.pool) == {"a": ('{"cents":2,"purchases":1}', 3)}
    assert sink.get("a") == {"account": "a", "cents": 2, "purchases": 1}


async def test_what_changes_nothing_is_not_written(bench: Bench) -> None:
    """An account that is closed before it was ever opened has no state, no revision and nothing to render."""
    await bench.settle([closing(0, "a"), purchase(1, "b", 3), closing(2, "b")])

    assert await states(bench.pool) == {}
    assert await dirty(bench.pool) == []


async def test_tenants_do_not_share_a_state(database: str, pool: Pool, sink: MemorySink) -> None:
    """G12: a key that two tenants use would mix what they bought; the second one's events are dead letters instead."""
    topic = Topic("orders", format=Json(), envelope=CloudEvents(), scope=ScopeFields(tenant="tenantid"))
    strict = Bench(await assembled(database, pool, balances(sink, topics=[topic]), sink), pool)
    of_acme = _of_tenant(purchase(0, "a", 5), b"acme")

    await strict.settle([of_acme])
    refused = await strict.settle([_of_tenant(purchase(1, "a", 6), b"zeta"), _of_tenant(purchase(2, "b", 1), b"zeta")])
    open_job = balances(sink, topics=[topic], across_tenants="one balance for the whole group")
    mixed = Bench(await assembled(database, pool, open_job, sink), pool, strict.places)
    allowed = await mixed.settle([_of_tenant(purchase(3, "a", 7, key=b"free"), b"zeta")])

    assert (refused.applied, len(refused.failures)) == (1, 1)
    assert "across_tenants" in str(refused.failures[0].error)
    assert allowed.applied == 1
    assert await balance_of(pool, "a") == (12, 2)


def _of_tenant(sent: SentRecord, tenant: bytes) -> SentRecord:
    return replace(sent, headers=[*sent.headers, ("ce_tenantid", tenant)])


async def test_two_partitions_change_one_key_at_once(bench: Bench, pool: Pool) -> None:
    """G2: whoever reads a state that another transaction is changing would overwrite the change."""
    accounts = [f"a{number}" for number in range(20)]

    async def feed(partition: int) -> None:
        for turn in range(10):
            # Each partition meets the accounts in another order, new ones and old ones among them.
            mine = accounts[partition:] + accounts[:partition] if partition % 2 else accounts[::-1]
            records = [
                purchase(turn * 20 + place, each, 1, id=f"{partition}-{turn}-{each}") for place, each in enumerate(mine)
            ]
            await bench.settle(records, partition=partition)

    async with asyncio.timeout(_DEADLINE_SECONDS):
        await asyncio.gather(*(feed(partition) for partition in range(4)))

    assert {each: await balance_of(pool, each) for each in accounts} == dict.fromkeys(accounts, (40, 40))


async def test_who_lost_the_partition_folds_nothing(bench: Bench, pool: Pool) -> None:
    """G9: an owner that wakes up late has read states that are not its own to change any more."""
    await bench.settle([purchase(0, "a", 5)])
    stale = bench.places[PARTITION]
    taken = await bench.parts.steward._positions.take_over(PARTITION)
    assert taken is not None

    late = Batch(bench.parts.steward.fence(PARTITION, stale), TOPIC_ID, [purchase(1, "a", 6)], 2, Attempts())
    with pytest.raises(StaleOwner):
        await bench.parts.pipeline.handle(late)

    assert await balance_of(pool, "a") == (5, 1)


@pytest.fixture
def story() -> list[SentRecord]:
    """One batch with a new key, an old key, a failing event and what waits behind it."""
    return [
        purchase(1, "old", 1),
        purchase(2, "new", 2),
        purchase(3, "bad", -1),
        purchase(4, "bad", 4),
        closing(5, "shut"),
    ]


@pytest.mark.timeout(300)
async def test_a_worker_killed_at_any_statement_folds_once(
    story: list[SentRecord], database: str, pool: Pool, sink: MemorySink
) -> None:
    """G1, G2: kill -9 at any moment of the transaction, also with its COMMIT sent: the next owner makes it whole."""
    job = balances(sink)
    for at in range(1, 200):
        await pool.execute("TRUNCATE tidegate.job CASCADE")
        await pool.execute("TRUNCATE tidegate.dirty, tidegate.inbox")
        first = Bench(await assembled(database, pool, job, sink), pool)
        await first.settle([purchase(0, "old", 7), purchase(1, "shut", 7)][:1])
        cut = Cut(at, for_good=True)
        async with cut_pool(database, cut) as mortal:
            dying = Bench(await assembled(database, mortal, job, sink), mortal, dict(first.places))
            cut.is_armed = True
            killed = asyncio.create_task(dying.settle(story))
            struck = asyncio.create_task(cut.reached.wait())
            await asyncio.wait([killed, struck], return_when=asyncio.FIRST_COMPLETED, timeout=_DEADLINE_SECONDS)
            for task in (killed, struck):
                task.cancel()
            await asyncio.wait([killed, struck])
        await _taken_over(first)
        if first.places[PARTITION].next_offset == 1:
            await first.settle(story)
        assert await states(pool) == {
            "old": ('{"cents":8,"purchases":2}', 2),
            "new": ('{"cents":2,"purchases":1}', 1),
        }, at
        assert await pool.fetchval("SELECT count(*) FROM tidegate.dead_letter") == 1, at
        assert await pool.fetchval("SELECT count(*) FROM tidegate.parked") == 1, at
        assert await dirty(pool) == ["new", "old"], at
        if not cut.reached.is_set():
            assert at > 10, "the batch has that many statements at least"
            return
    raise AssertionError("the batch never came to its end")


async def _taken_over(bench: Bench) -> None:
    taken = await bench.parts.steward._positions.take_over(PARTITION)
    assert taken is not None
    bench.places[PARTITION] = taken


async def test_a_replay_folds_in_the_same_way(bench: Bench, pool: Pool, database: str, sink: MemorySink) -> None:
    """G8: the mended fold takes the letter and what is parked behind it, in order, each once."""
    await bench.settle([purchase(0, "b", -1), purchase(1, "b", 9), purchase(2, "b", 1)])

    def mended(state: Balance | None, event: Event[Spent]) -> Balance:
        before = state or Balance(0)
        return Balance(before.cents * 10 + event.data.cents, before.purchases + 1)

    replays = ReplayBench(pool, database, balances(sink, events=[fold("spent", Spent, mended)]))
    rehearsed = await rehearse(replays)
    before = await states(pool)
    replayed = await replays.replay()

    assert rehearsed.outcomes[Outcome.RESOLVED] == 1
    assert rehearsed.passed == 2
    assert before == {}
    assert replayed == {Outcome.RESOLVED: 1}
    assert await balance_of(pool, "b") == ((-1 * 10 + 9) * 10 + 1, 3)
    assert await dirty(pool) == ["b"]
    assert await pool.fetchval("SELECT count(*) FROM tidegate.parked") == 0


async def test_a_replay_that_fails_again_leaves_all_behind_it(
    bench: Bench, pool: Pool, database: str, sink: MemorySink
) -> None:
    """G4: nothing of the sequence is folded before its head is."""
    await bench.settle([purchase(0, "b", -1), purchase(1, "b", 9)])

    replays = ReplayBench(pool, database, balances(sink))
    rehearsed = await rehearse(replays)
    replayed = await replays.replay()

    assert rehearsed.outcomes[Outcome.FAILED] == 1
    assert replayed == {Outcome.FAILED: 1}
    assert await states(pool) == {}
    assert await pool.fetchval("SELECT count(*) FROM tidegate.parked") == 1


async def test_a_fold_is_not_backfilled(sink: MemorySink) -> None:
    """Its claims would make every event a duplicate; without them each would count twice. It says what helps."""
    with pytest.raises(Misconfigured, match="projections rerender balances"):
        refuse_fold(balances(sink))


async def test_undecodable_records_block_their_key_for_a_fold_too(bench: Bench, pool: Pool) -> None:
    """G4: what could not be read may have been what the later events build on."""
    outcome = await bench.settle(
        [record(0, b"{", type="spent", key=b"a"), purchase(1, "a", 5), record(2, spent("b", 2), type="spent", key=None)]
    )

    assert (outcome.applied, outcome.parked, len(outcome.failures)) == (1, 1, 1)
    assert list(await states(pool)) == ["b"]
