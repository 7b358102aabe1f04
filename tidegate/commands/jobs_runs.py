"""`tidegate jobs run`, `cancel` and `runs`: runs of jobs by the clock, asked for, ended, looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape

from tidegate.app import App
from tidegate.commands.jobs_asking import (
    JobArgument,
    LimitOption,
    MaybeJob,
    ReasonOption,
    code_of,
    connected,
    scope_text,
)
from tidegate.commands.jobs_dry_run import tell_dry_run
from tidegate.commands.loading import load_app
from tidegate.commands.moments import instant
from tidegate.commands.options import (
    AppOption,
    JsonOption,
    actor_of,
    examples,
    print_json,
    print_table,
    settings_of,
    tell,
    wait_for,
)
from tidegate.jobs.clockwork.history import RunRecord, recent_runs
from tidegate.jobs.clockwork.requests import Cancelled, Requested, RunRequest, ask_for_run, cancel_run
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import Scope
from tidegate_kernel.settings import Settings

RUN_EXAMPLES = examples(
    "tidegate jobs run reconcile --tenant acme --reason 'a complaint'",
    "tidegate jobs run reconcile --tenant acme --param limit=5 --key ticket-7",
    "tidegate jobs run reconcile --tenant acme --at 2026-05-02T02:00Z",
    "tidegate jobs run expired-exports --dry-run      [dim]# what it would remove; removes nothing[/dim]",
)
CANCEL_EXAMPLES = examples("tidegate jobs cancel 1041 --reason 'the wrong tenant'")
RUNS_EXAMPLES = examples("tidegate jobs runs", "tidegate jobs runs reconcile --limit 5")

_COLUMNS = ["run", "job", "tenant", "scheduled", "by", "state", "done", "skipped", "failed", "missed", "note"]
_NUMBERS = ["run", "done", "skipped", "failed", "missed"]


def run_command(
    job: JobArgument,
    tenant: Annotated[str, typer.Option(help="Whose data it works on.")] = "",
    brand: Annotated[str, typer.Option(help="Of which brand.")] = "",
    param: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A field of the job's input.")] = None,
    at: Annotated[
        str | None, typer.Option(metavar="ISO", help="When it is due; of one that has passed what it left undone.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Asking again under the same key makes no second run.")] = None,
    is_dry: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Only tell what a MaintenanceJob would remove, of all tenants if none is named."
        ),
    ] = False,
    reason: ReasonOption = "",
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask for a run of a job by the clock, now or later; a worker that runs the job takes it within seconds."""
    loaded, now = load_app(app), SystemClock().now()
    request = RunRequest(
        job=loaded.clock_job(job),
        scope=Scope(tenant, brand),
        at=now if at is None else instant("--at", at),
        parameters=_parameters(param or []),
        key=key,
        reason=reason,
    )
    if is_dry:
        tell_dry_run(loaded, settings_of(), request, as_json=as_json)
        return
    asked = wait_for(_ask(settings_of(), loaded, request))
    if as_json:
        print_json(asked._asdict())
    else:
        tell(f"run {asked.run} of job {job!r} {_told_due(request, asked)}; 'tidegate jobs runs {job}' shows it")


def cancel_command(
    run: Annotated[int, typer.Argument(help="Number of the run.")],
    reason: ReasonOption = "",
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a run: at once if it has not begun, else after the unit in hand. What it has done stands."""
    cancelled = wait_for(_cancel(settings_of(), load_app(app), run, reason))
    if as_json:
        print_json(cancelled._asdict())
    else:
        tell(f"run {run} is cancelled" if cancelled.is_over else f"run {run} ends after what it has in hand")


def runs_command(
    job: MaybeJob = None, limit: LimitOption = 20, app: AppOption = None, as_json: JsonOption = False
) -> None:
    """Show the newest runs of jobs by the clock: due, at work, ended; what was done, and why it failed."""
    loaded = load_app(app)
    records = wait_for(_runs(settings_of(), loaded.service, code_of(loaded, job), limit))
    if as_json:
        print_json([asdict(record) for record in records])
    else:
        print_table(_COLUMNS, [_row(each) for each in records], right=_NUMBERS)


async def _ask(settings: Settings, app: App, request: RunRequest) -> Requested:
    async with connected(settings) as connection:
        actor = await actor_of(settings, connection)
        return await ask_for_run(connection, actor, app.service, request, now=SystemClock().now())


async def _cancel(settings: Settings, app: App, run: int, reason: str) -> Cancelled:
    async with connected(settings) as connection:
        return await cancel_run(connection, await actor_of(settings, connection), app.service, run, reason=reason)


async def _runs(settings: Settings, service: str, code: str | None, limit: int) -> Sequence[RunRecord]:
    async with connected(settings) as connection:
        return await recent_runs(connection, service, code=code, limit=limit)


def _parameters(words: Sequence[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, is_there, value = word.partition("=")
        if not is_there or not name or name in found:
            raise Misconfigured("--param takes NAME=VALUE, each name once")
        found[name] = value
    return found


def _told_due(request: RunRequest, asked: Requested) -> str:
    if not asked.is_new:
        return f"was asked for before under key {request.key!r}"
    return f"is due at {request.at:%Y-%m-%d %H:%M:%SZ}" if request.at > SystemClock().now() else "is due"


def _row(run: RunRecord) -> list[Any]:
    return [
        run.id,
        run.code,
        escape(scope_text(run.tenant, run.brand)),
        f"{run.scheduled_at:%Y-%m-%d %H:%M:%SZ}",
        escape(run.asked_by or run.trigger),
        run.state,
        run.processed,
        run.skipped,
        run.failed,
        run.missed,
        escape(_note(run)),
    ]


def _note(run: RunRecord) -> str:
    goes_on = f"goes on with run {run.first_run}" if run.first_run is not None else ""
    cancelled = f"cancel asked for by {run.cancel_asked_by}" if run.cancel_asked_by is not None else ""
    return "; ".join(filter(None, (goes_on, cancelled, run.error_message, run.reason)))
