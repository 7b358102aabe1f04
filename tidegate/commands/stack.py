"""`tidegate stack`: real servers on this machine for development, demo and tests."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tidegate.stack.names import ServerName
from tidegate.stack.progress import reporter
from tidegate.stack.stack import ServerStatus, Stack
from tidegate.stack.state import default_folder, environment_lines
from tidegate_kernel.errors import Misconfigured, TidegateError

stack_commands = typer.Typer(
    name="stack", help="Real Kafka, Postgres, Elasticsearch and ClickHouse on this machine.", no_args_is_help=True
)

Dir = Annotated[Path | None, typer.Option("--dir", help="The stack's folder; by default one per working directory.")]
Only = Annotated[str, typer.Option("--only", help="Some servers only, separated by commas, as in 'kafka,postgres'.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@stack_commands.command()
def up(directory: Dir = None, only: Only = "") -> None:
    """Start what is not running yet, and wait until every server answers."""
    with _errors():
        stack = _stack(directory, only)
        with reporter() as report:
            addresses = stack.up(report)
        typer.echo(f"up: {', '.join(addresses)}; addresses are in {stack.folder.env_file}")


@stack_commands.command()
def down(
    directory: Dir = None,
    only: Only = "",
    wipe: Annotated[bool, typer.Option("--wipe", help="Remove data and logs as well.")] = False,
) -> None:
    """Stop what `up` started; data stays unless --wipe."""
    with _errors():
        ended = _stack(directory, only).down(wipe=wipe)
        typer.echo(f"stopped: {', '.join(ended)}" if ended else "nothing was running")


@stack_commands.command()
def status(directory: Dir = None, only: Only = "", as_json: Json = False) -> None:
    """Ask every server; exit 1 if one does not answer."""
    with _errors():
        found = _stack(directory, only).status()
        if as_json:
            typer.echo(json.dumps([asdict(each) for each in found], indent=2))
        else:
            for each in found:
                typer.echo(_status_line(each))
        if not all(each.is_answering for each in found):
            raise typer.Exit(1)


@stack_commands.command()
def env(directory: Dir = None, only: Only = "", as_json: Json = False) -> None:
    """Print the addresses as NAME=value lines (with the password: this is for programs)."""
    with _errors():
        addresses = _stack(directory, only).addresses()
        if as_json:
            typer.echo(json.dumps({name.setting: address for name, address in addresses.items()}, indent=2))
        else:
            typer.echo(environment_lines(addresses), nl=False)


@stack_commands.command()
def logs(server: ServerName, directory: Dir = None, lines: Annotated[int, typer.Option(min=1)] = 50) -> None:
    """Print the end of a server's log."""
    with _errors():
        log_file = _stack(directory, "").folder.home(server).log_file
        if not log_file.exists():
            raise Misconfigured(f"{server}: no log at {log_file}; was it started here?")
        typer.echo("\n".join(log_file.read_text(errors="replace").splitlines()[-lines:]))


def _stack(directory: Path | None, only: str) -> Stack:
    try:
        names = [ServerName(name.strip()) for name in only.split(",")] if only else list(ServerName)
    except ValueError as failure:
        raise Misconfigured(f"--only {only!r}: {failure}; choose from {', '.join(ServerName)}") from failure
    return Stack(directory or default_folder(), names=names)


def _status_line(server: ServerStatus) -> str:
    answer = "answers" if server.is_answering else "does not answer"
    # The address of Postgres holds its password: `env` is for that.
    address = server.address.rpartition("@")[2]
    return f"{server.name:14} {answer:16} {server.source:9} {address}"


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except Misconfigured as failure:
        typer.echo(f"error: {failure}", err=True)
        raise typer.Exit(2) from failure
    except TidegateError as failure:
        typer.echo(f"error: {failure}", err=True)
        raise typer.Exit(1) from failure
