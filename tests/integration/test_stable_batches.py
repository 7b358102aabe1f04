"""Stable batches: what a materialized view sums is exact under crashes, repeats, other batch sizes and two owners."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from dlq.runs import Outcome
from projections.clickhouse import ClickHouse
from projections.stable import StableSink
from tests.integration.counted import PARTITION, Counted, CutAt, Meddling, Sold, counted_sales, sale
from tests.integration.folds import balances
from tests.integration.replay_bench import ReplayBench
from tidegate import Event, Rejected, Upsert
from tidegate.stack.names import StackAddresses
from tidegate_kernel.errors import Misconfigured, StaleOwner, Transient
from tidegate_kernel.event import RunId
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.servers


@pytest.fixture
async def sales(
    stack: StackAddresses, database: str, pool: Pool, unique_name: Callable[[str], str]
) -> AsyncIterator[Counted]:
    async with counted_sales(stack.clickhouse_url, database, pool, unique_name("s").replace("-", "_")) as made:
        yield made


@pytest.fixture
async def sink(sales: Counted) -> AsyncIterator[StableSink]:
    """The sink of the table, which has its view."""
    async with sales.declared.open(sales.settings) as opened:
        await opened.prepare()
        await sales.make_view()
        await opened.check()
        assert isinstance(opened, StableSink)
        yield opened


class Killed(BaseException):
    """The process is gone: nothing of ours catches this."""


async def killed() -> None:
    raise Killed


async def test_cut_at_every_await_and_taken_over_with_other_batches_counts_once(
    sales: Counted, sink: StableSink
) -> None:
    """Cases 96 and 97, G2: an owner ends at each place where it can, the next one fetches in other sizes. The view,
    which remembers nothing, has every sale once."""
    expected, step, is_cut = 0, 0, True
    while is_cut:
        step += 1
        prices = [step * 10 + n for n in range(7)]
        expected += sum(prices)
        sales.sell(*prices)
        owner = await sales.parts(sink, batch_size=5)
        batch = await sales.batch(owner, 5)
        cut = CutAt(owner.pipeline.handle(batch), step)
        try:
            await asyncio.create_task(_awaiting(cut))
        except (asyncio.CancelledError, Transient):
            assert cut.is_cut
        is_cut = cut.is_cut

        await sales.catch_up(sink, batch_size=2)

    assert step > 10
    assert await sales.counted() == (7 * step, expected)
    assert await sales.shown() == (7 * step, expected)


async def _awaiting(cut: CutAt) -> None:
    await cut


async def test_killed_between_insert_and_settle_the_same_range_is_applied_again(
    sales: Counted, sink: StableSink
) -> None:
    """Case 97: the range stands on the position's row, so that a successor with smaller batches inserts under the same
    name, and what came in meanwhile under another."""
    sales.sell(1, 2, 3, 4, 5)
    dying = Meddling(sink)
    dying.after = killed
    owner = await sales.parts(dying, batch_size=5)
    with pytest.raises(Killed):
        await owner.pipeline.handle(await sales.batch(owner, 5))
    assert (await sales.begun())["range_end"] == 5
    assert await sales.counted() == (5, 15)

    sales.sell(10, 20)
    successor = Meddling(sink)
    await sales.catch_up(successor, batch_size=2)

    assert successor.names[0] == dying.names[0]
    assert successor.names[0] not in successor.names[1:]
    assert await sales.counted() == (7, 45)


async def test_kill_9_between_insert_and_settle_counts_once(sales: Counted, sink: StableSink, database: str) -> None:
    """Case 97, with a process that is really gone: its connections break, and nothing of it is cleaned up."""
    sales.sell(*range(1, 9))
    script = Path(__file__).with_name("dying_sales.py")
    arguments = [sales.settings.clickhouse_url, database, sales.declared.name]
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), *arguments, cwd=str(script.parents[2]), stderr=asyncio.subprocess.PIPE
    )
    _, told = await asyncio.wait_for(process.communicate(), timeout=60)
    assert process.returncode == -signal.SIGKILL, told.decode()
    assert await sales.counted() == (6, 21)
    assert await sales.settled() == 0

    await sales.catch_up(sink, batch_size=4)

    assert await sales.counted() == (8, 36)


async def test_lost_answer_of_an_insert_counts_once(sales: Counted, sink: StableSink) -> None:
    """Case 96: the rows are in, and the client hears nothing. The batch waits, and goes in again under its name."""
    sales.sell(1, 2, 3)
    deaf = Meddling(sink)
    lost = iter([True, True, False])

    async def no_answer() -> None:
        if next(lost, False):
            raise Transient("no answer in time")

    deaf.after = no_answer
    await sales.catch_up(deaf, batch_size=10)

    assert deaf.names == [deaf.names[0]] * 3
    assert await sales.counted() == (3, 6)


async def test_two_owners_of_one_range_count_once(sales: Counted, sink: StableSink) -> None:
    """G9: a frozen owner's insert arrives after its successor has applied and settled the range."""
    sales.sell(1, 2, 3, 4)
    frozen, thaw, is_frozen = Meddling(sink), asyncio.Event(), asyncio.Event()

    async def freeze() -> None:
        is_frozen.set()
        await thaw.wait()

    frozen.before = freeze
    owner = await sales.parts(frozen, batch_size=4)
    late = asyncio.create_task(owner.pipeline.handle(await sales.batch(owner, 4)))
    await is_frozen.wait()

    await sales.catch_up(sink, batch_size=3)
    thaw.set()
    with pytest.raises(StaleOwner):
        await late

    assert await sales.counted() == (4, 10)


