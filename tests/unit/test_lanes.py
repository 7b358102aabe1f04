"""Lanes and ownership over Kafka in memory: what waits, what goes on, what a revoke leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from uuid import UUID

import pytest

from consumers.batch import Batch
from tests.unit.loop_rig import DEADLINE_SECONDS, NEVER, P0, P1, Rig, no_trouble, running
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.errors import StaleOwner, Transient
from tidegate_kernel.event import Record, TopicPartition
from tidegate_kernel.metrics import Metrics


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_a_batch_held_back_does_not_stop_the_other_partitions_of_its_lane(rig: Rig) -> None:
    """An event that waits for its dependency must not make everything else late."""

    async def p0_is_away(batch: Batch) -> None:
        if batch.fence.partition == 0:
            raise Transient("away")

    rig.work.trouble = p0_is_away
    rig.fill(P0, 1)
    rig.fill(P1, 1)
    async with running(rig.loop(lanes=1, retry=NEVER)):
        await rig.stands_at(P1, 1)
        rig.fill(P1, 2)
        await rig.stands_at(P1, 3)
        rig.fill(P0, 5)  # what comes behind the batch that waits is not fetched past it
        await rig.stands_at(P0, 0)

    assert [call for call in rig.work.calls if call[0] == 0] == [(0, [0])]


async def test_a_batch_held_back_is_tried_again_whole_and_its_partition_goes_on(rig: Rig) -> None:
    """The same batch, with what is remembered of its attempts, then the records behind it."""
    tries: list[int] = []

    async def away_twice(batch: Batch) -> None:
        tries.append(batch.attempts.tries)
        if len(tries) < 3:
            raise Transient("away")

    rig.work.trouble = away_twice
    rig.fill(P0, 2)
    async with running(rig.loop()):
        await rig.stands_at(P0, 2)
        rig.fill(P0, 1)
        await rig.stands_at(P0, 3)

    assert tries == [0, 1, 2, 0]
    assert rig.work.calls == [(0, [0, 1])] * 3 + [(0, [2])]


async def test_redelivery_below_the_position_never_reaches_the_road(rig: Rig) -> None:
    """A rebalance or a client failure brings records again: one comparison drops them, without a statement."""
    rig.fill(P0, 5)
    async with running(rig.loop()) as source:
        await rig.stands_at(P0, 5)
        calls = len(rig.work.calls)

        source.seek(P0, 0)
        await rig.until(lambda: source.drained_to(P0) == 5)
        source.seek(P0, 3)
        rig.fill(P0, 1)
        await rig.stands_at(P0, 6)

    assert rig.work.calls[calls:] == [(0, [5])]


async def test_a_revoke_waits_for_the_batch_in_flight_and_tells_its_offset(rig: Rig) -> None:
    """What ends within the drain window is settled here and not redelivered to the next owner (Case 14)."""
    started, finish = asyncio.Event(), asyncio.Event()

    async def slow(batch: Batch) -> None:
        started.set()
        await finish.wait()

    rig.work.trouble = slow
    rig.fill(P0, 3)
    async with running(rig.loop()):
        await started.wait()
        rebalance = asyncio.create_task(rig.broker.group("g").rebalance())
        await asyncio.sleep(0)
        assert not rebalance.done()
        finish.set()
        await rebalance

        assert rig.broker.group("g").committed == {P0: 3, P1: 0}
        await rig.until(lambda: rig.rows.rows[P0].epoch == 2)
        rig.fill(P0, 1)
        await rig.stands_at(P0, 4)

    assert rig.work.calls == [(0, [0, 1, 2]), (0, [3])]


async def test_a_hanging_batch_holds_a_revoke_no_longer_than_the_drain_timeout(rig: Rig) -> None:
    """Case 16: the group goes on, what hangs is cancelled, and its lane works again, although it is the only one."""
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def hangs_once(batch: Batch) -> None:
        if not started.is_set():
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

    rig.work.trouble = hangs_once
    rig.fill(P0, 1)
    async with running(rig.loop(lanes=1, drain_seconds=0.05)):
        await started.wait()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await rig.broker.group("g").rebalance()
        cut, _ = await asyncio.wait([asyncio.create_task(cancelled.wait())], timeout=1)
        assert cut, "what hangs was left to itself"
        await rig.until(lambda: rig.rows.rows[P0].epoch == 2)
        await rig.stands_at(P0, 1)
        rig.fill(P0, 1)

        await rig.stands_at(P0, 2)


async def test_a_time_out_of_the_work_itself_is_no_cut(rig: Rig) -> None:
    """Taken for the end of a revoke's patience it would leave a partition that nobody works on, without a word."""

    async def raises(batch: Batch) -> None:
        raise TimeoutError("a defect of ours")

    rig.work.trouble = raises
    rig.fill(P0, 1)
    with pytest.raises(ExceptionGroup) as ended:
        await rig.loop().run()
    assert ended.group_contains(TimeoutError, match="a defect of ours")


