"""`tidegate projections`: the stores that readers ask: as declared or not, made anew, filled again."""

from __future__ import annotations

import typer

from tidegate.commands.rerender import EXAMPLES as RERENDER_EXAMPLES
from tidegate.commands.rerender import rerender_command
from tidegate.commands.reset import (
    LIST_EXAMPLES,
    RESET_EXAMPLES,
    SHOW_EXAMPLES,
    list_command,
    reset_command,
    show_command,
)

projection_commands = typer.Typer(
    name="projections",
    help="The stores that readers ask: as declared or not, made anew, filled again.",
    no_args_is_help=True,
)
projection_commands.command("list", epilog=LIST_EXAMPLES)(list_command)
projection_commands.command("show", epilog=SHOW_EXAMPLES)(show_command)
projection_commands.command("reset", epilog=RESET_EXAMPLES)(reset_command)
projection_commands.command("rerender", epilog=RERENDER_EXAMPLES)(rerender_command)
