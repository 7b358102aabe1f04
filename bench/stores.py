"""Measures of real stores: from Kafka into them, and their sink alone."""

from __future__ import annotations

from collections.abc import Sequence

from bench.comparing import BACKLOG, Effort, interleaved
from bench.plan import Plan
from bench.report import Line
from bench.stage import Stage

_FROM_KAFKA = ("raw", "hand-written", "tidegate")
_ALONE = ("ready", "bare sink loop", "sink")
_AT_LEAST = 0.8


async def elasticsearch(stage: Stage, effort: Effort) -> Sequence[Line]:
    """Into real Elasticsearch: from Kafka, and the sink alone, against loops over the store's own client."""
    # A document costs the server itself some 30 µs: this many take seconds.
    return await _into("elasticsearch", stage, effort, from_kafka=effort.events // 4, alone=effort.events // 4)


async def clickhouse(stage: Stage, effort: Effort) -> Sequence[Line]:
    """Into real ClickHouse: from Kafka, and the sink alone, against loops over the store's own client."""
    return await _into("clickhouse", stage, effort, from_kafka=effort.events // 2, alone=effort.events * 2)


async def _into(store: str, stage: Stage, effort: Effort, *, from_kafka: int, alone: int) -> Sequence[Line]:
    topic = await stage.orders(BACKLOG)
    plans = {name: Plan(contestant=f"{store}: {name}").on(topic, alone) for name in _ALONE}
    plans |= {name: Plan(contestant=f"{store}: {name}").on(topic, from_kafka) for name in _FROM_KAFKA}
    found = await interleaved(stage, effort.rounds, plans)

    def ratio(ours: str, theirs: str, at_least: float | None = None) -> Line:
        spread = found.rate_ratios(ours, theirs)
        return Line(f"rate, {ours} / {theirs}", spread, 2, at_least=at_least, is_binding=at_least is not None)

    return [
        *found.rate_lines(),
        *found.cost_lines(),
        ratio("sink", "bare sink loop", _AT_LEAST),
        ratio("tidegate", "hand-written", _AT_LEAST),
        ratio("tidegate", "raw"),
        ratio("sink", "ready"),
        ratio("bare sink loop", "ready"),
        ratio("tidegate", "ready"),
        ratio("hand-written", "ready"),
    ]