async def test_a_lane_that_is_cancelled_by_accident_ends_its_loop(rig: Rig) -> None:
    """A client may let out a cancellation of its own: the lane's partitions would have nobody, in silence."""

    async def let_out(_: Batch) -> None:
        raise asyncio.CancelledError

    rig.work.trouble = let_out
    rig.fill(P0, 1)

    with pytest.raises(ExceptionGroup) as ended:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await rig.loop().run()

    assert "lane-0 ended by itself" in str(ended.value.exceptions[0])


@pytest.mark.parametrize("ending", [StaleOwner("another owner"), Transient("connection ended")])
async def test_the_work_of_an_earlier_ownership_does_not_pause_the_next_one(rig: Rig, ending: Exception) -> None:
    """Case 8: revoked and given back while a batch hung, then its failure: the partition must still be fetched."""
    started, finish, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hangs_once(batch: Batch) -> None:
        if not started.is_set():
            started.set()
            while not finish.is_set():
                with contextlib.suppress(asyncio.CancelledError):  # as a library that swallows it
                    await finish.wait()
            ended.set()
            raise ending

    rig.work.trouble = hangs_once
    rig.fill(P0, 1)
    async with running(rig.loop(lanes=1, drain_seconds=0.05)):
        await started.wait()
        await rig.broker.group("g").rebalance()
        await rig.until(lambda: rig.rows.rows[P0].epoch == 2)
        finish.set()
        await ended.wait()
        rig.fill(P0, 1)

        await rig.stands_at(P0, 2)

    assert sum(len(offsets) for _, offsets in rig.work.calls[1:]) == 2
    assert rig.rows.rows[P0].epoch == 2  # nor does it take the partition from it


async def test_an_answer_that_was_lost_is_read_from_the_row(rig: Rig) -> None:
    """A commit that Postgres did but could not tell: handling the batch again would be a repeat for nothing."""

    async def settles_and_says_no(batch: Batch) -> None:
        rig.work.trouble = no_trouble
        rig.rows.settle(batch)

    rig.work.trouble = settles_and_says_no
    rig.fill(P0, 2)
    async with running(rig.loop()):
        await rig.stands_at(P0, 2)
        rig.fill(P0, 1)
        await rig.stands_at(P0, 3)

    assert rig.work.calls == [(0, [0, 1]), (0, [2])]


async def test_a_partition_that_another_took_over_is_taken_back_only_with_kafkas_word(rig: Rig) -> None:
    """Two owners would push each other out for ever; the group's generation decides who is right."""
    rig.fill(P0, 1)
    async with running(rig.loop()):
        await rig.stands_at(P0, 1)
        await rig.rows.take_over(P0)  # a zombie, just before it was stopped
        rig.fill(P0, 1)

        await rig.stands_at(P0, 2)

    assert rig.rows.rows[P0].epoch == 3


