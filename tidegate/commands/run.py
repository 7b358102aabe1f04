"""`tidegate run`: a worker process, or a backfill."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Annotated

import typer

from tidegate.app import App
from tidegate.commands.backfill import BackfillFlags, backfill, backfill_start
from tidegate.commands.loading import load_app
from tidegate.commands.options import AppOption, JsonOption, examples, say, settings_of
from tidegate.commands.signals import run_until_signal
from tidegate.migrations.revisions import require_schema
from tidegate.worker import run_worker
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.logs import configure_logs
from tidegate_kernel.settings import Settings

EXAMPLES = examples(
    "tidegate run order-search --app shop.app:app",
    "tidegate run --all --lanes 4 --port 9464",
    "tidegate run --all --check                     [dim]# is everything there? then end[/dim]",
    "tidegate run order-search --backfill --from-checkpoint nightly",
)

_BACKFILL = "Backfill"


def run_command(
    jobs: Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help="Codes of the jobs to run.")] = None,
    app: AppOption = None,
    all_jobs: Annotated[bool, typer.Option("--all", help="Run every job of the application.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Start all but the consumers, then end.")] = False,
    lanes: Annotated[int | None, typer.Option(help="Batches of a job in hand at once; TIDEGATE_LANES.")] = None,
    port: Annotated[int | None, typer.Option(help="Of /metrics, /livez, /readyz; TIDEGATE_HTTP_PORT.")] = None,
    is_backfill: Annotated[
        bool, typer.Option("--backfill", rich_help_panel=_BACKFILL, help="Re-read a range instead, up to now.")
    ] = False,
    from_checkpoint: Annotated[
        str | None, typer.Option(metavar="NAME", rich_help_panel=_BACKFILL, help="From a checkpoint.")
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", rich_help_panel=_BACKFILL, help="From the first record kept.")
    ] = False,
    from_time: Annotated[
        str | None, typer.Option(metavar="ISO", rich_help_panel=_BACKFILL, help="From a time, as 2026-03-01T12:00Z.")
    ] = None,
    accept_gap: Annotated[
        bool, typer.Option("--accept-gap", rich_help_panel=_BACKFILL, help="Go on where retention removed records.")
    ] = False,
    abandon: Annotated[
        bool, typer.Option("--abandon", rich_help_panel=_BACKFILL, help="Give up an unfinished one, start this one.")
    ] = False,
    beyond_horizon: Annotated[
        bool,
        typer.Option(
            "--beyond-horizon", rich_help_panel=_BACKFILL, help="Act again on events whose claims are forgotten."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run jobs, consumers and those by the clock, until SIGTERM or Ctrl-C, or one backfill to its end."""
    loaded = load_app(app)
    codes = _codes(loaded, jobs or [], all_jobs=all_jobs)
    start = backfill_start(from_checkpoint, from_beginning, from_time) if is_backfill else None
    flags = BackfillFlags(accept_gap, abandon, beyond_horizon)
    if start is None and (from_checkpoint or from_beginning or from_time or any(flags)):
        raise Misconfigured("--from-…, --accept-gap, --abandon and --beyond-horizon belong to --backfill")
    settings = _settings(lanes, 0 if check else port)
    configure_logs(style=settings.log_format, level=settings.log_level)
    if start is not None:
        backfill(loaded, settings, codes, start, flags, as_json=as_json)
        return
    run_until_signal(lambda stop: _run(loaded, settings, codes, stop, check=check), drain=settings.drain_timeout)
    if check:
        say(f"everything {', '.join(codes)} need is there")


async def _run(app: App, settings: Settings, codes: Sequence[str], stop: asyncio.Event, *, check: bool) -> None:
    begun = asyncio.Event()
    if check:
        # A worker that is told to stop before it starts opens and checks all it needs, and reads no record.
        stop.set()
        begun.set()
    work = asyncio.create_task(_work(app, settings, codes, stop, begun), name="worker")
    if not await _begins(work, stop, begun):
        work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work


async def _work(app: App, settings: Settings, codes: Sequence[str], stop: asyncio.Event, begun: asyncio.Event) -> None:
    await require_schema(settings.postgres_dsn.get_secret_value())
    await run_worker(app, settings, codes, stop=stop, begun=begun)


async def _begins(work: asyncio.Task[None], stop: asyncio.Event, begun: asyncio.Event) -> bool:
    """False if `stop` comes first: nothing is in hand then, and what the start waits for may not answer for long."""
    waits = [asyncio.ensure_future(event.wait()) for event in (stop, begun)]
    await asyncio.wait([work, *waits], return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    return begun.is_set() or work.done()


def _codes(app: App, named: Sequence[str], *, all_jobs: bool) -> list[str]:
    if all_jobs == bool(named):
        known = ", ".join(sorted(app.codes))
        raise Misconfigured(f"name the jobs to run, or say --all; the jobs of service {app.service!r}: {known}")
    return list(app.codes) if all_jobs else [app.any_job(code).code for code in dict.fromkeys(named)]


def _settings(lanes: int | None, port: int | None) -> Settings:
    given = {"lanes": lanes, "http_port": port}
    return settings_of(**{name: value for name, value in given.items() if value is not None})