async def test_producers_repeat_at_a_new_offset_counts_once(sales: Counted, sink: StableSink) -> None:
    """Case 97, G2: a row is replaced by its like, a sum is not: repeats are left out, also those of a crashed range."""
    sales.sell(1, 2, 1, ids=["a", "b", "a"])
    dying = Meddling(sink)
    dying.before = killed
    owner = await sales.parts(dying, batch_size=3)
    with pytest.raises(Killed):
        await owner.pipeline.handle(await sales.batch(owner, 3))
    sales.sell(2, 4, ids=["b", "c"])

    await sales.catch_up(sink, batch_size=100)

    assert await sales.counted() == (3, 7)


def rejecting(*numbers: int) -> Callable[[Event[Sold]], Upsert]:
    def project(event: Event[Sold]) -> Upsert:
        if event.data.n in numbers:
            raise Rejected("not this one")
        return sale(event)

    return project


@pytest.mark.parametrize("has_landed", [True, False])
async def test_what_failed_in_a_range_fails_when_newer_code_applies_it_again(
    sales: Counted, sink: StableSink, *, has_landed: bool
) -> None:
    """G1: a mended release would send a row under a name that the store has had, and lose it without a dead letter."""
    sales.sell(1, 2, 4)
    sales.function = rejecting(1)
    dying = Meddling(sink)
    dying.after, dying.before = (killed, dying.before) if has_landed else (dying.after, killed)
    owner = await sales.parts(dying, batch_size=3)
    with pytest.raises(Killed):
        await owner.pipeline.handle(await sales.batch(owner, 3))

    sales.function = rejecting(2)
    await sales.catch_up(sink, batch_size=3)

    # What fails only now is a dead letter as well: whether its row had landed, nobody knows.
    assert await sales.letters() == [1, 2]
    assert await sales.counted() == ((2, 5) if has_landed else (1, 1))


def doubling(event: Event[Sold]) -> Upsert:
    """A later release, by which every sale has twice the cents."""
    return sale(msgspec.structs.replace(event, data=Sold(event.data.n, event.data.cents * 2)))


async def test_newer_code_counts_a_range_that_had_landed_no_second_time(sales: Counted, sink: StableSink) -> None:
    """G2: the name says which range it is, never what is in it: rows that a later release computes otherwise are still
    the same events."""
    sales.sell(1, 2, 3)
    dying = Meddling(sink)
    dying.after = killed
    owner = await sales.parts(dying, batch_size=3)
    with pytest.raises(Killed):
        await owner.pipeline.handle(await sales.batch(owner, 3))

    sales.function = doubling
    await sales.catch_up(sink, batch_size=3)

    assert await sales.letters() == []
    assert await sales.counted() == (3, 6)
    assert await sales.shown() == (3, 6)


