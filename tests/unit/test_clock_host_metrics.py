"""What a process that runs jobs by the clock tells before any of them has run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidegate.jobs.clockwork.host import ClockHost, Pace
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import JobId
from tidegate_kernel.metrics import Metrics


@pytest.mark.parametrize(
    "name, outcome",
    [
        ("tidegate_runs_total", "failed"),
        ("tidegate_runs_total", "stalled"),
        ("tidegate_run_items_total", "failed"),
        ("tidegate_run_lock_contention_total", None),
    ],
)
def test_counters_that_alerts_ask_for_begin_at_zero(name: str, outcome: str | None) -> None:
    """`increase` of a counter that is first seen at one is nothing: a nightly job's first failure would wake nobody."""
    metrics = Metrics()
    hands = cast("Any", SimpleNamespace(job=SimpleNamespace(code="nightly")))

    ClockHost(cast("Any", None), {JobId(1): hands}, clock=SystemClock(), metrics=metrics, pace=Pace())

    labels = {"job": "nightly"} if outcome is None else {"job": "nightly", "outcome": outcome}
    assert metrics.registry.get_sample_value(name, labels) == 0
