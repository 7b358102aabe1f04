"""What a story came to, figure by figure: expected, found, and whether all is as it must be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

_PIPE_COLUMNS = 120
_FAILURES_SHOWN = 20


@dataclass(kw_only=True)
class Findings:
    """All figures. `failures` is empty if everything is as it must be."""

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


def print_findings(findings: Findings, lines: Sequence[str], next_commands: Sequence[str]) -> None:
    """The table, what else there is to tell, what to type next, and the outcome."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=_PIPE_COLUMNS, highlight=False)
    console.print()
    console.print(_figures(findings))
    console.print()
    for line in lines:
        console.print(line, markup=False)
    console.print("\n[bold]Next[/bold]  " + "\n      ".join(next_commands), soft_wrap=True)
    if not findings.failures:
        console.print("\n[bold green]Every figure is as it must be.[/bold green]")
        return
    console.print(f"\n[bold red]{len(findings.failures)} things are not as they must be:[/bold red]")
    for failure in findings.failures[:_FAILURES_SHOWN]:
        console.print(f"  {failure}", markup=False)


def _figures(findings: Findings) -> Table:
    table = Table(title="Expected = found", title_justify="left", title_style="bold", box=None)
    for name in ("figure", "expected", "found", ""):
        table.add_column(name, justify="right" if name in ("expected", "found") else "left")
    for what, expected, found in findings.figures:
        sign = "=" if expected == found else "[bold red]≠[/bold red]"
        table.add_row(what, _told(expected), _told(found), sign)
    return table


def _told(figure: object) -> str:
    return f"{figure:,}" if isinstance(figure, int) else str(figure)