async def test_range_waits_whole_while_a_tenant_in_it_is_paused(sales: Counted, sink: StableSink) -> None:
    """A range that was begun is not cut before the paused tenant's record: its halves would have other names."""
    sales.sell(1, 2, 3)
    owner = await sales.parts(sink, batch_size=3)
    batch = await sales.batch(owner, 3)
    dying = Meddling(sink)
    dying.after = killed
    with pytest.raises(Killed):
        await (await sales.parts(dying, batch_size=3)).pipeline.handle(batch)
    owner.pipeline.paused_tenants = {"": "paused"}

    outcome = await owner.pipeline.handle(replace(batch, is_begun=True))

    assert outcome.stop is not None
    assert outcome.stop.offset == 0
    assert await sales.settled() == 0


async def test_range_begun_is_not_applied_in_another_cut(sales: Counted, sink: StableSink) -> None:
    """The row has the last word: an owner that knows of no range, or of another, has to read the row anew."""
    sales.sell(1, 2, 3)
    dying = Meddling(sink)
    dying.after = killed
    first = await sales.parts(dying, batch_size=3)
    with pytest.raises(Killed):
        await first.pipeline.handle(await sales.batch(first, 3))

    second = await sales.parts(sink, batch_size=2)
    with pytest.raises(StaleOwner):
        await second.pipeline.handle(await sales.batch(second, 2))

    assert await sales.counted() == (3, 6)


async def test_range_that_retention_or_compaction_has_thinned_is_applied_as_it_is(
    sales: Counted, sink: StableSink
) -> None:
    """The last record of the range is gone when it is read again: it is complete all the same, and nothing waits."""
    sales.sell(1, 2, 3)
    dying = Meddling(sink)
    dying.after = killed
    owner = await sales.parts(dying, batch_size=3)
    with pytest.raises(Killed):
        await owner.pipeline.handle(await sales.batch(owner, 3))
    log = sales.broker.log(PARTITION)
    assert log is not None
    log.remove(2)

    await sales.catch_up(sink, batch_size=1, end=3)

    assert await sales.counted() == (3, 6)


async def test_letter_that_is_replayed_counts_once_also_after_a_lost_answer(
    sales: Counted, sink: StableSink, database: str
) -> None:
    """Case 97, G8: a replay inserts each letter under a name of its own, and repeats it under the same."""
    sales.sell(1, 2, 4)
    sales.function = rejecting(0, 1)
    await sales.catch_up(sink, batch_size=3)
    assert (await sales.letters(), await sales.counted()) == ([0, 1], (1, 4))
    sales.function, deaf, answers = sale, Meddling(sink), iter([False, True, False])

    async def no_answer() -> None:
        if not next(answers, True):
            raise Transient("no answer in time")

    deaf.after = no_answer
    replays = ReplayBench(sales.pool, database, sales.job(3), sink=deaf)

    outcomes = await replays.replay()

    assert outcomes == {Outcome.RESOLVED: 2}
    assert len(deaf.names) > len(set(deaf.names)) == 2
    assert await sales.counted() == (3, 7)


async def test_backfill_repairs_and_counts_nothing_again(sales: Counted, sink: StableSink) -> None:
    """What was claimed is counted: a backfill has what is left, as that of a job with handlers."""
    sales.sell(1, 2, 4)
    await sales.catch_up(sink, batch_size=2)
    parts = await sales.parts(sink, batch_size=3, run=RunId(1))
    await sales.pool.execute("DELETE FROM tidegate.inbox WHERE ctid = (SELECT max(ctid) FROM tidegate.inbox)")
    batch = await sales.batch(parts, 3)

    outcome = await parts.pipeline.handle(batch)

    assert (outcome.applied, outcome.duplicates) == (1, 2)
    assert (await sales.counted())[0] == 4  # the claim that was taken away is the one that counts again


async def test_view_that_refuses_a_block_makes_it_wait_and_count_once(sales: Counted, sink: StableSink) -> None:
    """The table has the rows by then, and halves would be new blocks to it: it waits whole until the view is mended."""
    await sales.command(f"ALTER TABLE {sales.totals} ADD CONSTRAINT small CHECK cents < 100")
    sales.sell(1, 500, 2)
    owner = await sales.parts(sink, batch_size=3)
    batch = await sales.batch(owner, 3)
    with pytest.raises(Transient, match=r"VIOLATED_CONSTRAINT \(469\) of materialized view"):
        await owner.pipeline.handle(batch)

    await sales.command(f"ALTER TABLE {sales.totals} DROP CONSTRAINT small")
    await owner.pipeline.handle(batch)

    assert await sales.letters() == []
    assert await sales.counted() == (3, 503)
    assert await sales.shown() == (3, 503)


