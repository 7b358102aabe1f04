"""What the story came to: one structure, printed as a table or written as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from examples.shop.demo.findings import Findings, print_findings


@dataclass
class Report(Findings):
    """All figures. `failures` is empty if everything is as it must be.

    `claims`: runs that each of the three schedulers had claimed before one of them was killed; `killed`: whose lease
    it held, and how many seconds later its run was found and gone on with.
    """

    trial: str
    orders: int
    seconds: float = 0.0
    claims: dict[str, int] = field(default_factory=dict)
    killed: str = ""
    found_after_seconds: float = 0.0
    worker_exits: dict[str, int] = field(default_factory=dict)


def print_report(report: Report, next_commands: Sequence[str]) -> None:
    """The table, and what to type next."""
    total = sum(report.claims.values()) or 1
    shares = ", ".join(f"{name} {count} ({count / total:.0%})" for name, count in sorted(report.claims.items()))
    lines = [
        f"runs claimed: {shares}",
        f"killed: {report.killed}; its run went on after {report.found_after_seconds:.1f} s",
        f"{report.orders:,} orders, {report.seconds:.1f} s in all",
    ]
    print_findings(report, lines, next_commands)
