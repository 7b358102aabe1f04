"""What the story came to: one structure, printed as a table or written as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

_PIPE_COLUMNS = 120
_SHOWN = 20


@dataclass
class Report:
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
    total = sum(report.claims.values()) or 1
    shares = ", ".join(f"{name} {count} ({count / total:.0%})" for name, count in sorted(report.claims.items()))
    console.print(f"\nruns claimed: {shares}", markup=False)
    console.print(f"killed: {report.killed}; its run went on after {report.found_after_seconds:.1f} s", markup=False)
    console.print(f"{report.orders:,} orders, {report.seconds:.1f} s in all")
    console.print("\n[bold]Next[/bold]  " + "\n      ".join(next_commands), soft_wrap=True)
    if not report.failures:
        console.print("\n[bold green]Every figure is as it must be.[/bold green]")
        return
    console.print(f"\n[bold red]{len(report.failures)} things are not as they must be:[/bold red]")
    for failure in report.failures[:_SHOWN]:
        console.print(f"  {failure}", markup=False)


def _figures(report: Report) -> Table:
    table = Table(title="Expected = found", title_justify="left", title_style="bold", box=None)
    for name in ("figure", "expected", "found", ""):
        table.add_column(name, justify="right" if name in ("expected", "found") else "left")
    for what, expected, found in report.figures:
        sign = "=" if expected == found else "[bold red]≠[/bold red]"
        table.add_row(what, _told(expected), _told(found), sign)
    return table


def _told(figure: object) -> str:
    return f"{figure:,}" if isinstance(figure, int) else str(figure)
