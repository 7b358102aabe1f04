"""`tidegate checkpoint`: named offsets from which a backfill can start."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from tidegate.app import App
from tidegate.commands.loading import load_app
from tidegate.commands.moments import instant
from tidegate.commands.options import (
    AppOption,
    JsonOption,
    actor_of,
    examples,
    print_json,
    print_table,
    settings_of,
    wait_for,
)
from tidegate.jobs.checkpoints import (
    CheckpointSummary,
    Offsets,
    Place,
    create_checkpoint,
    delete_checkpoint,
    list_checkpoints,
    offsets_at,
    offsets_of_job,
    read_checkpoint,
)
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.kafka import open_reader
from tidegate_kernel.postgres import connect
from tidegate_kernel.settings import Settings

checkpoint_commands = typer.Typer(
    name="checkpoint", help="Named offsets from which a backfill can start.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(help="Letters, digits, '.', '_' and '-'.")]


@checkpoint_commands.command(
    "create",
    epilog=examples(
        "tidegate checkpoint create nightly --job order-search     [dim]# where the job stands[/dim]",
        "tidegate checkpoint create before-release --at end        [dim]# the ends of all topics[/dim]",
        "tidegate checkpoint create march --job order-search --at 2026-03-01T00:00Z",
    ),
)
def create_command(
    name: Name,
    app: AppOption = None,
    job: Annotated[str | None, typer.Option(help="The job's own positions; with --at, only its topics.")] = None,
    at: Annotated[str | None, typer.Option(metavar="end|beginning|ISO", help="An end of the logs, or a time.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Store offsets under a name: where a job stands, or where the topics end, begin or stood at a time."""
    if job is None and at is None:
        raise Misconfigured("say what to store: --job JOB (where it stands), or --at end, beginning or a time")
    loaded = load_app(app)
    place = None if at is None else _place(at)
    offsets = wait_for(_create(loaded, settings_of(), name, job, place))
    _print(name, offsets, as_json=as_json)


@checkpoint_commands.command("list", epilog=examples("tidegate checkpoint list", "tidegate checkpoint list nightly"))
def list_command(
    name: Annotated[str | None, typer.Argument(help="Show this one's offsets.")] = None, as_json: JsonOption = False
) -> None:
    """Show all checkpoints, or the offsets of one."""
    settings = settings_of()
    if name is not None:
        _print(name, wait_for(_read(settings, name)), as_json=as_json)
        return
    found = wait_for(_list(settings))
    if as_json:
        print_json([each._asdict() for each in found])
    else:
        rows = [
            [each.name, f"{each.created_at:%Y-%m-%d %H:%M:%SZ}", ", ".join(each.topics), each.partitions]
            for each in found
        ]
        print_table(["checkpoint", "created", "topics", "partitions"], rows, right=["partitions"])


@checkpoint_commands.command("delete", epilog=examples("tidegate checkpoint delete nightly --yes"))
def delete_command(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove a checkpoint; without --yes only say what would be removed."""
    offsets = wait_for(_delete(settings_of(), name, is_sure=yes))
    if not yes:
        raise Misconfigured(f"checkpoint {name!r} holds {len(offsets)} partitions; add --yes to remove it")
    if as_json:
        print_json({"checkpoint": name, "partitions": len(offsets)})
    else:
        typer.echo(f"removed checkpoint {name!r} of {len(offsets)} partitions")


def _place(at: str) -> Place | datetime:
    match at:
        case "end":
            return Place.END
        case "beginning":
            return Place.BEGINNING
        case _:
            return instant("--at", at)


async def _create(app: App, settings: Settings, name: str, job: str | None, place: Place | datetime | None) -> Offsets:
    topics = sorted(app.topics) if job is None else [topic.name for topic in app.job(job).topics]
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        actor = await actor_of(settings, connection)
        if place is None:
            offsets = await offsets_of_job(connection, service=app.service, code=job or "")
        else:
            async with open_reader(settings.kafka) as reader:
                offsets = await offsets_at(reader, topics, place)
        await create_checkpoint(connection, actor, name, offsets)
    return offsets


async def _read(settings: Settings, name: str) -> Offsets:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        return await read_checkpoint(connection, name)


async def _list(settings: Settings) -> list[CheckpointSummary]:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        return list(await list_checkpoints(connection))


async def _delete(settings: Settings, name: str, *, is_sure: bool) -> Offsets:
    offsets = await _read(settings, name)
    if is_sure:
        async with connect(settings.postgres_dsn.get_secret_value()) as connection:
            await delete_checkpoint(connection, await actor_of(settings, connection), name)
    return offsets


def _print(name: str, offsets: Offsets, *, as_json: bool) -> None:
    rows = [(p.topic, p.partition, offset) for p, (offset, _) in sorted(offsets.items())]
    if as_json:
        keys = ("topic", "partition", "next_offset")
        print_json({"name": name, "offsets": [dict(zip(keys, row, strict=True)) for row in rows]})
    else:
        print_table(["topic", "partition", "next offset"], rows, right=["partition", "next offset"])
