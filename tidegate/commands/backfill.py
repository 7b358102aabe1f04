"""The part of `tidegate run` that re-reads a range: its start, its progress, its report."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from consumers.backfill import Progress
from tidegate.app import App
from tidegate.backfilling import BackfillOptions, BackfillReport, BackfillStart, run_backfill
from tidegate.commands.moments import instant
from tidegate.commands.options import actor_of, print_json, say
from tidegate.commands.signals import run_until_signal
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.postgres import connect
from tidegate_kernel.settings import Settings


class BackfillFlags(NamedTuple):
    """What the caller says yes to; in the order of `BackfillOptions`."""

    accept_gap: bool
    abandon: bool
    beyond_horizon: bool


def backfill_start(checkpoint: str | None, is_beginning: bool, time: str | None) -> BackfillStart:
    """Returns the one start that was given. Raises Misconfigured for none, several, or a time that is none."""
    if [checkpoint is not None, is_beginning, time is not None].count(True) != 1:
        raise Misconfigured("--backfill needs one of --from-checkpoint NAME, --from-beginning, --from-time ISO")
    return BackfillStart(checkpoint, None if time is None else instant("--from-time", time), is_beginning)


def backfill(
    app: App,
    settings: Settings,
    codes: Sequence[str],
    start: BackfillStart,
    flags: BackfillFlags,
    *,
    as_json: bool,
) -> None:
    """Runs the backfill of the one job named and prints its report; exit 1 if it was stopped before its end."""
    if len(codes) != 1:
        raise Misconfigured(f"--backfill takes one job at a time, not {len(codes)}")
    with shown_progress() as show:
        options = BackfillOptions(start, *flags, on_progress=show, on_wait=say)
        report = run_until_signal(
            lambda stop: _run(app, settings, codes[0], options, stop),
            drain=settings.drain_timeout,
            late_code=1,
        )
    if as_json:
        print_json({**asdict(report), "progress": report.progress._asdict()})
    else:
        typer.echo(told_backfill(report))
    if not report.is_done:
        raise typer.Exit(1)


async def _run(
    app: App, settings: Settings, code: str, options: BackfillOptions, stop: asyncio.Event
) -> BackfillReport:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        actor = await actor_of(settings, connection)
    return await run_backfill(app, settings, code, options, actor=actor, stop=stop)


def told_backfill(report: BackfillReport) -> str:
    """What it came to, for a person."""
    tally = report.tally
    end = "done" if report.is_done else "stopped; the same command resumes it"
    counts = f"{tally.applied} applied, {tally.duplicates} duplicates, {tally.skipped} skipped, {tally.stale} stale"
    if tally.parked:
        counts += f", {tally.parked} parked behind dead letters of their keys"
    lines = [
        f"backfill {report.run} of {report.job!r}{' (resumed)' if report.was_resumed else ''}: {end}",
        f"{tally.records} records: {counts}, {tally.dead_letters} dead letters",
    ]
    lines += [f"gap accepted: {where} lacked {count} records" for where, count in report.gaps.items()]
    return "\n".join(lines)


@contextmanager
def shown_progress() -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal; elsewhere a line for each tenth."""
    if not sys.stderr.isatty():
        yield _Lines().show
        return
    columns = (TextColumn("backfill"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("backfill", total=None)
        yield lambda progress: bar.update(task, completed=progress.done, total=progress.total)


class _Lines:
    def __init__(self) -> None:
        self._tenths = -1

    def show(self, progress: Progress) -> None:
        tenths = 10 * progress.done // progress.total if progress.total else 10
        if tenths > self._tenths:
            self._tenths = tenths
            say(f"backfill: {progress.done} of {progress.total} offsets")
