"""`tidegate projections`: the stores that readers ask: as declared or not, made anew, filled again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from tidegate.commands.loading import load_app
from tidegate.commands.options import (
    AppOption,
    JsonOption,
    examples,
    print_json,
    print_table,
    settings_of,
    tell,
    wait_for,
)
from tidegate.commands.rerender import EXAMPLES as RERENDER_EXAMPLES
from tidegate.commands.rerender import rerender_command
from tidegate.commands.reset import EXAMPLES as RESET_EXAMPLES
from tidegate.commands.reset import reset_command
from tidegate.console.projections import SinkState, SinkStatus, sink_statuses

LIST_EXAMPLES = examples("tidegate projections list --app shop.app:app")
SHOW_EXAMPLES = examples("tidegate projections show order-search      [dim]# exit 1 unless it is as declared[/dim]")


def list_command(app: AppOption = None, as_json: JsonOption = False) -> None:
    """Show the index or table of each projection: whether it is as declared, and how many documents it holds."""
    found = wait_for(sink_statuses(load_app(app), settings_of()))
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        _print(found)


def show_command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Code of the projection.")],
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is different between a projection's index or table and its declaration. Exit 1 if anything is."""
    found = wait_for(sink_statuses(load_app(app), settings_of(), job))
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        _print(found)
        tell(*(f"{each.sink}: {detail}" for each in found for detail in each.details))
    if any(each.state is not SinkState.AS_DECLARED for each in found):
        raise typer.Exit(1)


def _print(found: Sequence[SinkStatus]) -> None:
    rows = [[each.job, each.sink, each.store, each.state, each.documents] for each in found]
    print_table(["job", "sink", "store", "state", "documents"], rows, right=["documents"])


projection_commands = typer.Typer(
    name="projections",
    help="The stores that readers ask: as declared or not, made anew, filled again.",
    no_args_is_help=True,
)
projection_commands.command("list", epilog=LIST_EXAMPLES)(list_command)
projection_commands.command("show", epilog=SHOW_EXAMPLES)(show_command)
projection_commands.command("reset", epilog=RESET_EXAMPLES)(reset_command)
projection_commands.command("rerender", epilog=RERENDER_EXAMPLES)(rerender_command)
