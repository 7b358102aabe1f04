"""Commands that are imported when they are typed: a program that imports them all first keeps everybody waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from tidegate_kernel.errors import Misconfigured

NEEDS_DEV = "'tidegate dev' and 'tidegate stack' need what only development needs: pip install 'tidegate[dev]'"


@dataclass(frozen=True)
class Late:
    """A command, or a group of them: what the list of all commands says of it, and the name and module it has here."""

    place: str
    help: str
    epilog: str = "EXAMPLES"
    """The module's attribute that holds the examples; the commands of a group have their own."""
    is_hidden: bool = False
    needs_dev: bool = False
    """Whether its module can be imported only where tidegate[dev] is installed."""


def group_of(commands: Mapping[str, Late]) -> type[TyperGroup]:
    """Returns the group that lists `commands` without their modules; only the one that is typed is imported."""

    class LateGroup(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands.update({name: _stand_in(name, late) for name, late in commands.items()})

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            # Also called where a shell completes what is typed.
            name, stand_in, rest = super().resolve_command(ctx, args)
            return name, load_command(name, commands[name]) if name else stand_in, rest

    return LateGroup


def load_command(name: str, late: Late) -> Any:
    """Returns the command or the group itself. Raises Misconfigured without the tidegate[dev] it needs."""
    module_name, _, attribute = late.place.partition(".")
    try:
        module = import_module(f"tidegate.commands.{module_name}")
    except ModuleNotFoundError as error:
        if late.needs_dev:
            raise Misconfigured(NEEDS_DEV) from error
        raise
    found = getattr(module, attribute)
    alone = typer.Typer()
    if isinstance(found, typer.Typer):
        alone.add_typer(found)
    else:
        alone.command(name, epilog=getattr(module, late.epilog, None), hidden=late.is_hidden)(found)
    return _only_command(alone)


def _stand_in(name: str, late: Late) -> Any:
    alone = typer.Typer()
    alone.command(name, help=late.help, hidden=late.is_hidden)(lambda: None)
    return _only_command(alone)


def _only_command(program: typer.Typer) -> Any:
    program.callback()(lambda: None)  # with a callback, one command is still a group
    group = typer.main.get_command(program)
    assert isinstance(group, TyperGroup)
    (command,) = group.commands.values()
    return command
