"""`tidegate dlq runs`, `stop` and `approve`: replays and discards as others have begun them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from dlq.runs import FailureGroup, Run, failures_of, read_run, recent_runs
from tidegate.commands.decisions import MOST_RUN
from tidegate.commands.dlq_output import say_what_is_not_shown
from tidegate.commands.dlq_run_output import plain_run, print_runs, told_origin, told_run
from tidegate.commands.loading import load_app
from tidegate.commands.options import (
    AppOption,
    JsonOption,
    actor_of,
    examples,
    print_json,
    say,
    settings_of,
    tell,
    wait_for,
)
from tidegate.commands.readable import counted
from tidegate.jobs.replays import FoundRun, approve, find_run, stop
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.event import ReplayId
from tidegate_kernel.postgres import connect, translated_errors
from tidegate_kernel.settings import Settings

RUNS_EXAMPLES = examples("tidegate dlq runs --job ledger --app shop.app:app", "tidegate dlq runs --run 17 --json")
STOP_EXAMPLES = examples("tidegate dlq stop 17 --reason 'the provider is under load'")
APPROVE_EXAMPLES = examples(
    "tidegate dlq runs --run 17                              [dim]# look at it[/dim]",
    "tidegate dlq approve 17 --reason 'checked with finance'",
)

RunArgument = Annotated[
    int, typer.Argument(metavar="RUN", min=1, max=MOST_RUN, help="Its number, as 'dlq runs' shows it.")
]
ReasonOption = Annotated[str, typer.Option(help="Why, for the audit and whoever comes next. Needed.")]


class _Seen(NamedTuple):
    run: Run
    failures: Sequence[FailureGroup]


def runs_command(
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Of this job.")] = None,
    run: Annotated[
        int | None,
        typer.Option("--run", metavar="RUN", min=1, max=MOST_RUN, help="This one, with what failed in it."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 20,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show replays and discards: who asked for them and why, how far they are, what became of their letters."""
    loaded = load_app(app)
    service = loaded.service
    if run is not None:
        seen = wait_for(_one(settings_of(), service, ReplayId(run)))
        if as_json:
            print_json(plain_run(seen.run, seen.failures))
        else:
            tell(*told_run(seen.run, seen.failures), *told_origin(seen.run))
        return
    found = wait_for(_recent(settings_of(), service, job, limit))
    if as_json:
        print_json({"runs": [plain_run(each) for each in found]})
    elif found:
        print_runs(found)
    else:
        say("no runs so far" if job is None else f"no runs of job {job!r} so far")
        say_what_is_not_shown(loaded, [job] if job is not None else None, 0)


def stop_command(
    run: RunArgument, reason: ReasonOption = "", app: AppOption = None, as_json: JsonOption = False
) -> None:
    """End a run after the batch in hand, whoever works on it; one that waits, at once. It can be resumed."""
    service = load_app(app).service
    found, is_over = wait_for(_stop(settings_of(), service, ReplayId(run), reason))
    command = f"tidegate dlq {found.kind} --resume {run}"
    if as_json:
        print_json({"run": run, "has_stopped": is_over, "next": command})
    else:
        tell(f"run {run} {'has stopped' if is_over else 'stops after the batch in hand'}; to go on: {command}")


def approve_command(
    run: RunArgument, reason: ReasonOption = "", app: AppOption = None, as_json: JsonOption = False
) -> None:
    """Agree, as a second person, to a run that waits for one. Whoever asked for it cannot."""
    service = load_app(app).service
    found = wait_for(_approve(settings_of(), service, ReplayId(run), reason))
    command = f"tidegate dlq {found.kind} --resume {run}"
    if as_json:
        print_json({"run": run, "letters": found.letters, "next": command})
    else:
        letters = counted(found.letters, "letter")
        tell(f"run {run} of {letters}, asked for by {found.asked_by}, is approved; to begin it: {command}")


async def _one(settings: Settings, service: str, run: ReplayId) -> _Seen:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        with translated_errors("read a run"):
            return _Seen(await read_run(connection, service, run), await failures_of(connection, run))


async def _recent(settings: Settings, service: str, job: str | None, limit: int) -> Sequence[Run]:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        with translated_errors("read runs"):
            return await recent_runs(connection, service, code=job, limit=limit)


async def _stop(settings: Settings, service: str, run: ReplayId, reason: str) -> tuple[FoundRun, bool]:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        found = await find_run(connection, service, run)
        return found, await stop(connection, await actor_of(settings, connection), found, reason=reason)


async def _approve(settings: Settings, service: str, run: ReplayId, reason: str) -> FoundRun:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        found = await find_run(connection, service, run)
        await approve(connection, await actor_of(settings, connection), found, reason=reason)
        return found
