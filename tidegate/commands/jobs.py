"""`tidegate jobs`: the registry, and runs of jobs by the clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape

from tidegate.app import App
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
from tidegate.jobs.clockwork.quarantine import LostItem, Release, lost_items, release_items
from tidegate.jobs.clockwork.requests import Cancelled, Requested, RunRequest, ask_for_run, cancel_run
from tidegate.jobs.registry import RegistryEntry, entry_of, registry
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import Scope
from tidegate_kernel.postgres import connect
from tidegate_kernel.settings import Settings

job_commands = typer.Typer(
    name="jobs", help="The registry of jobs, and runs of those by the clock.", no_args_is_help=True
)
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Code of the job.")]
ReasonOption = Annotated[str, typer.Option(help="Why, for the audit and whoever comes next.")]


@job_commands.command("list", epilog=examples("tidegate jobs list", "tidegate jobs list --json"))
def list_command(app: AppOption = None, as_json: JsonOption = False) -> None:
    """Show every job: kind, trigger, command, owner, tier. Needs no server."""
    entries = registry(load_app(app))
    if as_json:
        print_json([asdict(entry) for entry in entries])
    else:
        rows = [[each.code, each.kind, escape(each.trigger), each.command, each.owner, each.tier] for each in entries]
        print_table(["job", "kind", "trigger", "command", "owner", "tier"], rows)


@job_commands.command("show", epilog=examples("tidegate jobs show nightly-reconciliation"))
def show_command(job: JobArgument, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Show all that is declared of a job, and what follows from its kind. Needs no server."""
    loaded = load_app(app)
    entry = entry_of(loaded, loaded.any_job(job))
    if as_json:
        print_json(asdict(entry))
    else:
        print_table(["field", "is"], _fields(entry))


@job_commands.command("check", epilog=examples("tidegate jobs check --app shop.app:app   [dim]# in CI[/dim]"))
def check_command(app: AppOption = None, as_json: JsonOption = False) -> None:
    """Say whether every job is declared whole: exit 2 naming job and field if one is not. Needs no server."""
    entries = registry(load_app(app))
    if as_json:
        print_json({"jobs": [entry.code for entry in entries]})
    else:
        tell(f"{len(entries)} jobs are declared whole: {', '.join(entry.code for entry in entries)}")


