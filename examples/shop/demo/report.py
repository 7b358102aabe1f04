"""What the trial found: one structure, printed as tables or written as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from examples.shop.demo.kill import Kill

_PIPE_COLUMNS = 120
_DIFFERENCES_SHOWN = 20


@dataclass
class Report:
    """All figures of a trial. `failures` is empty if everything is as it must be."""

    run: str
    orders: int
    produced: int = 0
    repeats: int = 0
    poison: int = 0
    seconds: float = 0.0
    settling_seconds: float = 0.0
    events_per_second: float = 0.0
    claimed: Mapping[str, int] = field(default_factory=dict)
    duplicates_dropped: Mapping[str, int] = field(default_factory=dict)
    dead_letters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    freshness_seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    kill: Kill | None = None
    worker_exits: Mapping[str, int] = field(default_factory=dict)
    figures: Sequence[tuple[str, Any, Any]] = ()
    sabotaged: str = ""
    failures: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"ok": not self.failures, **asdict(self)}


def print_report(report: Report, letter: str, next_commands: Sequence[str]) -> None:
    """The tables, one dead letter, and what to type next."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=_PIPE_COLUMNS, highlight=False)
    console.print()
    console.print(_summary(report))
    console.print(_letters(report))
    console.print(_figures(report))
    if letter:
        console.print(f"\n[bold]One dead letter, as an operator sees it[/bold]\n{letter}")
    console.print("\n[bold]Next[/bold]  " + "\n      ".join(next_commands), soft_wrap=True)
    _print_outcome(console, report)


def opened_at(kill: Kill) -> str:
    """Where the killed transactions' batches begin."""
    return ", ".join(f"{batch.job} {batch.partition}@{batch.next_offset}" for batch in kill.batches)


def applied_at(kill: Kill) -> str:
    """Up to where projections were settled, and an order that their sinks knew beyond, with its first record."""
    return ", ".join(
        f"{standing.job} {standing.partition}@{standing.next_offset} shows {first.order} of {first.offset}"
        for standing, first in ((each.standing, each.first) for each in kill.applied)
    )


def _summary(report: Report) -> Table:
    table = _table("The trial", "", "")
    lines = [
        ("produced", f"{report.produced:,} records: {report.repeats:,} repeats, {report.poison} poison"),
        (
            "time",
            f"{report.settling_seconds:.1f} s from the first record to all settled, {report.seconds:.1f} s in all",
        ),
        ("speed", f"{report.events_per_second:,.0f} records/s, each handled by {len(report.claimed)} jobs"),
    ]
    if report.kill is not None:
        lines.append(("killed", f"{report.kill.worker} with SIGKILL, a transaction open at {opened_at(report.kill)}"))
        lines.append(("", f"written to a sink and not settled: {applied_at(report.kill)}"))
    for job, (p50, p99) in report.freshness_seconds.items():
        count, dropped = report.claimed.get(job, 0), report.duplicates_dropped[job]
        lines.append(
            (job, f"{count:,} events once, {dropped:,} duplicates dropped, fresh ≤ {p50:g} s (p50), ≤ {p99:g} s (p99)")
        )
    for line in lines:
        table.add_row(*line)
    return table


def _letters(report: Report) -> Table:
    jobs = list(report.dead_letters)
    table = _table("Dead letters by reason", "reason", *jobs)
    for reason in sorted({reason for counts in report.dead_letters.values() for reason in counts}):
        table.add_row(reason, *(str(report.dead_letters[job].get(reason, "")) for job in jobs))
    return table


def _figures(report: Report) -> Table:
    table = _table("Expected = found", "figure", "expected", "found", "")
    for what, expected, found in report.figures:
        table.add_row(what, f"{expected:,}", f"{found:,}", "=" if expected == found else "[bold red]≠[/bold red]")
    return table


def _print_outcome(console: Console, report: Report) -> None:
    if not report.failures:
        console.print("\n[bold green]Every figure is as it must be.[/bold green]")
        return
    console.print(f"\n[bold red]{len(report.failures)} things are not as they must be:[/bold red]")
    for failure in report.failures[:_DIFFERENCES_SHOWN]:
        console.print(f"  {failure}", markup=False)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=any(columns))
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 or not column else "right")
    return table
