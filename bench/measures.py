"""What is measured. Each measure takes the stage and answers with lines of the report."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import asyncpg
import msgspec

from bench.contestant import Plan, Result
from bench.report import Line, Spread, ratios
from bench.stage import Stage
from bench.stages import stage_costs
from bench.worker import megabytes_while_catching_up, seconds_to_first_event

# More than any run reads: no contestant comes to the end of the log.
BACKLOG = 1_000_000
_REPEATED_BACKLOG = 400_000
_LETTERS = 10_000
_STORE_SECONDS = 0.015
_MICRO = 1e6
_TIDEGATE = Plan(contestant="tidegate")


@dataclass(frozen=True, slots=True)
class Effort:
    """How often, and with how many events a run. `few` rounds are enough where no other program is compared."""

    rounds: int
    events: int

    @property
    def few(self) -> int:
        return min(self.rounds, 3)


Measure = Callable[[Stage, Effort], Awaitable[Sequence[Line]]]
_Found: TypeAlias = Mapping[str, Sequence[Result]]


async def throughput(stage: Stage, effort: Effort) -> Sequence[Line]:
    """Against the same work without dedupe, and against a hand-written loop with the same dedupe statement."""
    topic = await stage.orders(BACKLOG)
    plans = {name: Plan(contestant=name).on(topic, effort.events) for name in ("raw", "hand-written", "tidegate")}
    found = await _interleaved(stage, effort.rounds, plans)
    rate, cpu = _rates(found), _costs(found)
    return [
        *_rate_lines(found),
        *(Line(f"{name}: CPU an event", Spread(values), 2, " µs") for name, values in cpu.items()),
        *(Line(f"{name}: CPU of its Postgres backends an event", _postgres(found[name]), 2, " µs") for name in plans),
        Line("rate, tidegate / raw", ratios(rate["tidegate"], rate["raw"]), 2, at_least=0.30, is_binding=True),
        Line("rate, tidegate / hand-written", ratios(rate["tidegate"], rate["hand-written"]), 2),
        Line("CPU, tidegate / hand-written", ratios(cpu["tidegate"], cpu["hand-written"]), 2, at_most=1.35),
    ]


async def memory(stage: Stage, effort: Effort) -> Sequence[Line]:  # noqa: ARG001  # one run says it
    """A worker process with a million records waiting: its resident memory until the last one is settled."""
    samples = await megabytes_while_catching_up(stage, await stage.orders(BACKLOG), BACKLOG)
    quarter = max(1, len(samples) // 4)
    early, late = (statistics.median(part) for part in (samples[quarter : 2 * quarter] or samples, samples[-quarter:]))
    return [
        Line("peak", Spread([max(samples)]), 0, " MB", at_most=250, is_binding=True),
        Line("last quarter / second quarter", Spread([late / early]), 2, at_most=1.1),
    ]


async def start(stage: Stage, effort: Effort) -> Sequence[Line]:
    """From starting the process to its first settled batch, servers being up."""
    topic = await stage.orders(BACKLOG)
    return [
        Line(
            "start to first event",
            Spread([await seconds_to_first_event(stage, topic) for _ in range(effort.few)]),
            2,
            " s",
            at_most=3,
        )
    ]


async def redelivery(stage: Stage, effort: Effort) -> Sequence[Line]:
    """Records below the position come again, as after a failed fetch; against the first pass."""
    topic = await stage.orders(BACKLOG)
    plans = {"first pass": _TIDEGATE, "redelivery": Plan(contestant="redelivery")}
    found = await _interleaved(stage, effort.few, {n: p.on(topic, effort.events * 2 // 3) for n, p in plans.items()})
    rate = _rates(found)
    ratio = ratios(rate["redelivery"], rate["first pass"])
    return [*_rate_lines(found), Line("rate, redelivery / first pass", ratio, 1, at_least=3.5)]


async def duplicates(stage: Stage, effort: Effort) -> Sequence[Line]:
    """Half of the records repeat an earlier event at a new offset, so that the inbox has to find out."""
    events = effort.events // 2
    plans = {
        "all new": _TIDEGATE.on(await stage.orders(BACKLOG), events),
        "half repeated": _TIDEGATE.on(await stage.repeated_orders(_REPEATED_BACKLOG), events),
    }
    found = await _interleaved(stage, effort.few, plans)
    rate = _rates(found)
    return [
        *_rate_lines(found),
        Line("rate, half repeated / all new", ratios(rate["half repeated"], rate["all new"]), 2, at_least=0.9),
    ]


async def replay(stage: Stage, effort: Effort) -> Sequence[Line]:
    """Dead letters, a key each, through a mended handler of one statement; with parking, and without an order."""
    names = ("replay without order", "replay")
    found = await _interleaved(stage, effort.rounds, {n: Plan(contestant=n, events=_LETTERS) for n in names})
    rate, costs = _rates(found), _costs(found)
    return [
        *(Line(f"{name}: CPU a letter", Spread(costs[name]), 0, " µs") for name in names),
        Line("replay without order: letters/s", Spread(rate["replay without order"])),
        Line("replay: letters/s", Spread(rate["replay"]), at_least=2000),
        Line("rate, replay / without order", ratios(rate["replay"], rate["replay without order"]), 2),
    ]


async def lanes(stage: Stage, effort: Effort) -> Sequence[Line]:
    """Two lanes against one, where the store takes 15 ms a request."""
    topic, events = await stage.orders(BACKLOG), effort.events // 3
    plans = {
        name: msgspec.structs.replace(_TIDEGATE, lanes=count, sink_delay=_STORE_SECONDS).on(topic, events)
        for name, count in (("one lane", 1), ("two lanes", 2))
    }
    found = await _interleaved(stage, effort.few, plans)
    rate = _rates(found)
    ratio = ratios(rate["two lanes"], rate["one lane"])
    return [*_rate_lines(found), Line("rate, two lanes / one", ratio, 2, at_least=1.3)]


async def storage(stage: Stage, effort: Effort) -> Sequence[Line]:
    """What an event costs the database: write-ahead log, and bytes of the inbox with its index."""
    topic, events, wal, size = await stage.orders(BACKLOG), effort.events // 3, [], []
    for _ in range(effort.few):
        async with stage.fresh_database() as dsn:
            plan = msgspec.structs.replace(_TIDEGATE.on(topic, events), service=await stage.fresh_service())
            await stage.run(plan, dsn=dsn)
            claimed, _ = await _inbox(dsn, "CHECKPOINT")
            result = await stage.run(plan, dsn=dsn)
            rows, total = await _inbox(dsn)
            wal.append(result.wal_bytes / (rows - claimed))
            size.append(total / rows)
    return [
        Line("log a new event, right after a checkpoint", Spread(wal), 0, " B", at_most=800),
        Line("inbox an event", Spread(size), 0, " B", at_most=110),
    ]


async def batches(stage: Stage, effort: Effort) -> Sequence[Line]:
    """Events in a batch."""
    topic, sizes = await stage.orders(BACKLOG), (250, 500, 1000, 2000)
    plans = {f"{n} a batch": msgspec.structs.replace(_TIDEGATE, batch_size=n).on(topic, effort.events) for n in sizes}
    found = await _interleaved(stage, effort.few, plans)
    costs = _costs(found)
    return [*_rate_lines(found), *(Line(f"{n}: CPU an event", Spread(costs[n]), 2, " µs") for n in plans)]


async def settings(stage: Stage, effort: Effort) -> Sequence[Line]:
    """What single settings of the process are worth: the event loop, the log."""
    topic = await stage.orders(BACKLOG)
    variants = {
        "as it is": _TIDEGATE,
        "asyncio's own loop": msgspec.structs.replace(_TIDEGATE, loop="asyncio"),
        "nothing logged": msgspec.structs.replace(_TIDEGATE, is_silent=True),
    }
    found = await _interleaved(stage, effort.few, {n: p.on(topic, effort.events) for n, p in variants.items()})
    costs = _costs(found)
    return [*_rate_lines(found), *(Line(f"{n}: CPU an event", Spread(costs[n]), 2, " µs") for n in variants)]


async def stages(stage: Stage, effort: Effort) -> Sequence[Line]:  # noqa: ARG001  # needs no server
    """CPU of each stage of a batch, from memory; a value a batch."""
    costs = await stage_costs()
    return [Line(name, Spread(values), 2, " µs") for name, values in costs.items()]


async def naive(stage: Stage, effort: Effort) -> Sequence[Line]:
    """Against how it is often written: record by record, and an inbox of single rows."""
    topic = await stage.orders(BACKLOG)
    plans = {
        "tidegate": _TIDEGATE.on(topic, effort.events),
        "row at a time": Plan(contestant="row at a time").on(topic, effort.events // 30),
        "naive": Plan(contestant="naive").on(topic, effort.events // 150),
    }
    found = await _interleaved(stage, effort.few, plans)
    rate = _rates(found)
    return [
        *_rate_lines(found),
        Line("rate, tidegate / naive", ratios(rate["tidegate"], rate["naive"]), 0, at_least=40),
        Line("rate, tidegate / row at a time", ratios(rate["tidegate"], rate["row at a time"]), 1),
    ]


async def elasticsearch(stage: Stage, effort: Effort) -> Sequence[Line]:
    """From Kafka to real Elasticsearch, against a bare loop of the same bulk requests, their bodies made before."""
    topic, events = await stage.orders(BACKLOG), effort.events // 6
    plans = {
        "bare requests": Plan(contestant="elasticsearch requests").on(topic, events),
        "tidegate": Plan(contestant="elasticsearch").on(topic, events),
    }
    found = await _interleaved(stage, effort.rounds, plans)
    rate = _rates(found)
    ratio = ratios(rate["tidegate"], rate["bare requests"])
    return [*_rate_lines(found), Line("rate, tidegate / bare requests", ratio, 2, at_least=0.8)]


async def clickhouse(stage: Stage, effort: Effort) -> Sequence[Line]:
    """To real ClickHouse, through the sink and from Kafka, against a bare loop of the same inserts, made before."""
    topic, events = await stage.orders(BACKLOG), effort.events * 2
    plans = {
        "bare inserts": Plan(contestant="clickhouse inserts").on(topic, events),
        "sink": Plan(contestant="clickhouse sink").on(topic, events),
        "tidegate": Plan(contestant="clickhouse").on(topic, events),
    }
    found = await _interleaved(stage, effort.rounds, plans)
    rate = _rates(found)
    return [
        *_rate_lines(found),
        Line("rate, sink / bare inserts", ratios(rate["sink"], rate["bare inserts"]), 2, at_least=0.8),
        Line("rate, tidegate / bare inserts", ratios(rate["tidegate"], rate["bare inserts"]), 2, at_least=0.8),
    ]


PROMISED: Mapping[str, Measure] = {
    "throughput": throughput,
    "memory": memory,
    "start": start,
    "redelivery": redelivery,
    "duplicates": duplicates,
    "lanes": lanes,
    "storage": storage,
    "replay": replay,
}
"""What `make bench` measures."""

MEASURES: Mapping[str, Measure] = {
    **PROMISED,
    "stages": stages,
    "naive": naive,
    "elasticsearch": elasticsearch,
    "clickhouse": clickhouse,
    "batches": batches,
    "settings": settings,
}


async def _interleaved(stage: Stage, rounds: int, plans: Mapping[str, Plan]) -> _Found:
    """Every plan once a round, each round beginning with another one: what drifts touches all alike."""
    found: dict[str, list[Result]] = {name: [] for name in plans}
    names = list(plans)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            result = await stage.run(plans[name])
            found[name].append(result)
            print(f"  round {number + 1}/{rounds}  {name:20} {result.rate:10,.0f} events/s", flush=True)
    return found


def _rates(found: _Found) -> dict[str, list[float]]:
    return {name: [r.rate for r in results] for name, results in found.items()}


def _costs(found: _Found) -> dict[str, list[float]]:
    return {name: [r.cpu_seconds / r.events * _MICRO for r in results] for name, results in found.items()}


def _rate_lines(found: _Found) -> list[Line]:
    return [Line(f"{name}: events/s", Spread(rates)) for name, rates in _rates(found).items()]


def _postgres(results: Sequence[Result]) -> Spread:
    return Spread([r.postgres_cpu_seconds / r.events * _MICRO for r in results])


_INBOX = """
SELECT (SELECT count(*) FROM tidegate.inbox), sum(pg_total_relation_size(relid))
FROM pg_partition_tree('tidegate.inbox')
WHERE isleaf AND pg_relation_size(relid) > 0
"""


async def _inbox(dsn: str, then: str = "SELECT 1") -> tuple[int, int]:
    """Rows and bytes of the inbox, its index included; runs `then` afterwards."""
    connection = await asyncpg.connect(dsn)
    try:
        row = await connection.fetchrow(_INBOX)
        await connection.execute(then)
    finally:
        await connection.close()
    assert row is not None  # two aggregates always answer
    return int(row[0]), int(row[1])
