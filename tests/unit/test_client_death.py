"""A client that has died under a job: the loop ends gently, says why, and the next one goes on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumers.batch import Batch
from consumers.failure import RetryPolicy
from tests.unit.loop_rig import P0, P1, Rig, running
from tidegate import supervision
from tidegate.testing.memory import MemorySource
from tidegate.vitals import Vitals
from tidegate_kernel import logs
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Misconfigured, Unreachable
from tidegate_kernel.source import ClientDied

_NOTICED_WITHIN_SECONDS = 5.0


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_a_client_that_died_ends_the_loop_and_the_next_one_goes_on(rig: Rig) -> None:
    """The client itself never says it where nothing fails: no fetch would ever bring anything again."""
    rig.fill(P0, 5)
    loop = rig.loop()
    task = asyncio.create_task(loop.run())
    await rig.stands_at(P0, 5)
    assert isinstance(loop.source, MemorySource)
    await rig.until(lambda: rig.broker.group("g").committed.get(P0) == 5)  # else the next commit would fail

    loop.source.die()
    rig.fill(P0, 5)
    ended, _ = await asyncio.wait([task], timeout=_NOTICED_WITHIN_SECONDS)

    assert ended, "nobody notices"
    assert isinstance(task.exception(), ClientDied)
    assert rig.rows.released == {P0, P1}
    async with running(rig.loop()):
        await rig.stands_at(P0, 10)
    assert sorted(offset for p, batch in rig.work.calls if p == 0 for offset in batch) == list(range(10))


async def test_what_is_in_hand_settles_when_the_client_died(rig: Rig) -> None:
    """Cut off it would be begun again, and looks as if it had ended its owner."""
    may_go, begun = asyncio.Event(), asyncio.Event()

    async def wait(_: Batch) -> None:
        begun.set()
        await may_go.wait()

    rig.work.trouble = wait
    rig.fill(P0, 3)
    loop = rig.loop()
    task = asyncio.create_task(loop.run())
    await begun.wait()
    assert isinstance(loop.source, MemorySource)
    loop.source.die()
    await rig.until(loop.is_stopping)
    may_go.set()

    with pytest.raises(ClientDied):
        await task
    assert rig.rows.rows[P0].next_offset == 3


async def test_a_client_that_died_is_no_outage(rig: Rig) -> None:
    """A breaker for Kafka would tell people of a Kafka that is well, and wait for what cannot come back."""
    rig.fill(P0, 1)
    loop = rig.loop()
    with capture_logs() as logged:
        task = asyncio.create_task(loop.run())
        await rig.stands_at(P0, 1)
        assert isinstance(loop.source, MemorySource)
        loop.source.die()
        loop._outages.suspect(RuntimeError("something else"))
        await asyncio.wait([task], timeout=_NOTICED_WITHIN_SECONDS)

    assert isinstance(task.exception(), ClientDied)
    assert [line for line in logged if line["event"] == logs.BREAKER_OPENED] == []


async def test_a_client_that_dies_while_the_loop_stops_is_no_error(rig: Rig) -> None:
    """Nobody needs a new one."""
    loop = rig.loop()
    async with running(loop) as source:
        loop.stop()
        assert isinstance(source, MemorySource)
        source.die()


class Loop:
    """A loop that ends as it is told."""

    def __init__(self, *endings: Exception | None) -> None:
        self.endings, self.has_joined, self.runs = list(endings), False, 0
        self.source, self.holdings, self.last_beat = None, None, 0.0

    async def run(self) -> None:
        self.runs += 1
        if (ending := self.endings.pop(0)) is not None:
            raise ending

    def stop(self) -> None:
        return None


async def _supervise(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Runs until the loop has no endings left; what was logged."""
    soon = RetryPolicy(first_delay=timedelta(milliseconds=1), longest_delay=timedelta(milliseconds=2))
    monkeypatch.setattr(supervision, "_RESTART", soon)
    stop = asyncio.Event()

    def next_loop(*_: Any) -> Loop:
        if len(loop.endings) == 1:
            stop.set()
        return loop

    monkeypatch.setattr(supervision, "live_loop", next_loop)
    parts: Any = SimpleNamespace(job=SimpleNamespace(job_code="job"))
    clock = SystemClock()
    with capture_logs() as logged:
        await supervision.supervise(parts, lambda *_: None, clock=clock, vitals=Vitals(clock), stop=stop)  # type: ignore[arg-type]  # nobody joins
    return [line["restarts"] for line in logged if line["event"] == logs.JOB_RESTARTED]


async def test_kafka_that_is_away_at_the_first_join_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has asked it a moment ago: it is no setting that is wrong, and the other jobs go on."""
    loop = Loop(Unreachable("away"), Unreachable("away"), None)
    assert await _supervise(loop, monkeypatch) == [1, 2]
    assert loop.runs == 3


async def test_kafka_that_refuses_the_first_join_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody but a person can repair that, and an exit is what a person sees."""
    with pytest.raises(Misconfigured):
        await _supervise(Loop(Misconfigured("refused"), None), monkeypatch)


async def test_a_client_that_died_costs_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when Kafka does not answer the new one for a while, or refuses it for now."""
    loop = Loop(ClientDied("dead"), Unreachable("away"), Misconfigured("refused"), None)
    assert await _supervise(loop, monkeypatch) == [1, 2, 3]
