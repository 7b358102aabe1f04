"""Breakers: what opens them, what rests meanwhile, what closes them. Kafka in memory, probes that a test answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from consumers import outages
from consumers.batch import Batch
from consumers.outages import KAFKA, POSTGRES, Outages, Probe
from consumers.ownership import Hold, Holding, Holdings
from consumers.positions import Position
from consumers.unread import UnreadRecord
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import LIVE, Fence, JobId, TopicPartition
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Connections
from tidegate_kernel.source import RecordSource, SourceFailure

P0 = TopicPartition("t", 0)


class SteppedClock:
    """Each sleep is over at once, and leaves the loop to others; time passes by what was slept."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        await asyncio.sleep(0)


class Pool(Connections):
    """Counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.renewals = self.cuts = 0

    async def renew(self) -> None:
        self.renewals += 1

    def cut(self) -> None:
        self.cuts += 1


class Scene:
    """One partition of one job, whose dependencies answer as `away` says."""

    def __init__(self, source: RecordSource) -> None:
        self.away: set[str] = set()
        self.asked = asyncio.Event()
        self.pool, self.metrics, self.clock, self.source = Pool(), Metrics(), SteppedClock(), source
        names = (POSTGRES, "payments")
        probes = {name: self._probe(name) for name in names}
        self.outages = Outages("job", probes, clock=self.clock, metrics=self.metrics, connections=self.pool)
        self.holdings = Holdings(1)
        self.held = self.holdings.add(P0, Position(1, 0, UUID(int=7)))

    def _probe(self, name: str) -> Probe:
        async def probe() -> bool:
            self.asked.set()
            if name in self.away:
                raise ConnectionRefusedError
            return True

        return probe

    async def until_asked(self) -> None:
        self.asked.clear()
        await asyncio.wait_for(self.asked.wait(), 5)
        for _ in range(5):
            await asyncio.sleep(0)  # what follows from the answers

    def gauge(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value("tidegate_breaker_open", {"job": "job", "dependency": name})


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    broker = MemoryBroker()
    broker.create_topic("t", 1)
    async with broker.join("g", ["t"], lambda _: None, _nothing) as source, _watched(Scene(source)) as scene:
        yield scene


@asynccontextmanager
async def _watched(scene: Scene) -> AsyncIterator[Scene]:
    watch = asyncio.create_task(scene.outages.watch(scene.source, scene.holdings))
    try:
        yield scene
    finally:
        watch.cancel()


async def _nothing(_: frozenset[TopicPartition]) -> None:
    return None


def batch_of(held: Holding) -> Batch:
    return Batch(Fence(JobId(1), LIVE, *P0, 1, 0), held.position.topic_id, [UnreadRecord("t", 0, 0)], 1)


@pytest.mark.parametrize("name", [POSTGRES, "payments"])
async def test_an_outage_rests_the_partitions_until_it_is_over(scene: Scene, name: str) -> None:
    """G5: a retry against a server that is away only counts attempts; one at the moment it is back costs no wait."""
    scene.away = {name}
    scene.held.due = 1e9
    scene.outages.suspect(Transient("timed out"))
    await scene.until_asked()
    assert scene.held.holds == {Hold.OUTAGE: f"{name} does not answer"}
    assert scene.gauge(name) == 1

    scene.away = set()
    await scene.until_asked()
    assert not scene.held.holds
    assert scene.held.due <= scene.clock.monotonic()
    assert scene.gauge(name) == 0


async def test_trouble_while_all_answer_rests_nothing(scene: Scene) -> None:
    """A bad batch is no outage: the others go on."""
    scene.outages.suspect(Transient("deadlock"))
    await scene.until_asked()
    assert not scene.held.holds


async def test_a_partition_taken_over_during_an_outage_rests_too(scene: Scene) -> None:
    """A rebalance does not end an outage."""
    scene.away = {POSTGRES}
    scene.outages.suspect(Transient("timed out"))
    await scene.until_asked()
    later = scene.holdings.add(TopicPartition("t", 1), Position(1, 0, UUID(int=7)))
    await scene.until_asked()
    assert Hold.OUTAGE in later.holds


async def test_other_holds_outlive_an_outage(scene: Scene) -> None:
    """What an operator paused stays paused when Postgres is back."""
    scene.held.hold(Hold.PAUSED, "by hand", scene.source)
    scene.away = {POSTGRES}
    scene.outages.suspect(Transient("timed out"))
    await scene.until_asked()
    scene.away = set()
    await scene.until_asked()
    assert scene.held.holds == {Hold.PAUSED: "by hand"}


async def test_without_kafka_work_in_hand_goes_on_but_the_process_is_not_ready(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read already can settle: Postgres is there."""

    async def refuse(topic: str) -> UUID:
        raise SourceFailure("no broker")

    monkeypatch.setattr(scene.source, "topic_id", refuse)
    scene.outages.suspect(SourceFailure("no broker"))
    await scene.until_asked()
    assert KAFKA in scene.outages.open
    assert not scene.held.holds


