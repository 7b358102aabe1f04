"""Numbers as a person reads them: medians with their range, and whether a goal was reached."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """A number measured several times."""

    values: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def spell(self, digits: int = 0, unit: str = "") -> str:
        """Median and range."""
        low, high = min(self.values), max(self.values)
        text = f"{self.median:,.{digits}f}{unit}"
        return text if len(self.values) == 1 else f"{text} ({low:,.{digits}f}–{high:,.{digits}f})"


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the report. `goal` says what was to be reached; None where nothing was promised."""

    what: str
    found: Spread
    digits: int = 0
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    is_binding: bool = False
    """Whether a missed goal fails the benchmark."""

    @property
    def is_reached(self) -> bool:
        value = self.found.median
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    @property
    def goal(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:,g}{self.unit}"
        return "" if self.at_most is None else f"≤ {self.at_most:,g}{self.unit}"

    @property
    def verdict(self) -> str:
        return "" if not self.goal else "reached" if self.is_reached else "MISSED"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Round by round: what disturbs a round disturbs both sides of its ratio."""
    return Spread([our / their for our, their in zip(ours, theirs, strict=True)])


_ABOUT = (
    "Medians (lowest–highest) of interleaved runs, each in a process, group and inbox database of its own. "
    "Absolute rates move with whatever else this machine does; ratios are taken round by round."
)


def table(found: Mapping[str, Sequence[Line]]) -> str:
    """The report as text."""
    lines = [line for each in found.values() for line in each]
    width = max(len(line.what) for line in lines)
    texts = {id(line): line.found.spell(line.digits, line.unit) for line in lines}
    broad = max(map(len, texts.values()))
    rows = ["", _ABOUT]
    for name, each in found.items():
        rows += ["", name]
        rows += [f"  {x.what:{width}}  {texts[id(x)]:>{broad}}  {x.goal:>10}  {x.verdict}".rstrip() for x in each]
    return "\n".join(rows)


def as_json(found: Mapping[str, Sequence[Line]]) -> str:
    """The report for programs: every value that was measured."""
    return json.dumps({name: [_plain(line) for line in lines] for name, lines in found.items()}, indent=2)


def _plain(line: Line) -> dict[str, object]:
    return {
        "what": line.what,
        "unit": line.unit.strip(),
        "median": line.found.median,
        "values": list(line.found.values),
        "goal": line.goal,
        "verdict": line.verdict,
    }