async def test_a_zombie_drops_the_partition_that_the_group_gave_to_another(rig: Rig) -> None:
    """G9: its client still believes in the assignment; the refused commit tells it the truth."""
    zombie = rig.loop()
    rig.fill(P0, 1)
    async with running(zombie) as source:
        await rig.stands_at(P0, 1)
        rig.broker.group("g").members.clear()  # the coordinator gave it up, and nobody told it
        await rig.rows.take_over(P0)
        rig.fill(P0, 1)
        await rig.until(lambda: P0 not in zombie.holdings.owned)

        assert P0 in source.assignment()
        assert P0 not in zombie.being_taken()
        assert rig.rows.rows[P0].epoch == 2
        assert rig.rows.rows[P0].next_offset == 1


async def test_kafka_being_away_at_the_wrong_moment_does_not_orphan_a_partition(rig: Rig) -> None:
    """Case 8: dropped on a commit that nobody answered, it would be assigned to us and read by no one."""
    rig.fill(P0, 1)
    async with running(rig.loop()):
        await rig.stands_at(P0, 1)

        async def away(batch: Batch) -> None:
            rig.work.trouble = no_trouble
            await rig.rows.take_over(P0)
            rig.broker.is_down = True
            asyncio.get_running_loop().call_later(0.1, _come_back, rig.broker)

        rig.work.trouble = away
        rig.fill(P0, 1)

        await rig.stands_at(P0, 2)


def _come_back(broker: MemoryBroker) -> None:
    broker.is_down = False


async def test_a_revoked_partition_has_no_lag_series(rig: Rig) -> None:
    """Case 103: a partition that another process works on must not look stuck here."""
    rig.fill(P0, 1)
    async with running(rig.loop()) as source:
        await rig.stands_at(P0, 1)
        await rig.until(lambda: lag_partitions(rig) == {"0", "1"})
        async with running(rig.loop(metrics=Metrics())):
            await rig.until(lambda: len(source.assignment()) == 1)
            (kept,) = source.assignment()

            await rig.until(lambda: lag_partitions(rig) == {str(kept.partition)})
    assert lag_partitions(rig) == set()


def lag_partitions(rig: Rig) -> set[str]:
    (family,) = (f for f in rig.metrics.registry.collect() if f.name == "tidegate_records_behind")
    return {sample.labels["partition"] for sample in family.samples}


async def test_a_re_created_topic_blocks_its_partitions(rig: Rig) -> None:
    """Its offsets mean other records now: going on at the old position would skip some without a word."""
    rig.fill(P0, 2)
    async with running(rig.loop()):
        await rig.stands_at(P0, 2)
    rig.broker.recreate_topic("t")
    rig.fill(P0, 5)
    loop = rig.loop()
    async with running(loop):
        await rig.until(lambda: (held := loop.holdings.get(P0)) is not None and held.blocked is not None)
        held = loop.holdings.get(P0)

    assert held is not None
    assert "re-created: topic 't' has another id" in (held.blocked or "")
    assert rig.rows.rows[P0].next_offset == 2
    assert rig.rows.rows[P0].topic_id != UUID(int=0)


async def test_a_fetch_that_outlives_a_rebalance_takes_nothing_from_the_next_ownership(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1: the partition comes back in another lane; what the old lane's fetch brought would be dropped, and the client
    be past it: the next batch would then step over records that nobody handled."""
    first = running(rig.loop())
    await first.__aenter__()
    async with running(rig.loop(lanes=2)) as source:
        waits = asyncio.Event()
        monkeypatch.setattr(source, "fetch", partial(_patiently, source.fetch, waits))
        await waits.wait()  # lane 0, for records of P1
        await first.__aexit__(None, None, None)  # both partitions are here now, and P1 in lane 1
        await rig.until(lambda: rig.rows.rows[P1].epoch == 3)
        rig.fill(P1, 3)
        await rig.stands_at(P1, 3)

    assert rig.work.calls == [(1, [0, 1, 2])]


async def _patiently(
    fetch: Callable[..., Awaitable[Mapping[TopicPartition, Sequence[Record]]]],
    begun: asyncio.Event,
    partitions: Iterable[TopicPartition],
    *,
    max_records: int,
    timeout: float,
) -> Mapping[TopicPartition, Sequence[Record]]:
    """As `fetch`, but waits a second, and says that it has begun."""
    begun.set()
    return await fetch(partitions, max_records=max_records, timeout=max(timeout, 1.0))
