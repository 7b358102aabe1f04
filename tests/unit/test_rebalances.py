"""What a rebalance finds in the middle of its work, over Kafka in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from structlog.testing import capture_logs

from consumers.batch import Batch
from consumers.lags import lags_of
from tests.unit.loop_rig import NEVER, P0, P1, Rig, no_trouble, running
from tidegate_kernel import logs
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.source import NotAssigned, RecordSource


@pytest.fixture
def rig() -> Rig:
    return Rig()


class Gate:
    """Holds batches of one partition until it is opened."""

    def __init__(self, rig: Rig, partition: TopicPartition) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        self._partition = partition.partition
        rig.work.trouble = self._pass

    async def _pass(self, batch: Batch) -> None:
        if batch.fence.partition == self._partition:
            self.reached.set()
            await self.open.wait()


async def test_a_commit_refused_after_a_revoke_ends_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 13: the group has moved on; to die of it would be the next rebalance, and so on."""
    committed: list[Mapping[TopicPartition, int]] = []
    gate = Gate(rig, P1)
    rig.fill(P1, 1)
    async with running(rig.loop()) as source:

        async def commit(offsets: Mapping[TopicPartition, int]) -> None:
            if not source.assignment() >= offsets.keys() or offsets.get(P1) == 1:
                raise NotAssigned("commit: IllegalGeneration")
            committed.append(dict(offsets))

        monkeypatch.setattr(source, "commit", commit)
        await gate.reached.wait()
        asyncio.get_running_loop().call_later(0.05, gate.open.set)  # while the revoke waits for the batch in hand
        async with rig.broker.join("g", ["t"], lambda _: None, _nothing):
            (mine,) = source.assignment()
            rig.fill(mine, 3)
            await rig.until(lambda: any(offsets.get(mine, 0) >= 3 for offsets in committed))
            assert committed[-1].keys() == {mine}


async def _nothing(_: frozenset[TopicPartition]) -> None:
    return None


async def test_records_fetched_before_a_revoke_are_not_handled_after_it(rig: Rig) -> None:
    """Case 18: the new owner handles them; twice would be once too often for whatever is not in our transaction."""
    gate = Gate(rig, P0)
    rig.fill(P0, 5)
    rig.fill(P1, 5)
    loop = rig.loop(lanes=1)
    async with running(loop) as source:
        await gate.reached.wait()  # one fetch brought both partitions; P1's share waits behind P0's
        loop.holdings.drop([P1])
        gate.open.set()
        await rig.stands_at(P0, 5)
        await _lane_came_round(rig, source)
    assert [call for call in rig.work.calls if call[0] == 1] == []


async def _lane_came_round(rig: Rig, source: RecordSource) -> None:
    """The lane has gone on to its next fetch: what it had in hand before is done with."""
    rig.fill(P0, 1)
    await rig.stands_at(P0, 6)
    assert P0 in source.assignment()


async def test_a_stuck_record_holds_its_own_partition_and_nothing_is_piled_up_behind_it(rig: Rig) -> None:
    """Case 23: memory stays bounded by one batch, the others go on, and the lag of the stuck one tells its age."""

    async def p0_is_stuck(batch: Batch) -> None:
        if batch.fence.partition == 0:
            raise Transient("away")

    rig.work.trouble = p0_is_stuck
    rig.fill(P0, 500)
    rig.fill(P1, 500)
    loop = rig.loop(retry=NEVER)
    async with running(loop) as source:
        await rig.stands_at(P1, 500)
        held = loop.holdings.get(P0)
        assert held is not None
        assert held.waiting is not None
        assert len(held.waiting.records) == loop.settings.batch_size
        assert source.drained_to(P0) == loop.settings.batch_size
        lag = next(each.lag for each in lags_of(loop.holdings, source, loop.clock.now()) if each.partition == 0)
        assert lag is not None
        assert lag.records == 500
        assert lag.seconds > 0


async def test_a_failed_commit_says_of_what(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 26: 'commit failed' alone leaves the reader to guess which of forty partitions."""
    rig.work.trouble = no_trouble
    with capture_logs() as lines:
        async with running(rig.loop()) as source:

            async def refuse(offsets: Mapping[TopicPartition, int]) -> None:
                raise NotAssigned("commit of t:0@3: IllegalGeneration, generation 7")

            monkeypatch.setattr(source, "commit", refuse)
            rig.fill(P0, 3)
            await rig.stands_at(P0, 3)
            await rig.until(lambda: any(line["event"] == logs.COMMIT_FAILED for line in lines))
    (first, *_) = [line for line in lines if line["event"] == logs.COMMIT_FAILED]
    assert first["offsets"]["t:0"] == 3
    assert "generation 7" in first["error"]