async def test_start_refuses_a_view_on_a_table_without_stable_batches(sales: Counted) -> None:
    """Case 97: each repeat would count in it. View and remedy are named."""
    plain = replace(sales.declared, stable_batches=False)
    async with plain.open(sales.settings) as opened:
        await opened.prepare()
        await sales.make_view()

        with pytest.raises(Misconfigured, match=rf"{sales.totals}_mv would count .*stable_batches=True"):
            await opened.check()
        with pytest.raises(Misconfigured, match="stable_batches=True"):
            await opened.prepare()


@pytest.mark.parametrize(
    "view,told",
    [
        ({"window": 0}, "remembers 0 blocks: .* MODIFY SETTING non_replicated_deduplication_window = 10000"),
        ({"engine": "Memory"}, "has the engine Memory, which knows no tokens"),
    ],
)
async def test_start_refuses_a_view_whose_table_remembers_no_tokens(
    sales: Counted, view: dict[str, object], told: str
) -> None:
    """Case 97: the token that protects our table does nothing for one that a view fills without a window."""
    async with sales.declared.open(sales.settings) as opened:
        await opened.prepare()
        await sales.make_view(**view)  # type: ignore[arg-type]  # one of its keywords

        with pytest.raises(Misconfigured, match=told) as caught:
            await opened.check()

        assert f"materialized view '{sales.totals}_mv'" in str(caught.value)


async def test_start_refuses_a_chain_of_views_that_ends_in_a_table_without_a_window(sales: Counted) -> None:
    """A view on what a view fills is fed by the same insert."""
    async with sales.declared.open(sales.settings) as opened:
        await opened.prepare()
        await sales.make_view()
        await sales.command(f"CREATE TABLE {sales.totals}_all (cents Int64) ENGINE = SummingMergeTree ORDER BY tuple()")
        await sales.command(
            f"CREATE MATERIALIZED VIEW {sales.totals}_mv2 TO {sales.totals}_all "
            f"AS SELECT sum(cents) AS cents FROM {sales.totals}"
        )
        try:
            with pytest.raises(Misconfigured, match=f"filled by materialized view '{sales.totals}_mv2'"):
                await opened.check()
        finally:
            await sales.command(f"DROP TABLE {sales.totals}_mv2")
            await sales.command(f"DROP TABLE {sales.totals}_all")


async def test_start_refuses_a_table_made_without_a_window_or_with_a_constraint(sales: Counted) -> None:
    """A table that was there before the declaration asked for stable batches, and one that somebody altered."""
    async with replace(sales.declared, stable_batches=False).open(sales.settings) as plain:
        await plain.prepare()
    physical = sales.declared.versioned_table.physical
    async with sales.declared.open(sales.settings) as opened:
        with pytest.raises(Misconfigured, match=f"`{physical}` MODIFY SETTING"):
            await opened.check()
        await sales.command(f"ALTER TABLE {physical} MODIFY SETTING non_replicated_deduplication_window = 10000")
        await opened.check()
        await sales.command(f"ALTER TABLE {physical} ADD CONSTRAINT small CHECK cents < 100")
        with pytest.raises(Misconfigured, match="constraint"):
            await opened.check()
        with pytest.raises(Misconfigured, match="views of its own"):
            await opened.reset()


def test_partitions_that_only_the_server_knows_are_refused_for_stable_batches() -> None:
    """A token counts for one partition of the table, so the client has to know it before it sends."""
    with pytest.raises(Misconfigured, match=r"stable_batches cannot tell rows apart by partition_by='cityHash64"):
        ClickHouse(
            table="t",
            columns={"id": "String"},
            order_by=("id",),
            partition_by="cityHash64(id) % 4",
            stable_batches=True,
        )


async def test_fold_into_a_table_that_counts_is_refused(sales: Counted, sink: StableSink) -> None:
    """Each change of a state is written: a view on it would count all of them, whatever the tokens."""
    with pytest.raises(Misconfigured, match="is a fold: each change of a state would count"):
        await sales.assemble(balances(sales.declared), sink)
