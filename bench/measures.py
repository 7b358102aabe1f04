"""What is measured. Each measure takes the stage and answers with lines of the report."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import asyncpg
import msgspec

from bench.comparing import BACKLOG, MICRO, Effort, Measure, interleaved
from bench.plan import Plan, Result
from bench.report import Line, Spread
from bench.stage import Stage
from bench.stages import stage_costs
from bench.stores import clickhouse, elasticsearch
from bench.stub import BATCH_SIZE
from bench.worker import megabytes_while_catching_up, seconds_to_first_event

_REPEATED_BACKLOG = 400_000
_LETTERS = 10_000
_STORE_SECONDS = 0.015
_TIDEGATE = Plan(contestant="tidegate")


async def throughput(stage: Stage, effort: Effort) -> Sequence[Line]:
    """Against the same work without dedupe, and against a hand-written loop with the same dedupe statement."""
    topic = await stage.orders(BACKLOG)
    plans = {name: Plan(contestant=name).on(topic, effort.events) for name in ("raw", "hand-written", "tidegate")}
    found = await interleaved(stage, effort.rounds, plans)
    return [
        *found.rate_lines(),
        *found.cost_lines(),
        *(
            Line(f"{name}: CPU of its Postgres backends an event", _postgres(results), 2, " µs")
            for name, results in found.results.items()
        ),
        Line("rate, tidegate / raw", found.rate_ratios("tidegate", "raw"), 2, at_least=0.30, is_binding=True),
        Line("rate, tidegate / hand-written", found.rate_ratios("tidegate", "hand-written"), 2),
        Line("CPU, tidegate / hand-written", found.cost_ratios("tidegate", "hand-written"), 2, at_most=1.35),
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
    found = await interleaved(stage, effort.few, {n: p.on(topic, effort.events * 2 // 3) for n, p in plans.items()})
    ratio = found.rate_ratios("redelivery", "first pass")
    return [*found.rate_lines(), Line("rate, redelivery / first pass", ratio, 1, at_least=3.5)]


async def duplicates(stage: Stage, effort: Effort) -> Sequence[Line]:
    """Half of the records repeat an earlier event at a new offset, so that the inbox has to find out."""
    events = effort.events // 2
    plans = {
        "all new": _TIDEGATE.on(await stage.orders(BACKLOG), events),
        "half repeated": _TIDEGATE.on(await stage.repeated_orders(_REPEATED_BACKLOG), events),
    }
    found = await interleaved(stage, effort.few, plans)
    return [
        *found.rate_lines(),
        Line("rate, half repeated / all new", found.rate_ratios("half repeated", "all new"), 2, at_least=0.9),
    ]


async def replay(stage: Stage, effort: Effort) -> Sequence[Line]:
    """Dead letters, a key each, through a mended handler of one statement; with parking, and without an order."""
    names = ("replay without order", "replay")
    found = await interleaved(stage, effort.rounds, {n: Plan(contestant=n, events=_LETTERS) for n in names})
    return [
        *(Line(f"{name}: CPU a letter", Spread(found.costs(name)), 0, " µs") for name in names),
        Line("replay without order: letters/s", Spread(found.rates("replay without order"))),
        Line("replay: letters/s", Spread(found.rates("replay")), at_least=2000),
        Line("rate, replay / without order", found.rate_ratios("replay", "replay without order"), 2),
    ]


async def lanes(stage: Stage, effort: Effort) -> Sequence[Line]:
    """Two lanes against one, where the store takes 15 ms a request."""
    topic, events = await stage.orders(BACKLOG), effort.events // 3
    plans = {
        name: msgspec.structs.replace(_TIDEGATE, lanes=count, sink_delay=_STORE_SECONDS).on(topic, events)
        for name, count in (("one lane", 1), ("two lanes", 2))
    }
    found = await interleaved(stage, effort.few, plans)
    ratio = found.rate_ratios("two lanes", "one lane")
    return [*found.rate_lines(), Line("rate, two lanes / one", ratio, 2, at_least=1.3)]


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
    found = await interleaved(stage, effort.few, plans)
    return [*found.rate_lines(), *found.cost_lines()]


async def settings(stage: Stage, effort: Effort) -> Sequence[Line]:
    """What single settings of the process are worth: the event loop, the log."""
    topic = await stage.orders(BACKLOG)
    variants = {
        "as it is": _TIDEGATE,
        "asyncio's own loop": msgspec.structs.replace(_TIDEGATE, loop="asyncio"),
        "nothing logged": msgspec.structs.replace(_TIDEGATE, is_silent=True),
    }
    found = await interleaved(stage, effort.few, {n: p.on(topic, effort.events) for n, p in variants.items()})
    return [*found.rate_lines(), *found.cost_lines()]


async def stages(stage: Stage, effort: Effort) -> Sequence[Line]:  # noqa: ARG001  # needs no server
    """CPU of each stage of a batch, from memory; a value a batch."""
    costs = await stage_costs()
    return [Line(name, Spread(values), 2, " µs") for name, values in costs.items()]


async def naive(stage: Stage, effort: Effort) -> Sequence[Line]:
    """Against how it is often written: record by record, and an inbox of single rows."""
    topic = await stage.orders(BACKLOG)
    plans = {
        "tidegate": _TIDEGATE.on(topic, effort.events),
        "row at a time": Plan(contestant="row at a time").on(topic, max(2 * BATCH_SIZE, effort.events // 30)),
        "naive": Plan(contestant="naive").on(topic, max(2 * BATCH_SIZE, effort.events // 150)),
    }
    found = await interleaved(stage, effort.few, plans)
    return [
        *found.rate_lines(),
        Line("rate, tidegate / naive", found.rate_ratios("tidegate", "naive"), 0, at_least=40),
        Line("rate, tidegate / row at a time", found.rate_ratios("tidegate", "row at a time"), 1),
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
    "elasticsearch": elasticsearch,
    "clickhouse": clickhouse,
}
"""What `make bench` measures."""

MEASURES: Mapping[str, Measure] = {
    **PROMISED,
    "stages": stages,
    "naive": naive,
    "batches": batches,
    "settings": settings,
}


def _postgres(results: Sequence[Result]) -> Spread:
    return Spread([r.postgres_cpu_seconds / r.events * MICRO for r in results])


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
