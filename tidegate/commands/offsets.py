"""`tidegate offsets`: where a job stands in its topics, and moving that by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.app import App
from tidegate.commands.loading import load_app
from tidegate.commands.offsets_output import plain_move, plain_offsets, print_offsets, print_plan
from tidegate.commands.options import (
    AppOption,
    JsonOption,
    actor_of,
    examples,
    print_json,
    settings_of,
    wait_for,
)
from tidegate.console.moves import AcceptGap, Adopt, Ask, SetTo, SkipTo
from tidegate.console.offsets import Plan, Target, move_offsets, plan_offsets
from tidegate.console.places import partition_of
from tidegate.console.stands import PartitionOffsets, show_offsets
from tidegate.jobs.checkpoints import Place
from tidegate.jobs.declaration import Job
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.postgres import connect
from tidegate_kernel.settings import Settings

offset_commands = typer.Typer(
    name="offsets", help="Where a job stands in its topics, and moving that by hand.", no_args_is_help=True
)

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Code of the job.")]
PartitionArgument = Annotated[str, typer.Argument(metavar="TOPIC:P", help="The partition.")]
ToOption = Annotated[int, typer.Option("--to", min=0, help="The offset that is read next.")]
ReasonOption = Annotated[str, typer.Option(help="Why, for the audit and whoever comes next. Needed with --yes.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it; without it the plan is shown and nothing changes.")]


@offset_commands.command("show", epilog=examples("tidegate offsets show customer-ledger --app shop.app:app"))
def show_command(job: JobArgument, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Show each partition: position, log, what is in the way, what was passed unread by somebody's decision."""
    loaded = load_app(app)
    declared = loaded.job(job)
    shown = wait_for(_show(loaded, settings_of(), declared))
    if as_json:
        print_json({"job": job, "partitions": [plain_offsets(job, each) for each in shown]})
    else:
        print_offsets(job, shown)


@offset_commands.command(
    "set", epilog=examples("tidegate offsets set ledger orders:3 --to 1000 --reason 'bad mapping until 09:40' --yes")
)
def set_command(
    job: JobArgument,
    partition: PartitionArgument,
    to: ToOption,
    reason: ReasonOption = "",
    yes: YesOption = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a position, also back: records in between come again, or never. For admins; the job must be paused."""
    _move(app, job, _one(partition), SetTo(to), _How(reason, yes, as_json))


@offset_commands.command(
    "skip", epilog=examples("tidegate offsets skip ledger orders:3 --to 1048 --reason 'crashes at 1047' --yes")
)
def skip_command(
    job: JobArgument,
    partition: PartitionArgument,
    to: ToOption,
    reason: ReasonOption = "",
    yes: YesOption = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give up the records before an offset; the range is kept. The job must be paused."""
    _move(app, job, _one(partition), SkipTo(to), _How(reason, yes, as_json))


@offset_commands.command(
    "accept-gap",
    epilog=examples(
        "tidegate offsets accept-gap ledger orders:3 --reason 'stopped for two weeks' --yes",
        "tidegate offsets accept-gap ledger --all --reason 'stopped for two weeks' --yes",
    ),
)
def accept_gap_command(
    job: JobArgument,
    partition: Annotated[str | None, typer.Argument(metavar="[TOPIC:P]", help="The partition.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every partition that has a gap.")] = False,
    reason: ReasonOption = "",
    yes: YesOption = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on at the log's start where retention removed records unread; the range is kept. The job must be paused."""
    if everything == (partition is not None):
        raise Misconfigured("say which: one partition, TOPIC:P, or --all that have a gap")
    target = Target() if partition is None else _one(partition)
    _move(app, job, target, AcceptGap(), _How(reason, yes, as_json))


@offset_commands.command(
    "adopt",
    epilog=examples(
        "tidegate offsets adopt ledger orders --reason 'topic re-created with 12 partitions' --yes",
        "tidegate offsets adopt ledger orders:3 --from end --reason 'refilled from the old one' --yes",
    ),
)
def adopt_command(
    job: JobArgument,
    where: Annotated[str, typer.Argument(metavar="TOPIC[:P]", help="The topic, or one partition of it.")],
    start: Annotated[
        str, typer.Option("--from", metavar="beginning|end|OFFSET", help="Read from there.")
    ] = "beginning",
    reason: ReasonOption = "",
    yes: YesOption = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a re-created topic, or a log that ends before the position, as the job's. For admins; pause it first."""
    target = _one(where) if ":" in where else Target(where)
    _move(app, job, target, Adopt(_start(start)), _How(reason, yes, as_json))


class _How:
    """How it is asked for, and shown."""

    def __init__(self, reason: str, is_sure: bool, as_json: bool) -> None:
        self.reason, self.is_sure, self.as_json = reason, is_sure, as_json


def _one(text: str) -> Target:
    return Target(*partition_of(text))


def _start(text: str) -> Place | int:
    match text:
        case "beginning":
            return Place.BEGINNING
        case "end":
            return Place.END
        case _ if text.isascii() and text.isdigit() and len(text) <= 18:
            return int(text)
        case _:
            raise Misconfigured(f"--from {text!r} is neither 'beginning', 'end' nor an offset")


def _move(app: str | None, job: str, target: Target, ask: Ask, how: _How) -> None:
    loaded = load_app(app)
    declared = loaded.job(job)
    settings = settings_of()
    plan = wait_for(_plan(loaded, settings, declared, target, ask))
    if not how.as_json:
        print_plan(plan)
    if how.is_sure:
        wait_for(_do(loaded, settings, plan, how.reason))
    if how.as_json:
        print_json({"job": job, "is_done": how.is_sure, "moves": [plain_move(move) for move in plan.moves]})
    elif how.is_sure:
        typer.echo(f"done; 'tidegate resume {job}' lets it go on from there")
    else:
        pause = f"; {plan.pause_line}" if plan.unpaused else ""
        typer.echo(f"nothing was changed: add --reason and --yes to do it{pause}")


async def _show(app: App, settings: Settings, job: Job) -> list[PartitionOffsets]:
    await require_schema(settings.postgres_dsn.get_secret_value())
    return await show_offsets(app, settings, job)


async def _plan(app: App, settings: Settings, job: Job, target: Target, ask: Ask) -> Plan:
    await require_schema(settings.postgres_dsn.get_secret_value())
    return await plan_offsets(app, settings, job, target, ask)


async def _do(app: App, settings: Settings, plan: Plan, reason: str) -> None:
    async with connect(settings.postgres_dsn.get_secret_value()) as connection:
        await move_offsets(app, connection, await actor_of(settings, connection), plan, reason=reason)
