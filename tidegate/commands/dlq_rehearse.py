"""`tidegate dlq replay --rehearse`: what a replay would come to with today's code, and nothing changed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from tidegate.app import App
from tidegate.commands.dlq_run_output import Tenths
from tidegate.commands.options import actor_of, print_json, say, tell
from tidegate.commands.readable import counted
from tidegate.jobs.replays import Asked
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.logs import configure_logs
from tidegate_kernel.permissions import Actor
from tidegate_kernel.postgres import Connection, connect
from tidegate_kernel.settings import Settings

if TYPE_CHECKING:  # with it come the clients of Kafka and all sinks
    from tidegate.rehearsing import RehearsalReport

Choose = Callable[[Connection, Actor], Awaitable[Asked | None]]
"""From who asks to what is asked for; None where there is nothing."""

_LEFT = 1


def rehearse_letters(app: App, settings: Settings, choose: Choose, *, next_command: str, as_json: bool) -> None:
    """Shows what a replay of the chosen letters would come to. Ends with 1 where something would be left."""
    from tidegate.commands.signals import run_until_signal

    # Handlers may log what they do, and none of it is done.
    configure_logs(style=settings.log_format, level="warning" if settings.log_level == "info" else settings.log_level)
    report = run_until_signal(
        lambda stop: _rehearse(app, settings, choose, stop), drain=settings.drain_timeout, late_code=_LEFT
    )
    if report is None:
        say("there is nothing to be rehearsed")
        if as_json:
            print_json({"is_done": False, "rehearsal": None})
        return
    if as_json:
        print_json({"is_done": False, "rehearsal": asdict(report) | {"is_clean": report.is_clean}})
    else:
        tell(*told_rehearsal(report))
        say(f"nothing was changed; the plan of the replay: {next_command}")
    if not report.is_clean:
        raise typer.Exit(_LEFT)


async def _rehearse(app: App, settings: Settings, choose: Choose, stop: asyncio.Event) -> RehearsalReport | None:
    from tidegate.rehearsing import RehearsalOptions, refuse_outside_calls, rehearse

    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        actor = await actor_of(settings, connection)
        asked = await choose(connection, actor)
    if asked is None:
        return None
    refuse_outside_calls(app, app.job(asked.code))
    options = RehearsalOptions(on_progress=_Progress().show, on_wait=say)
    return await rehearse(app, settings, asked, options, actor=actor, stop=stop)


class _Progress:
    """A line for each tenth, where it takes so long that somebody wants to know."""

    def __init__(self) -> None:
        self._tenths = Tenths(told=0)

    def show(self, letters: int, total: int) -> None:
        is_worth_it = letters < total or not sys.stdout.isatty()
        if self._tenths.is_new(letters, total) and is_worth_it:
            say(f"rehearsal: {letters:,} of {total:,} letters")


def told_rehearsal(report: RehearsalReport) -> Iterator[str]:
    """Lines about what would become of the letters; the numbers add up to them."""
    yield f"rehearsal of {counted(report.letters, 'letter')} of job {report.job!r}, plan {report.digest}"
    yield f"  {report.passing:,} would pass"
    for number, what in (
        (report.failing, "would fail or be refused"),
        (report.behind, "would be left behind others of their keys"),
        (report.not_tried, "were not tried"),
    ):
        if number:
            yield f"  {number:,} {what}"
    if report.parked_passing or report.parked_failing:
        yield f"  of the events parked behind them {report.parked_passing:,} would pass, {report.parked_failing:,} fail"
    for each in report.failures:
        told = f"{each.reason} {each.fingerprint} in {each.handler or 'no handler'}: {each.error_class}"
        where = f"as {each.sample}" if each.sample else f"as the event at {each.place}"
        yield f"  {each.letters + each.parked:,} would fail with {told}: {each.error_message} ({where})"
    if report.all_failures > len(report.failures):
        yield f"  and {report.all_failures - len(report.failures):,} more kinds of failures"