async def test_what_is_back_is_used_while_kafka_is_still_away(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that wait for Postgres can settle when it is back; they need nothing of Kafka."""

    async def refuse(topic: str) -> UUID:
        raise SourceFailure("no broker")

    monkeypatch.setattr(scene.source, "topic_id", refuse)
    scene.away = {POSTGRES}
    scene.outages.suspect(Transient("timed out"))
    await scene.until_asked()
    assert Hold.OUTAGE in scene.held.holds

    scene.away = set()
    await scene.until_asked()
    assert KAFKA in scene.outages.open
    assert not scene.held.holds


async def test_a_batch_that_hangs_on_a_dead_server_is_cut_off(scene: Scene) -> None:
    """Behind a router that drops packets an answer never comes, also not when the server is back."""
    scene.held.begin(batch_of(scene.held), scene.clock.monotonic())
    scene.clock.seconds += 60
    scene.away = {POSTGRES}
    await scene.until_asked()
    assert scene.pool.cuts == 0, "a pooler may be short of connections"
    scene.clock.seconds += 10
    await scene.until_asked()
    await scene.until_asked()
    assert scene.pool.cuts >= 1


async def test_a_slow_handler_is_not_cut_off_while_postgres_answers(scene: Scene) -> None:
    """Its own time-out ends it."""
    scene.held.begin(batch_of(scene.held), scene.clock.monotonic())
    scene.clock.seconds += 60
    await scene.until_asked()
    assert scene.pool.cuts == 0


async def test_connections_to_a_demoted_primary_are_replaced(scene: Scene) -> None:
    """Case 83: each of them answers SELECT 1 for days, and no write ever succeeds."""
    error = Transient("settle")
    error.__cause__ = asyncpg.ReadOnlySQLTransactionError()
    scene.outages.suspect(error)
    await scene.until_asked()
    assert scene.pool.renewals == 1


async def test_a_handler_learns_of_an_outage_before_its_failure_counts(scene: Scene) -> None:
    """G5: no attempt is burnt by what every event would meet."""
    scene.away = {"payments"}
    assert not await scene.outages.all_answer()
    await scene.until_asked()
    assert Hold.OUTAGE in scene.held.holds


async def test_a_probe_that_will_not_end_neither_blinds_the_others_nor_holds_the_stop_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's probe may swallow its cancellation, as a broad `except` in a loop does: that costs its own answer."""
    monkeypatch.setattr(outages, "_PROBE_SECONDS", 0.01)
    begun, may_end = 0, asyncio.Event()

    async def stubborn() -> bool:
        nonlocal begun
        begun += 1
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue
        return True

    scene.outages._probes["payments"] = stubborn
    async with asyncio.timeout(5):
        assert not await scene.outages.all_answer()
        assert scene.outages.open.keys() == {"payments"}
        scene.away = {POSTGRES}
        assert not await scene.outages.all_answer()
        assert scene.outages.open.keys() == {"payments", POSTGRES}
        assert begun == 1, "each look leaves one more behind"

        scene.away = set()
        may_end.set()
        while not await scene.outages.all_answer():
            await asyncio.sleep(0)


async def test_a_probe_that_exits_ends_no_process(scene: Scene) -> None:
    """A library that calls sys.exit where it finds nobody would take the worker along."""

    async def leaving() -> bool:
        raise SystemExit(1)

    scene.outages._probes["payments"] = leaving
    assert not await scene.outages.all_answer()
    assert scene.outages.open.keys() == {"payments"}
