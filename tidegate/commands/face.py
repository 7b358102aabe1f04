"""The program `tidegate`: its commands, and how errors end it."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import asyncpg
import structlog
import typer

from tidegate.commands import (
    audit,
    checkpoint,
    dev,
    dlq,
    explain,
    find,
    flood,
    migrate,
    offsets,
    pause,
    run,
    send,
    status,
    tokens,
    topics,
)
from tidegate.commands.options import examples, say
from tidegate.version import __version__
from tidegate_kernel.errors import Denied, Misconfigured, TidegateError

_FAILED, _MISUSE, _REFUSED = 1, 2, 3

command_line = typer.Typer(
    name="tidegate",
    help="Kafka events applied exactly once to Postgres, Elasticsearch and ClickHouse.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "tidegate migrate --app shop.app:app",
        "tidegate topics create --app shop.app:app",
        "tidegate run --app shop.app:app --all",
        "tidegate status --app shop.app:app",
    ),
)
command_line.command("migrate", epilog=migrate.EXAMPLES)(migrate.migrate_command)
command_line.add_typer(topics.topic_commands)
command_line.command("run", epilog=run.EXAMPLES)(run.run_command)
command_line.command("send", epilog=send.EXAMPLES)(send.send_command)
command_line.command("status", epilog=status.EXAMPLES)(status.status_command)
command_line.command("explain", epilog=explain.EXAMPLES)(explain.explain_command)
command_line.command("pause", epilog=pause.PAUSE_EXAMPLES)(pause.pause_jobs_command)
command_line.command("resume", epilog=pause.RESUME_EXAMPLES)(pause.resume_jobs_command)
command_line.command("find", epilog=find.EXAMPLES)(find.find_command)
command_line.add_typer(checkpoint.checkpoint_commands)
command_line.add_typer(offsets.offset_commands)
command_line.add_typer(flood.flood_commands)
command_line.add_typer(dlq.letter_commands)
command_line.add_typer(tokens.token_commands)
command_line.add_typer(audit.audit_commands)
command_line.command("dev", epilog=dev.EXAMPLES)(dev.dev_command)
command_line.command("dev-prepare", hidden=True)(dev.prepare_command)
try:
    from tidegate.commands.stack import stack_commands
except ModuleNotFoundError:
    anything = {"allow_extra_args": True, "ignore_unknown_options": True}  # `stack up` is to be told the same
    command_line.command("stack", help="Local servers; needs tidegate[dev].", context_settings=anything)(
        dev.refuse_without_extra
    )
else:
    command_line.add_typer(stack_commands)


@command_line.callback()
def _options(
    version: Annotated[  # noqa: ARG001  # its callback prints and ends
        bool, typer.Option("--version", callback=lambda asked: _print_version(asked), is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Kafka events applied exactly once to Postgres, Elasticsearch and ClickHouse."""
    # What a command logs must not mix with what it prints; `run` configures more.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))


def run_command_line() -> NoReturn:
    """Ends the process: 0 done, 1 failed, 2 misuse, 3 refused. An expected error is one line on standard error."""
    try:
        command_line(prog_name="tidegate")
    except* TidegateError as group:
        if os.environ.get("TIDEGATE_DEBUG") == "1":
            raise
        error = _first(group)
        _tell(str(error), *getattr(error, "__notes__", ()))
        sys.exit(_exit_code(error))
    except* (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.UndefinedFunctionError) as group:
        # Our statements are prepared on our own schema in every build: this database has another.
        if os.environ.get("TIDEGATE_DEBUG") == "1":
            raise
        _tell(
            f"postgres does not have the schema of Tidegate {__version__}: {_first_line(group)}; "
            "run 'tidegate migrate', or the version of Tidegate that migrated it"
        )
        sys.exit(_MISUSE)
    except* asyncpg.InsufficientPrivilegeError as group:
        if os.environ.get("TIDEGATE_DEBUG") == "1":
            raise
        _tell(
            f"postgres: {_first_line(group)}; connect as a role that the schema's owner has given what commands need: "
            "'tidegate migrate --command-role ROLE'"
        )
        sys.exit(_MISUSE)
    except* asyncpg.PostgresError as group:
        if os.environ.get("TIDEGATE_DEBUG") == "1":
            raise
        _tell(f"postgres: {_first_line(group)}")
        sys.exit(_FAILED)
    sys.exit(0)


def _tell(*texts: str) -> None:
    for text in texts:
        say(f"tidegate: {' '.join(text.split())}")


def _first_line(error: BaseException) -> str:
    """Of Postgres' own words: DETAIL may hold a row's values."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error).splitlines()[0]


def _first(group: BaseExceptionGroup[TidegateError]) -> TidegateError:
    """What ended the work: of errors that came together, the one that says what to do."""
    leaves: list[TidegateError] = []
    for error in group.exceptions:
        leaves += [_first(error)] if isinstance(error, BaseExceptionGroup) else [error]
    return next((leaf for leaf in leaves if isinstance(leaf, Misconfigured | Denied)), leaves[0])


def _exit_code(error: TidegateError) -> int:
    match error:
        case Misconfigured():
            return _MISUSE
        case Denied():
            return _REFUSED
        case _:
            return _FAILED


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tidegate {__version__}")
        raise typer.Exit
