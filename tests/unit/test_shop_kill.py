"""The trial's kill: it waits for the right moment, and says so if there was none."""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from examples.shop.demo import kill
from examples.shop.demo.ahead import Sinks, Standing
from examples.shop.demo.kill import Applied, Kill, kill_in_flight
from examples.shop.demo.messages import Kind
from examples.shop.demo.place import TrialFailed
from examples.shop.demo.poison import POISON
from examples.shop.demo.produce import First, Sent
from examples.shop.demo.purchases import read_purchases
from examples.shop.demo.report import Report
from examples.shop.demo.story import Step
from examples.shop.demo.trial import judge
from examples.shop.demo.workers import Worker

LEDGER = Standing("customer-ledger", "orders", 0, 100, 1)
SEARCH = Standing("order-search", "orders", 3, 200, 1)


class _Process:
    pid = 1

    def __init__(self, signals: list[signal.Signals], returncode: int | None = None) -> None:
        self._signals, self.returncode = signals, returncode

    def send_signal(self, number: signal.Signals) -> None:
        self._signals.append(number)

    async def wait(self) -> int:
        return -9


class _Database:
    """A transaction that is open at every look, over the ledger's position; `settles` moves the other at the death."""

    def __init__(self, signals: list[signal.Signals], *, settles: bool = False) -> None:
        self._signals, self._settles = signals, settles

    async def fetch(self, query: str, _: str) -> Sequence[dict[str, Any]]:
        if "pg_stat_activity" in query:
            return [{"pid": 7, "xid": "900", "xact_start": None}]
        if "SKIP LOCKED" in query:
            return [{"code": SEARCH.job, "partition": SEARCH.partition}]
        is_dead = signal.SIGKILL in self._signals
        search_at = 260 if is_dead and self._settles else 200
        return [_row(LEDGER, 100), _row(SEARCH, search_at)]


def _row(standing: Standing, next_offset: int) -> dict[str, Any]:
    columns = ("code", "topic", "partition", "next_offset", "epoch")
    return dict(zip(columns, (standing.job, standing.topic, standing.partition, next_offset, 1), strict=True))


class _Sinks:
    """Sinks that show something unsettled of the search from the given look on."""

    def __init__(self, *, from_look: float) -> None:
        self._from_look, self._looks = from_look, 0

    async def ahead(self, standing: Standing) -> First | None:
        if standing.job != SEARCH.job:
            return None
        self._looks += 1
        return First(204, "aurora-000007") if self._looks >= self._from_look else None


def _worker(process: _Process, log: Path = Path("worker-1.log")) -> Worker:
    return Worker("worker-1", cast("asyncio.subprocess.Process", process), 0, log)


async def _kill(sinks: _Sinks, *, settles: bool = False) -> tuple[Kill, list[signal.Signals]]:
    signals: list[signal.Signals] = []
    worker = _worker(_Process(signals))
    return await kill_in_flight([worker], _Database(signals, settles=settles), cast("Sinks", sinks)), signals


async def test_kill_waits_until_a_sink_shows_more_than_is_settled() -> None:
    """A transaction alone proves nothing about the road of the projections."""
    killed, signals = await _kill(_Sinks(from_look=3))
    assert killed.applied == [Applied(SEARCH, First(204, "aurora-000007"))]
    assert killed.batches == [LEDGER]
    assert signals == [*[signal.SIGSTOP, signal.SIGCONT] * 2, signal.SIGSTOP, signal.SIGKILL]


async def test_without_a_moment_at_which_both_are_in_flight_the_trial_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill that hits nothing would pass for a proof."""
    monkeypatch.setattr(kill, "_DEADLINE_SECONDS", 0.2)
    with pytest.raises(TrialFailed, match="projection's batch in flight"):
        await _kill(_Sinks(from_look=float("inf")))


async def test_worker_that_ended_by_itself_fails_the_trial_with_the_end_of_its_log(tmp_path: Path) -> None:
    """What it said last is what one needs to know; that there is no such process is not."""
    log = tmp_path / "worker-1.log"
    log.write_text("tidegate: the reason\n")
    with pytest.raises(TrialFailed, match=r"worker-1 ended with 1(.|\n)*tidegate: the reason"):
        await kill_in_flight([_worker(_Process([], returncode=1), log)], _Database([]), cast("Sinks", None))


async def test_batch_that_was_settled_before_the_death_was_not_in_flight() -> None:
    """The settle may have been on its way while the process was looked at."""
    killed, _ = await _kill(_Sinks(from_look=1), settles=True)
    assert killed.applied == []


@pytest.mark.parametrize(
    "batches, applied, complaint",
    [
        ([], [Applied(SEARCH, First(204, "aurora-000007"))], "the kill hit no transaction in flight"),
        ([LEDGER], [], "the kill hit no projection's batch in flight"),
    ],
)
def test_kill_that_hit_nothing_fails_the_trial(batches: list[Standing], applied: list[Applied], complaint: str) -> None:
    """Whatever the figures say: they are no proof then."""
    report = Report("run", 1, poison=len(POISON), kill=Kill("worker-1", 1, ["900"], batches, applied))
    judge(report)
    assert report.failures == [complaint]


def test_orders_are_placed_where_they_are_told_of_first() -> None:
    """A repeat, a viewing or poison beyond the position would prove nothing: the order was known before."""
    first, second = read_purchases(2)
    sent = Sent()
    sent.place(3, 40, [Step("poison-kind", None), Step(Kind.PLACED, first), Step(Kind.VIEWED, second)])
    sent.place(3, 43, [Step(Kind.PLACED, first, is_repeat=True), Step(Kind.CANCELLED, second)])
    assert sent.firsts_from(3, 0) == [First(41, first.order_id), First(44, second.order_id)]
    assert sent.firsts_from(3, 42) == [First(44, second.order_id)]
    assert sent.firsts_from(4, 0) == []
