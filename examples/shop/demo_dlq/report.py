"""What the rehearsed and killed replay came to: one structure, printed as a table or written as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from examples.shop.demo.findings import Findings, print_findings
from examples.shop.demo_dlq.kill import ReplayKill


@dataclass
class Report(Findings):
    """All figures. `failures` is empty if everything is as it must be.

    `parked`: events that waited; `kill`: what was killed in the middle of what; `others`: by how much everybody else's
    counts have grown through the replay; `names`: of some orders that were dead.
    """

    trial: str
    orders: int
    produced: int = 0
    seconds: float = 0.0
    letters: int = 0
    keys: int = 0
    parked: int = 0
    rehearsal: Mapping[str, Any] = field(default_factory=dict)
    run: int | None = None
    kill: ReplayKill | None = None
    others: Mapping[str, int] = field(default_factory=dict)
    worker_exits: dict[str, int] = field(default_factory=dict)


def print_report(report: Report, next_commands: Sequence[str]) -> None:
    """The table, and what to type next."""
    line = f"{report.produced:,} records of {report.orders:,} orders, {report.seconds:.1f} s in all"
    print_findings(report, [line], next_commands)
