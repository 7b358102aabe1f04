"""`tidegate jobs`: the registry and its documents; runs of jobs by the clock stand beside it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.markup import escape

from tidegate.commands.jobs_docs import DOCS_EXAMPLES, docs_command
from tidegate.commands.jobs_items import (
    DISCARD_EXAMPLES,
    ITEMS_EXAMPLES,
    REPLAY_EXAMPLES,
    discard_command,
    items_command,
    replay_command,
)
from tidegate.commands.jobs_progress import progress_now
from tidegate.commands.jobs_runs import (
    CANCEL_EXAMPLES,
    RUN_EXAMPLES,
    RUNS_EXAMPLES,
    cancel_command,
    run_command,
    runs_command,
)
from tidegate.commands.loading import load_app
from tidegate.commands.options import AppOption, JsonOption, examples, print_json, print_table, tell
from tidegate.commands.readable import counted
from tidegate.jobs.registry import RegistryEntry, entry_of, registry, unchecked_requests, upkeep_registry

job_commands = typer.Typer(
    name="jobs", help="The registry of jobs, and runs of those by the clock.", no_args_is_help=True
)


@job_commands.command("list", epilog=examples("tidegate jobs list", "tidegate jobs list --json"))
def list_command(app: AppOption = None, as_json: JsonOption = False) -> None:
    """Show every job, Tidegate's own last: kind, trigger, command, owner, tier. Needs no server."""
    loaded = load_app(app)
    entries = [*registry(loaded), *upkeep_registry(loaded)]
    if as_json:
        print_json([asdict(entry) for entry in entries])
    else:
        rows = [[each.code, each.kind, escape(each.trigger), each.command, each.owner, each.tier] for each in entries]
        print_table(["job", "kind", "trigger", "command", "owner", "tier"], rows)


@job_commands.command("show", epilog=examples("tidegate jobs show nightly-reconciliation"))
def show_command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Code of the job.")],
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show all that is declared of a job and, where Postgres answers, its checkpoints: where it stands now."""
    loaded = load_app(app)
    declared = loaded.any_job(job)
    entry, progress = entry_of(loaded, declared), progress_now(loaded.service, declared)
    if as_json:
        print_json(asdict(entry) | {"progress": progress})
        return
    print_table(["field", "is"], _fields(entry))
    if progress:
        columns = [name for name in progress[0] if any(row[name] not in (None, "") for row in progress)]
        tell("")
        print_table(columns, [[_cell(row[name]) for name in columns] for row in progress])


@job_commands.command("check", epilog=examples("tidegate jobs check --app shop.app:app   [dim]# in CI[/dim]"))
def check_command(app: AppOption = None, as_json: JsonOption = False) -> None:
    """Say whether every job is declared whole: exit 2 naming job and field if one is not. Needs no server."""
    loaded = load_app(app)
    entries, unchecked = registry(loaded), unchecked_requests(loaded)
    if as_json:
        print_json({"jobs": [entry.code for entry in entries], "unchecked": list(unchecked)})
    else:
        tell(*unchecked)
        is_whole = "is" if len(entries) == 1 else "are"
        tell(f"{counted(len(entries), 'job')} {is_whole} declared whole: {', '.join(each.code for each in entries)}")


job_commands.command("docs", epilog=DOCS_EXAMPLES)(docs_command)
job_commands.command("run", epilog=RUN_EXAMPLES)(run_command)
job_commands.command("cancel", epilog=CANCEL_EXAMPLES)(cancel_command)
job_commands.command("runs", epilog=RUNS_EXAMPLES)(runs_command)
job_commands.command("items", epilog=ITEMS_EXAMPLES)(items_command)
job_commands.command("replay", epilog=REPLAY_EXAMPLES)(replay_command)
job_commands.command("discard", epilog=DISCARD_EXAMPLES)(discard_command)


def _fields(entry: RegistryEntry) -> list[list[Any]]:
    told = {name: value for name, value in asdict(entry).items() if name != "kind_needs" and value is not None}
    return [[name.replace("_", " "), _shown(value)] for name, value in (told | dict(entry.kind_needs)).items()]


def _cell(value: object) -> str | None:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%SZ}"
    return None if value is None else escape(str(value))


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else escape(str(value))
