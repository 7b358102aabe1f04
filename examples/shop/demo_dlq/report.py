"""What the rehearsed and killed replay came to: one structure, printed as a table or written as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from examples.shop.demo_dlq.kill import ReplayKill

_PIPE_COLUMNS = 120
_DIFFERENCES_SHOWN = 20


@dataclass
class Report:
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
    figures: list[tuple[str, Any, Any]] = field(default_factory=list)
    sabotaged: str = ""
    failures: list[str] = field(default_factory=list)

    def figure(self, what: str, expected: object, found: object) -> None:
        """What differs is a failure."""
        self.figures.append((what, expected, found))
        if expected != found:
            self.failures.append(f"{what}: expected {expected}, found {found}")

    def require(self, is_so: bool, complaint: str) -> None:
        """What is not so is a failure."""
        if not is_so:
            self.failures.append(complaint)

    def as_json(self) -> dict[str, Any]:
        return {"ok": not self.failures, **asdict(self)}


def print_report(report: Report, next_commands: Sequence[str]) -> None:
    """The table, and what to type next."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=_PIPE_COLUMNS, highlight=False)
    console.print()
    console.print(_figures(report))
    console.print(f"\n{report.produced:,} records of {report.orders:,} orders, {report.seconds:.1f} s in all")
    console.print("\n[bold]Next[/bold]  " + "\n      ".join(next_commands), soft_wrap=True)
    if not report.failures:
        console.print("\n[bold green]Every figure is as it must be.[/bold green]")
        return
    console.print(f"\n[bold red]{len(report.failures)} things are not as they must be:[/bold red]")
    for failure in report.failures[:_DIFFERENCES_SHOWN]:
        console.print(f"  {failure}", markup=False)


def _figures(report: Report) -> Table:
    table = Table(title="Expected = found", title_justify="left", title_style="bold", box=None)
    for name in ("figure", "expected", "found", ""):
        table.add_column(name, justify="right" if name in ("expected", "found") else "left")
    for what, expected, found in report.figures:
        sign = "=" if expected == found else "[bold red]≠[/bold red]"
        table.add_row(what, f"{expected:,}", f"{found:,}", sign)
    return table
