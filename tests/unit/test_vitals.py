"""What the probes answer, and the metrics say, of a job's partitions."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from consumers.lags import lags_of
from consumers.loop import ConsumerLoop
from consumers.meter import Meter
from consumers.ownership import Hold, Holdings
from consumers.positions import Position
from consumers.watchdog import STALLED_SECONDS
from tidegate.assembly import JobParts
from tidegate.vitals import Vitals
from tidegate_kernel.event import JobCode, TopicPartition
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.source import RecordSource

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
JOB = JobCode("notes")


class StillClock:
    seconds = 1000.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class Scene:
    """A job that owns two partitions, and what is told of it."""

    def __init__(self, source: RecordSource) -> None:
        self.clock, self.source, self.metrics = StillClock(), source, Metrics()
        self.holdings = Holdings(1)
        self.first, self.second = (self.holdings.add(p, Position(1, 3, UUID(int=7))) for p in (P0, P1))
        self.loop: Any = SimpleNamespace(holdings=self.holdings, source=source, last_beat=self.clock.seconds)
        parts = SimpleNamespace(
            job=SimpleNamespace(job_code=JOB),
            outages=SimpleNamespace(open={}),
            last_progress=lambda: self.clock.seconds,
        )
        self.vitals = Vitals(self.clock)
        self.vitals.watch(cast("JobParts", parts), cast("ConsumerLoop", self.loop))
        Meter(JOB, self.metrics, self.clock).watch(lambda: lags_of(self.holdings, source, self.clock.now()))

    def gauge(self, name: str) -> list[float | None]:
        labels = [{"job": JOB, "topic": "t", "partition": str(number)} for number in (0, 1)]
        return [self.metrics.registry.get_sample_value(f"tidegate_partition_{name}", each) for each in labels]


@pytest.fixture
def scene() -> Scene:
    source: Any = SimpleNamespace(
        pause=lambda _: None, resume=lambda _: None, drained_to=lambda _: 3, known_end=lambda _: 3
    )
    return Scene(source)


def test_a_healthy_job_has_no_problems(scene: Scene) -> None:
    """What follows must come from what is wrong, and from nothing else."""
    assert scene.vitals.live() == scene.vitals.ready() == []
    assert scene.gauge("stalled") == scene.gauge("blocked") == [0, 0]


def test_a_stalled_partition_shows_at_once_and_ends_the_process_only_later(scene: Scene) -> None:
    """Case 8: it is sought anew first, then read by a new client, after as long again. A loop that still holds it after
    as long once more does not even end."""
    scene.second.stalled_since = scene.clock.seconds
    assert scene.gauge("stalled") == [0, 1]
    scene.clock.seconds += STALLED_SECONDS * 2
    assert scene.vitals.live() == []

    scene.clock.seconds += 1
    assert scene.vitals.live() == ["job 'notes': t:1 is behind and not fetched"]
    scene.second.stalled_since = None
    assert scene.vitals.live() == []


def test_a_blocked_partition_shows_and_is_no_reason_to_be_killed(scene: Scene) -> None:
    """Case 3: a corrupt batch waits for a person. A restart would find it again; the other partition goes on."""
    scene.first.hold(Hold.BLOCKED, "invalid CRC at offset 3", scene.source)
    assert scene.gauge("blocked") == [1, 0]
    assert scene.vitals.ready() == ["job 'notes': t:0 is blocked: invalid CRC at offset 3"]
    assert scene.vitals.live() == []


def test_a_flood_is_told_with_its_reason(scene: Scene) -> None:
    """Whoever is woken by it has to know that the job stopped itself."""
    scene.first.hold(Hold.FLOOD, "stopped: 120 dead letters in a row", scene.source)
    assert scene.vitals.ready() == ["job 'notes': t:0 is stopped: 120 dead letters in a row"]
    assert scene.vitals.live() == []


@pytest.mark.parametrize("silence, is_dead", [(119, False), (121, True)])
def test_a_lane_that_hangs_ends_the_process(scene: Scene, silence: float, is_dead: bool) -> None:
    """Case 108: nothing inside would end it: its partitions stay assigned and nobody reads them."""
    scene.vitals._parts[JOB] = cast("JobParts", SimpleNamespace(last_progress=lambda: 0.0))
    scene.clock.seconds += silence
    assert bool(scene.vitals.live()) is is_dead


def test_a_job_whose_loop_ended_is_not_ready(scene: Scene) -> None:
    """It is being started again; until then nobody reads its partitions here."""
    scene.vitals.unwatch(JOB)
    assert scene.vitals.ready() == ["job 'notes': its consumer is being started again"]
    assert scene.vitals.live() == []