@job_commands.command(
    "run",
    epilog=examples(
        "tidegate jobs run reconcile --tenant acme --reason 'a complaint'",
        "tidegate jobs run reconcile --tenant acme --param limit=5 --key ticket-7",
        "tidegate jobs run reconcile --tenant acme --at 2026-05-02T02:00Z",
    ),
)
def run_command(
    job: JobArgument,
    tenant: Annotated[str, typer.Option(help="Whose data it works on.")] = "",
    brand: Annotated[str, typer.Option(help="Of which brand.")] = "",
    param: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A field of the job's input.")] = None,
    at: Annotated[
        str | None, typer.Option(metavar="ISO", help="When it is due; of one that has passed what it left undone.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Asking again under the same key makes no second run.")] = None,
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
    asked = wait_for(_ask(settings_of(), loaded, request))
    if as_json:
        print_json(asked._asdict())
    else:
        tell(f"run {asked.run} of job {job!r} {_told_due(request, asked)}; 'tidegate jobs runs {job}' shows it")


@job_commands.command("cancel", epilog=examples("tidegate jobs cancel 1041 --reason 'the wrong tenant'"))
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


@job_commands.command("runs", epilog=examples("tidegate jobs runs", "tidegate jobs runs reconcile --limit 5"))
def runs_command(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Of one job.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 20,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the newest runs of jobs by the clock: due, at work, ended; what was done, and why it failed."""
    loaded = load_app(app)
    code = None if job is None else loaded.clock_job(job).code
    records = wait_for(_runs(settings_of(), loaded, code, limit))
    if as_json:
        print_json([asdict(record) for record in records])
    else:
        columns = ["run", "job", "tenant", "scheduled", "by", "state", "done", "skipped", "failed", "missed", "note"]
        print_table(columns, [_row(each) for each in records], right=["run", "done", "skipped", "failed", "missed"])


@job_commands.command("items", epilog=examples("tidegate jobs items", "tidegate jobs items reconcile --json"))
def items_command(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Of one job.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 20,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show items that failed and were not done since: `failed` ones are tried again by themselves, others not."""
    loaded = load_app(app)
    code = None if job is None else loaded.clock_job(job).code
    items = wait_for(_items(settings_of(), loaded, code, limit))
    if as_json:
        print_json([asdict(item) for item in items])
    else:
        columns = ["job", "tenant", "item", "is", "since", "run", "error"]
        print_table(columns, [_item_row(each) for each in items], right=["run"])


@job_commands.command(
    "release",
    epilog=examples(
        "tidegate jobs release reconcile --tenant acme --all --reason 'the account is open again'",
        "tidegate jobs release reconcile --tenant acme --item 'order-1041' --reason 'mended'",
    ),
)
def release_command(
    job: JobArgument,
    tenant: Annotated[str, typer.Option(help="Whose items.")] = "",
    brand: Annotated[str, typer.Option(help="Of which brand.")] = "",
    item: Annotated[list[str] | None, typer.Option(metavar="ITEM", help="As `jobs items` shows it.")] = None,
    all_items: Annotated[bool, typer.Option("--all", help="All quarantined ones of the tenant and brand.")] = False,
    reason: ReasonOption = "",
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the next run that meets quarantined items try them again."""
    if all_items == bool(item):
        raise Misconfigured("say which: --item ITEM, once or more, or --all")
    loaded = load_app(app)
    release = Release(job=loaded.clock_job(job), scope=Scope(tenant, brand), keys=item or None, reason=reason)
    count = wait_for(_release(settings_of(), loaded, release))
    if as_json:
        print_json({"job": job, "items": count})
    else:
        tell(f"items released: {count}; the next run of job {job!r} that meets them tries them again")


async def _ask(settings: Settings, app: App, request: RunRequest) -> Requested:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        actor = await actor_of(settings, connection)
        return await ask_for_run(connection, actor, app.service, request, now=SystemClock().now())


async def _cancel(settings: Settings, app: App, run: int, reason: str) -> Cancelled:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        return await cancel_run(connection, await actor_of(settings, connection), app.service, run, reason=reason)


async def _runs(settings: Settings, app: App, code: str | None, limit: int) -> Sequence[RunRecord]:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        return await recent_runs(connection, app.service, code=code, limit=limit)


async def _items(settings: Settings, app: App, code: str | None, limit: int) -> Sequence[LostItem]:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        return await lost_items(connection, app.service, code=code, limit=limit)


async def _release(settings: Settings, app: App, release: Release) -> int:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        return await release_items(connection, await actor_of(settings, connection), app.service, release)


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


def _fields(entry: RegistryEntry) -> list[list[Any]]:
    return [[name.replace("_", " "), escape(value)] for name, value in asdict(entry).items() if value is not None]


def _row(run: RunRecord) -> list[Any]:
    return [
        run.id,
        run.code,
        escape("/".join(filter(None, (run.tenant, run.brand)))),
        f"{run.scheduled_at:%Y-%m-%d %H:%M:%SZ}",
        escape(run.asked_by or run.trigger),
        run.state,
        run.processed,
        run.skipped,
        run.failed,
        run.missed,
        escape(_note(run)),
    ]


def _item_row(item: LostItem) -> list[Any]:
    scope = "/".join(filter(None, (item.tenant, item.brand)))
    since = f"{item.decided_at:%Y-%m-%d %H:%M:%SZ}"
    return [item.code, escape(scope), escape(item.key), item.outcome, since, item.run, escape(item.error_message or "")]


def _note(run: RunRecord) -> str:
    goes_on = f"goes on with run {run.first_run}" if run.first_run is not None else ""
    cancelled = f"cancel asked for by {run.cancel_asked_by}" if run.cancel_asked_by is not None else ""
    return "; ".join(filter(None, (goes_on, cancelled, run.error_message, run.reason)))
