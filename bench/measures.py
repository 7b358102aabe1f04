"""What is measured. Each measure takes the stage and answers with lines of the report."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from bench.contestant import Plan, Result
from bench.report import Line, Spread, ratios
from bench.stage import Stage

# Waits in the topic behind what a run reads: no contestant ever comes to the end of the log.
BACKLOG = 1_000_000
_MICRO = 1e6


@dataclass(frozen=True, slots=True)
class Effort:
    """How often, and with how many events a run: at least two seconds of the fastest contestant's work."""

    rounds: int
    events: int


Measure = Callable[[Stage, Effort], Awaitable[Sequence[Line]]]


async def throughput(stage: Stage, effort: Effort) -> Sequence[Line]:
    """Ours against the same work without dedupe, and against a hand-written loop with the same dedupe."""
    found = await _interleaved(
        stage, effort, {name: Plan(contestant=name) for name in ("raw", "hand-written", "tidegate")}
    )
    rates = {name: [r.rate for r in results] for name, results in found.items()}
    costs = {name: [r.cpu_seconds / r.events * _MICRO for r in results] for name, results in found.items()}
    return [
        *(Line(f"{name}: events/s", Spread(rate)) for name, rate in rates.items()),
        *(Line(f"{name}: CPU per event", Spread(cost), 2, " µs") for name, cost in costs.items()),
        *(_postgres(name, found[name]) for name in ("hand-written", "tidegate")),
        Line(
            "rate, tidegate / raw loop without dedupe",
            ratios(rates["tidegate"], rates["raw"]),
            2,
            at_least=0.30,
            is_binding=True,
        ),
        Line("rate, tidegate / hand-written", ratios(rates["tidegate"], rates["hand-written"]), 2),
        Line("CPU, tidegate / hand-written", ratios(costs["tidegate"], costs["hand-written"]), 2, at_most=1.35),
    ]


def _postgres(name: str, results: Sequence[Result]) -> Line:
    found = Spread([r.postgres_cpu_seconds / r.events * _MICRO for r in results])
    return Line(f"{name}: CPU of its Postgres backends per event", found, 2, " µs")


async def _interleaved(stage: Stage, effort: Effort, plans: dict[str, Plan]) -> dict[str, list[Result]]:
    """Every plan once a round, the order turned by one each round: what drifts touches all alike."""
    found: dict[str, list[Result]] = {name: [] for name in plans}
    topic = await stage.orders(BACKLOG)
    names = list(plans)
    for number in range(effort.rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            result = await stage.run(plans[name].on(topic, effort.events))
            found[name].append(result)
            print(f"  round {number + 1}/{effort.rounds}  {name:16} {result.rate:10,.0f} events/s", flush=True)
    return found


MEASURES: dict[str, Measure] = {"throughput": throughput}
