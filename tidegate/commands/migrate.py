"""`tidegate migrate`: everything the stores need before jobs can run."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.commands.loading import load_app
from tidegate.commands.local_token import make_local_token
from tidegate.commands.options import AppOption, JsonOption, examples, print_json, say, settings_of, wait_for
from tidegate.migrations.phases import Migrated, Phase

EXAMPLES = examples(
    "tidegate migrate                         [dim]# Tidegate's own tables[/dim]",
    "tidegate migrate --app shop.app:app      [dim]# and the service's folder, indexes and tables of its sinks[/dim]",
    "tidegate migrate --phase pre             [dim]# before new code rolls; --phase post after it has[/dim]",
    "tidegate migrate --check                 [dim]# exit 1 if something is missing[/dim]",
    "tidegate migrate --worker-role tide_worker --command-role tide_ops      [dim]# least privileges[/dim]",
)


def migrate_command(
    app: AppOption = None,
    phase: Annotated[Phase, typer.Option(help="What to do before new code rolls, after it, or all.")] = Phase.ALL,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit 1 if something is missing.")] = False,
    worker_role: Annotated[
        list[str] | None, typer.Option(metavar="ROLE", help="Grant this database role what workers need, no more.")
    ] = None,
    command_role: Annotated[
        list[str] | None, typer.Option(metavar="ROLE", help="Grant this one what commands and backfills need.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Bring Postgres, and the sinks of --app, to what this version needs. Safe to repeat and to run twice at once."""
    # Here, because SQLAlchemy and Alembic take longer to import than most commands run.
    from tidegate.migrations.everything import apply_all, pending_all
    from tidegate.migrations.grants import Duty

    roles = dict.fromkeys(worker_role or (), Duty.WORKER) | dict.fromkeys(command_role or (), Duty.COMMAND)
    loaded = load_app(app) if app else None
    settings = settings_of()
    done = wait_for((pending_all if check else apply_all)(settings, loaded, phase, roles=roles))
    if not check and phase is not Phase.POST and (made := wait_for(make_local_token(settings))):
        say(made)
    if as_json:
        print_json(done._asdict())
    else:
        _print(done, "missing" if check else "done")
    if check and done.is_anything:
        raise typer.Exit(1)


def _print(done: Migrated, word: str) -> None:
    for name in done.migrations:
        typer.echo(f"{word}: {name}")
    for name in done.service_migrations:
        typer.echo(f"{word}: {name} (of the service)")
    for name in done.sinks:
        typer.echo(f"{word}: sink {name}")
    for name in done.grants:
        typer.echo(f"{word}: grants of {name}")
    if not done.is_anything:
        typer.echo("nothing to do: everything is up to date")
