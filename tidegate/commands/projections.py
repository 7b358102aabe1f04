"""`tidegate projections`: the stores that readers ask, filled again by hand."""

from __future__ import annotations

import typer

from tidegate.commands.rerender import EXAMPLES as RERENDER_EXAMPLES
from tidegate.commands.rerender import rerender_command

projection_commands = typer.Typer(
    name="projections", help="The stores that readers ask, filled again by hand.", no_args_is_help=True
)
projection_commands.command("rerender", epilog=RERENDER_EXAMPLES)(rerender_command)
