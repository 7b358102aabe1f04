"""The watchdog of partitions: what counts as standing still, and what is done about it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID

import pytest

from consumers.ownership import Hold, Holding, Holdings
from consumers.positions import Position
from consumers.watchdog import STALLED_SECONDS, Watchdog
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import Record, TopicPartition
from tidegate_kernel.source import ClientDied, RecordSource

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class StillClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class Scene:
    """Two owned partitions, of which the client forgets some."""

    def __init__(self, broker: MemoryBroker, source: RecordSource) -> None:
        self.broker, self.source, self.clock = broker, source, StillClock()
        self.holdings = Holdings(1)
        self.held = [self.holdings.add(p, Position(1, 0, UUID(int=7))) for p in (P0, P1)]
        self.trouble: list[Transient] = []
        self.watchdog = Watchdog(source, self.holdings, self.clock, self.trouble.append)

    async def look_for(self, seconds: float, *, is_busy: bool = False) -> None:
        """Time passes and the watchdog looks; the lane asks for all partitions in vain, unless it is busy."""
        end = self.clock.seconds + seconds
        while self.clock.seconds < end:
            for held in self.held:
                held.empty_fetches += not is_busy
            await self.watchdog.look()
            await self.clock.sleep(15)
        await self.watchdog.look()

    async def fetch(self, partition: TopicPartition) -> Mapping[TopicPartition, Sequence[Record]]:
        return await self.source.fetch([partition], max_records=10, timeout=0)

    @property
    def stalled(self) -> list[Holding]:
        return [held for held in self.held if held.stalled_since is not None]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    broker = MemoryBroker()
    broker.create_topic("t", 2)
    async with broker.join("g", ["t"], lambda _: None, _nothing) as source:
        for partition in (P0, P1):
            source.seek(partition, 0)
        yield Scene(broker, source)


async def _nothing(_: Iterable[TopicPartition]) -> None:
    return None


async def test_a_partition_that_is_never_fetched_is_stalled_and_sought_anew(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 8: heartbeats go on and nobody notices, while its log grows."""
    sought: list[tuple[TopicPartition, int]] = []
    monkeypatch.setattr(scene.source, "seek", lambda p, offset: sought.append((p, offset)))
    scene.broker.put(P1, b"x")
    await scene.look_for(STALLED_SECONDS)
    assert [held.partition for held in scene.stalled] == [P1]
    assert sought == [(P1, 0)]


async def test_a_partition_that_stays_stalled_costs_the_client(scene: Scene) -> None:
    """Case 8: where seeking it did not help, only a new client is left; asking the whole process to end would not be
    better. Not before it had as long again."""
    scene.broker.put(P1, b"x")
    await scene.look_for(STALLED_SECONDS)
    await scene.look_for(STALLED_SECONDS - 15)
    assert scene.trouble == []
    await scene.look_for(15)
    assert [type(error) for error in scene.trouble] == [ClientDied]
    assert str(scene.trouble[0]).startswith("t:1@0: not fetched")


async def test_a_stalled_partition_whose_lane_is_busy_keeps_the_client(scene: Scene) -> None:
    """Nobody has asked for it since it was sought anew: whether that helped is not known yet."""
    scene.broker.put(P1, b"x")
    await scene.look_for(STALLED_SECONDS)
    await scene.look_for(STALLED_SECONDS * 3, is_busy=True)
    assert scene.trouble == []


async def test_a_partition_that_is_fetched_again_is_not_stalled_any_more(scene: Scene) -> None:
    """The alert ends by itself."""
    scene.broker.put(P1, b"x")
    await scene.look_for(STALLED_SECONDS)
    await scene.fetch(P1)
    await scene.watchdog.look()
    assert scene.stalled == []
    await scene.look_for(STALLED_SECONDS * 2)
    assert scene.trouble == []


async def test_a_partition_whose_lane_is_busy_is_not_stalled(scene: Scene) -> None:
    """A slow batch of another partition keeps the lane: to seek this one, or end the process, would cure nothing."""
    scene.broker.put(P1, b"x")
    await scene.look_for(STALLED_SECONDS * 3, is_busy=True)
    assert scene.stalled == []


async def test_a_partition_that_moves_slowly_is_not_stalled(scene: Scene) -> None:
    """Behind is not stuck."""
    for _ in range(10):
        scene.broker.put(P1, b"x")
    held = scene.held[1]
    for offset in range(1, 6):
        await scene.look_for(STALLED_SECONDS / 2)
        held.position = Position(1, offset, UUID(int=7))
    assert scene.stalled == []


@pytest.mark.parametrize("hold", list(Hold))
async def test_a_partition_that_rests_on_purpose_is_not_stalled(scene: Scene, hold: Hold) -> None:
    """A pause is not a defect: restarting the process would not end it."""
    scene.broker.put(P1, b"x")
    scene.held[1].hold(hold, "why", scene.source)
    await scene.look_for(STALLED_SECONDS * 2)
    assert scene.stalled == []


async def test_an_idle_partition_is_not_stalled(scene: Scene) -> None:
    """Nothing is produced at night."""
    await scene.look_for(STALLED_SECONDS * 2)
    assert scene.stalled == []
