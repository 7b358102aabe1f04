"""Plans run in turns, and what comes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.plan import Plan, Result
from bench.report import Line, Spread, ratios
from bench.stage import Stage

MICRO = 1e6
# More than any run reads: no contestant comes to the end of the log.
BACKLOG = 1_000_000


@dataclass(frozen=True, slots=True)
class Effort:
    """How often, and with how many events a run. `few` rounds are enough where no other program is compared."""

    rounds: int
    events: int

    @property
    def few(self) -> int:
        return min(self.rounds, 3)


Measure = Callable[[Stage, Effort], Awaitable[Sequence[Line]]]


@dataclass(frozen=True, slots=True)
class Found:
    """The results of each plan, round by round."""

    results: Mapping[str, Sequence[Result]]

    def rates(self, name: str) -> list[float]:
        """Events a second."""
        return [each.rate for each in self.results[name]]

    def costs(self, name: str) -> list[float]:
        """Microseconds of CPU of the process an event."""
        return [each.cpu_seconds / each.events * MICRO for each in self.results[name]]

    def rate_ratios(self, ours: str, theirs: str) -> Spread:
        return ratios(self.rates(ours), self.rates(theirs))

    def cost_ratios(self, ours: str, theirs: str) -> Spread:
        return ratios(self.costs(ours), self.costs(theirs))

    def rate_lines(self) -> list[Line]:
        return [Line(f"{name}: events/s", Spread(self.rates(name))) for name in self.results]

    def cost_lines(self) -> list[Line]:
        return [Line(f"{name}: CPU an event", Spread(self.costs(name)), 2, " µs") for name in self.results]


async def interleaved(stage: Stage, rounds: int, plans: Mapping[str, Plan]) -> Found:
    """Every plan once a round, each round beginning with another one: what drifts touches all alike."""
    found: dict[str, list[Result]] = {name: [] for name in plans}
    names = list(plans)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            result = await stage.run(plans[name])
            found[name].append(result)
            print(f"  round {number + 1}/{rounds}  {name:20} {result.rate:10,.0f} events/s", flush=True)
    return Found(found)
