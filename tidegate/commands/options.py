"""What commands share: options, settings, one way to wait, one way to print."""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tidegate.commands.readable import printable
from tidegate_kernel.permissions import Actor, Receipt

if TYPE_CHECKING:  # every command imports this module, also to print its help: what takes long is imported by its user
    from tidegate_kernel.postgres import Connection, Pool
    from tidegate_kernel.settings import Settings

T = TypeVar("T")

AppOption = Annotated[
    str | None,
    typer.Option("--app", envvar="TIDEGATE_APP", help="The application, as module:attribute.", show_envvar=True),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
AddressSettings = (
    "TIDEGATE_KAFKA_BOOTSTRAP",
    "TIDEGATE_POSTGRES_DSN",
    "TIDEGATE_ELASTICSEARCH_URL",
    "TIDEGATE_CLICKHOUSE_URL",
)
_POSTGRES = "TIDEGATE_POSTGRES_DSN"
_TOKEN_SETTINGS = ("TIDEGATE_TOKEN", "TIDEGATE_TOKEN_FILE")

# Wide enough for every table of ours, so that a pipe or a log never gets wrapped cells.
_PIPE_COLUMNS = 240


def settings_of(**overrides: Any) -> Settings:
    """Returns the settings of the environment; with no server's address in it, those of the local stack.

    One rule for all commands: either the environment says where the servers are, or `tidegate stack` (or `dev`) does.
    Raises Misconfigured.
    """
    from tidegate_kernel.settings import read_settings

    use_local_stack()
    return read_settings(**overrides)


def use_local_stack() -> None:
    """The environment has the addresses of this directory's stack, if it had none and the stack has been started.

    And its access token, where its Postgres is the one that is used and no other token was given.
    """
    try:
        from tidegate.stack.state import StackFolder, default_folder, read_env
    except ModuleNotFoundError:
        return  # without tidegate[dev] there is no stack
    folder = StackFolder(default_folder())
    known = {name.setting: at for name, at in read_env(folder.env_file).items()}
    if not any(name in os.environ for name in AddressSettings):
        os.environ.update(known)
    is_local = known.get(_POSTGRES) is not None and os.environ.get(_POSTGRES) == known[_POSTGRES]
    if is_local and folder.token_file.is_file() and not any(name in os.environ for name in _TOKEN_SETTINGS):
        os.environ["TIDEGATE_TOKEN_FILE"] = str(folder.token_file)


async def actor_of(settings: Settings, database: Connection | Pool) -> Actor:
    """Returns who runs this command: the bearer of its token, who without a valid one may change nothing.

    The receipts of what it does go to standard error. Raises Misconfigured for a token file that cannot be read,
    Transient.
    """
    from tidegate_kernel.tokens import bearer

    typist = anybody()
    found = await bearer(database, settings.token_text(), origin=typist.origin)
    return replace(found, on_receipt=typist.on_receipt)


def anybody() -> Actor:
    """Returns whoever types, without a token: user and machine as the system calls them, for the audit."""
    from tidegate_kernel.tokens import NOBODY

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"  # a container's user need not have a name
    return Actor(NOBODY, origin=f"command line, {user} on {socket.gethostname()}", on_receipt=_tell)


def _tell(receipt: Receipt) -> None:
    say(f"audit {receipt}")


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` to its end on an event loop of its own."""
    import asyncio

    log_to_stderr()
    return asyncio.run(work)


def log_to_stderr() -> None:
    """What a command logs does not mix with what it prints; `run` configures more."""
    import structlog

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))


def print_json(value: Any) -> None:
    """`value` goes to standard output as JSON, indented; times as ISO 8601."""
    typer.echo(json.dumps(value, indent=2, default=_plain))


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
    """A table goes to standard output: fitted to a terminal, unwrapped in a pipe. Cells may hold rich's markup."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else printable(str(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS, highlight=False).print(table)


def tell(*lines: str) -> None:
    """Each goes to standard output as one line, whatever is in it: reasons and errors are other people's words."""
    for line in lines:
        typer.echo(printable(line))


def say(text: str) -> None:
    """A remark for the person at the terminal: standard error, so that it never mixes with output."""
    typer.echo(printable(text), err=True)


def examples(*lines: str) -> str:
    """The end of a command's help: lines to copy."""
    return "\n\n".join(["[bold]Examples[/bold]", *(f"[dim]$[/dim] {line}" for line in lines)])
