"""When dead letters are too many: in a row in a partition, or as a share of a topic. Isolated ones never are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast
from uuid import UUID

import pytest

from consumers.batch import Batch, Outcome
from consumers.flood import FloodLimit, Floods
from consumers.letters import failure_of_record
from consumers.unread import UnreadRecord
from tidegate_kernel.errors import Misconfigured, Poison, Reason
from tidegate_kernel.event import LIVE, Fence, JobId
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool

TOPIC_ID = UUID(int=7)


class Database:
    """Keeps the stops that are asked for, and hands out allowances."""

    def __init__(self) -> None:
        self.stops: list[tuple[str, str]] = []
        self.allowances: list[dict[str, Any]] = []

    async def fetchval(self, _: str, job: int, topic: str, why: str) -> int:
        self.stops.append((topic, why))
        return len(self.stops)

    async def fetch(self, _: str, job: int) -> list[dict[str, Any]]:
        return self.allowances


class Scene:
    def __init__(self, limit: FloodLimit) -> None:
        self.database = Database()
        pool = cast("Pool", self.database)
        self.floods = Floods("job", pool, JobId(1), limits={"t": limit, "u": limit}, metrics=Metrics())
        self._next = {("t", 0): 0, ("t", 1): 0, ("u", 0): 0}

    async def settle(self, good: int, bad: int = 0, *, topic: str = "t", partition: int = 0) -> bool:
        """A batch of `bad` dead letters after `good` events; whether its topic stops."""
        first = self._next[topic, partition]
        records = [UnreadRecord(topic, partition, first + n) for n in range(good + bad)]
        self._next[topic, partition] += len(records)
        batch = Batch(Fence(JobId(1), LIVE, topic, partition, 1, first), TOPIC_ID, records, first + len(records))
        return await self.floods.note(batch, Outcome(failures=list(_letters(batch, records[good:]))))


def _letters(batch: Batch, records: Iterable[UnreadRecord]) -> Iterable[Any]:
    for record in records:
        yield failure_of_record(batch, record, Poison("bad"), reason=Reason.INVALID_EVENT)


@pytest.fixture
def make_scene() -> Callable[..., Scene]:
    return lambda **limit: Scene(FloodLimit(**limit))


async def test_a_run_of_letters_stops_the_topic(make_scene: Callable[..., Scene]) -> None:
    """Case 49: a bad release upstream fills the dead-letter topic with what one person has to look at."""
    scene = make_scene(run_length=100)
    assert not await scene.settle(0, 60)
    assert await scene.settle(0, 60)
    assert scene.database.stops == [("t", "120 dead letters in a row in partition 0")]


async def test_isolated_letters_never_stop_a_topic(make_scene: Callable[..., Scene]) -> None:
    """Case 49: each of them is its own record's fault."""
    scene = make_scene(run_length=10, ratio=0.5, window=100)
    for _ in range(200):
        assert not await scene.settle(4, 3)
    assert scene.database.stops == []


async def test_one_good_event_ends_a_run(make_scene: Callable[..., Scene]) -> None:
    """In a row means in a row, also across batches, and in one partition."""
    scene = make_scene(run_length=10, window=10_000)
    assert not await scene.settle(0, 9)
    assert not await scene.settle(1, 9)
    assert not await scene.settle(0, 9, partition=1)
    assert not await scene.settle(1)
    assert not await scene.settle(0, 9)


async def test_a_share_of_the_window_stops_the_topic(make_scene: Callable[..., Scene]) -> None:
    """One producer of two is broken: no run gets long."""
    scene = make_scene(run_length=100, ratio=0.5, window=100)
    stopped = [await scene.settle(1, 2, partition=n % 2) for n in range(40)]
    assert stopped.index(True) == 33  # the window is full
    assert scene.database.stops[0][1].endswith("of the last 102 records became dead letters")


async def test_old_trouble_leaves_the_window(make_scene: Callable[..., Scene]) -> None:
    """What was settled long ago tells nothing of now."""
    scene = make_scene(run_length=100, ratio=0.5, window=100)
    assert not await scene.settle(0, 40)
    for _ in range(20):
        assert not await scene.settle(10)
    assert not await scene.settle(0, 40)


async def test_topics_are_counted_apart(make_scene: Callable[..., Scene]) -> None:
    """Another producer's topic goes on."""
    scene = make_scene(run_length=10)
    assert not await scene.settle(0, 9)
    assert not await scene.settle(0, 9, topic="u")
    assert await scene.settle(0, 1)
    assert [topic for topic, _ in scene.database.stops] == ["t"]


async def test_foreseen_letters_stop_nothing(make_scene: Callable[..., Scene]) -> None:
    """Somebody looked and let it go on up to an offset; beyond that it counts again."""
    scene = make_scene(run_length=10)
    scene.database.allowances = [{"topic": "t", "partition": 0, "topic_id": TOPIC_ID, "until_offset": 30}]
    assert not await scene.settle(0, 15)
    assert not await scene.settle(0, 15)
    assert await scene.settle(0, 10)


async def test_letters_of_a_topic_made_anew_are_not_foreseen(make_scene: Callable[..., Scene]) -> None:
    """Its offsets mean other records."""
    scene = make_scene(run_length=10)
    scene.database.allowances = [{"topic": "t", "partition": 0, "topic_id": UUID(int=8), "until_offset": 30}]
    assert await scene.settle(0, 15)


@pytest.mark.parametrize("wrong", [{"run_length": 0}, {"ratio": 0}, {"ratio": 1.5}, {"window": 0}])
def test_limits_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    """A ratio in percent would never stop anything."""
    with pytest.raises(Misconfigured):
        FloodLimit(**wrong)
