"""The program `tidegate`: its commands, and how errors end it."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from tidegate.commands.late import Late, group_of
from tidegate.commands.options import examples, say
from tidegate.version import __version__
from tidegate_kernel.errors import Denied, Misconfigured, TidegateError, Unreachable

_FAILED, _MISUSE, _REFUSED = 1, 2, 3

COMMANDS = {
    "migrate": Late(
        "migrate.migrate_command",
        "Bring Postgres, and the sinks of --app, to what this version needs. Safe to repeat and to run twice at once.",
    ),
    "run": Late(
        "run.run_command",
        "Run jobs, consumers and those by the clock, until SIGTERM or Ctrl-C, or one backfill to its end.",
    ),
    "send": Late(
        "send.send_command",
        "Write a CloudEvent to a topic and print its id. With --app, data that a job would refuse is not sent.",
    ),
    "status": Late(
        "status.status_command",
        "Show every job's lag in records and seconds, pauses, freshness, dead letters and the outbox. Needs no worker.",
    ),
    "explain": Late(
        "explain.explain_command",
        "Say of each partition why it does not move, or that it does. Needs no worker and no token.",
    ),
    "pause": Late(
        "pause.pause_jobs_command",
        "Make jobs rest: the batches in hand are finished, nothing new begins, ownership is kept. Backfills go on.",
        epilog="PAUSE_EXAMPLES",
    ),
    "resume": Late(
        "pause.resume_jobs_command",
        "End pauses: those that `tidegate pause` with the same words made.",
        epilog="RESUME_EXAMPLES",
    ),
    "find": Late(
        "find.find_command",
        "Say what became of it in each job: claimed, dead, skipped, not reached. Exit 1 if there is no trace of it.",
    ),
    "wait-for": Late(
        "wait_for.wait_for_command",
        "Wait until readers of a job see a record. Exit 1: not in time, or it is dead, parked or skipped, as told.",
    ),
    "dev": Late(
        "dev.dev_command",
        "Start servers where none are given, migrate, create topics and run all jobs of --app, until Ctrl-C.",
    ),
    "jobs": Late("jobs.job_commands", "The registry of jobs, and runs of those by the clock."),
    "topics": Late("topics.topic_commands", "The Kafka topics an application needs."),
    "checkpoint": Late("checkpoint.checkpoint_commands", "Named offsets from which a backfill can start."),
    "offsets": Late("offsets.offset_commands", "Where a job stands in its topics, and moving that by hand."),
    "flood": Late("flood.flood_commands", "Topics that too many dead letters have stopped."),
    "projections": Late(
        "projections.projection_commands", "The stores that readers ask: as declared or not, made anew, filled again."
    ),
    "dlq": Late("dlq.letter_commands", "Dead letters: records and items that a job could not handle."),
    "tokens": Late("tokens.token_commands", "Access tokens: who may change something, and within which scope."),
    "audit": Late("audit.audit_commands", "What was done by hand, by whom, and whether the record of it is whole."),
    "k8s": Late("k8s.k8s_commands", "Manifests for Kubernetes of what is done once; needs neither Helm nor a server."),
    "stack": Late(
        "stack.stack_commands", "Real Kafka, Postgres, Elasticsearch and ClickHouse on this machine.", needs_dev=True
    ),
    "dev-prepare": Late(
        "dev.prepare_command",
        "Migrate and create topics for --app: what `dev` does before each start.",
        epilog="",
        is_hidden=True,
    ),
}
"""All that can be typed, in the order of `tidegate --help`, with the beginnings of the commands' own help: that list is
to come without their modules. A test compares the two."""

command_line = typer.Typer(
    cls=group_of(COMMANDS),
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


@command_line.callback()
def _options(
    version: Annotated[  # its callback prints and ends
        bool, typer.Option("--version", callback=lambda asked: _print_version(asked), is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Kafka events applied exactly once to Postgres, Elasticsearch and ClickHouse."""


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
    except* _postgres_errors() as group:
        if os.environ.get("TIDEGATE_DEBUG") == "1":
            raise
        from tidegate.commands.postgres_errors import remedy

        sentence, is_misuse = remedy(group)
        _tell(sentence)
        sys.exit(_MISUSE if is_misuse else _FAILED)
    sys.exit(0)


def _tell(*texts: str) -> None:
    for text in texts:
        say(f"tidegate: {' '.join(text.split())}")


def _postgres_errors() -> tuple[type[Exception], ...]:
    """Those of the driver; none where nothing has imported it, which takes long and can only be in vain."""
    driver = sys.modules.get("asyncpg")
    return () if driver is None else (driver.PostgresError,)


def _first(group: BaseExceptionGroup[TidegateError]) -> TidegateError:
    """What ended the work: of errors that came together, the one that says what to do."""
    leaves: list[TidegateError] = []
    for error in group.exceptions:
        leaves += [_first(error)] if isinstance(error, BaseExceptionGroup) else [error]
    return next((leaf for leaf in leaves if isinstance(leaf, Misconfigured | Denied)), leaves[0])


def _exit_code(error: TidegateError) -> int:
    match error:
        case Unreachable():
            return _FAILED  # nothing was typed wrong: the same words do it when the server is back
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
