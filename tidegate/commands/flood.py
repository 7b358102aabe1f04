"""`tidegate flood`: topics that too many dead letters have stopped, and their release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from tidegate.app import App
from tidegate.commands.loading import load_app
from tidegate.commands.options import AppOption, JsonOption, actor_of, examples, print_json, say, settings_of, wait_for
from tidegate.jobs.declaration import Job
from tidegate.jobs.floods import Flood, Release, plan_release, read_floods, release_flood
from tidegate.jobs.selection import parse_place
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.kafka import open_reader
from tidegate_kernel.postgres import connect
from tidegate_kernel.settings import Settings

flood_commands = typer.Typer(name="flood", help="Topics that too many dead letters have stopped.", no_args_is_help=True)


@flood_commands.command(
    "release",
    epilog=examples(
        "tidegate flood release ledger --until-end                       [dim]# the plan; nothing is changed[/dim]",
        "tidegate flood release ledger --until-end --reason 'old format, known until now' --yes",
        "tidegate flood release ledger --topic orders --until 3:1047 --until 4:998 --reason 'bad release' --yes",
    ),
)
def release_command(
    job: Annotated[str, typer.Argument(help="Code of the job.")],
    topic: Annotated[str | None, typer.Option(help="The stopped topic, if there are several.")] = None,
    until: Annotated[
        list[str] | None,
        typer.Option(metavar="PARTITION:OFFSET", help="Dead letters below it are foreseen; may be repeated."),
    ] = None,
    until_end: Annotated[bool, typer.Option("--until-end", help="Foreseen up to where the topic ends now.")] = False,
    reason: Annotated[str, typer.Option(help="Why, for whoever comes next. Needed.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this the plan is shown.")] = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a stopped topic go on. Dead letters up to the given offsets are kept as always, and stop it no more."""
    if until_end == bool(until):
        raise Misconfigured("say up to where dead letters are foreseen: --until PARTITION:OFFSET, or --until-end")
    loaded = load_app(app)
    declared = loaded.job(job)
    offsets = None if until_end else dict(_place(declared, text) for text in until or ())
    asked = _Asked(declared, topic, offsets, reason, is_meant=yes)
    floods, release = wait_for(_release(settings_of(), loaded, asked))
    if as_json:
        print_json({"job": job, "floods": [asdict(each) for each in floods], "release": asdict(release), "done": yes})
        return
    for flood in floods:
        if flood.topic == release.topic:
            typer.echo(
                f"{flood.topic} is stopped since {flood.since:%Y-%m-%d %H:%M:%SZ}: {flood.why}; {flood.dead} dead"
            )
    for partition, offset in sorted(release.until.items()):
        typer.echo(f"  {release.topic}:{partition}: dead letters below offset {offset} are foreseen")
    if yes:
        typer.echo(f"job {job!r}: {release.topic} goes on")
    else:
        say("nothing was changed; add --reason '…' --yes to do it")


@dataclass(frozen=True, slots=True)
class _Asked:
    """The words of one command."""

    job: Job
    topic: str | None
    until: Mapping[int, int] | None
    reason: str
    is_meant: bool


async def _release(settings: Settings, app: App, asked: _Asked) -> tuple[Sequence[Flood], Release]:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection, open_reader(settings.kafka) as reader:
        floods = await read_floods(connection, app, asked.job)
        release = await plan_release(reader, asked.job, floods, topic=asked.topic, until=asked.until)
        if asked.is_meant:
            actor = await actor_of(settings, connection)
            await release_flood(connection, actor, app, asked.job, release, reason=asked.reason)
    return floods, release


def _place(job: Job, text: str) -> tuple[int, int]:
    where, _, offset = text.rpartition(":")
    if not (offset.isascii() and offset.isdigit()) or not where:
        raise Misconfigured(f"--until {text!r} is not PARTITION:OFFSET")
    return parse_place(job, where)[1], int(offset)
