"""`tidegate pause` and `tidegate resume`: what an operator wants of jobs, until it is ended or expires."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from consumers.intents import Intent, IntentKind
from tidegate.commands.durations import duration
from tidegate.commands.loading import load_app
from tidegate.commands.options import AppOption, JsonOption, actor_of, examples, print_json, settings_of, tell, wait_for
from tidegate.jobs.intents import Paused, Resumed, pause, resume
from tidegate.jobs.selection import Selection, part_of, resume_command, select
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.postgres import connect
from tidegate_kernel.settings import Settings

PAUSE_EXAMPLES = examples(
    "tidegate pause ledger --reason 'bank closes its API at noon' --for 2h",
    "tidegate pause ledger --partition orders:3 --reason 'looking at offset 1047'",
    "tidegate pause ledger --tenant acme --reason 'acme asked us to stop'",
    "tidegate pause --all --reason 'database moves'",
)
RESUME_EXAMPLES = examples(
    "tidegate resume ledger",
    "tidegate resume ledger --tenant acme --reason 'acme is back'",
    "tidegate resume --all       [dim]# what was paused with --all; what was paused by name stays so[/dim]",
)

JobArgument = Annotated[str | None, typer.Argument(metavar="JOB", help="Code of the job.")]
AllOption = Annotated[bool, typer.Option("--all", help="Every job of the service.")]
PartitionOption = Annotated[
    str | None, typer.Option("--partition", metavar="TOPIC:N or N", help="One partition; N: of every topic of the job.")
]
TenantOption = Annotated[
    str | None, typer.Option("--tenant", help="Only this tenant's events; what follows them in a partition waits too.")
]


def pause_jobs_command(
    job: JobArgument = None,
    reason: Annotated[str, typer.Option(help="Why, for whoever comes next. Needed.")] = "",
    lasting: Annotated[
        str | None, typer.Option("--for", metavar="90s|30m|2h|1d", help="It ends by itself after that.")
    ] = None,
    all_jobs: AllOption = False,
    partition: PartitionOption = None,
    tenant: TenantOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make jobs rest: the batches in hand are finished, nothing new begins, ownership is kept. Backfills go on."""
    asked = None if lasting is None else duration("--for", lasting)
    selection = select(load_app(app), job, all_jobs=all_jobs, place=partition, tenant=tenant)
    paused = wait_for(_pause(settings_of(), selection, reason, asked))
    if as_json:
        print_json({"jobs": [_plain_paused(each) for each in paused]})
    else:
        for each in paused:
            tell(*_told_paused(each))


def resume_jobs_command(
    job: JobArgument = None,
    reason: Annotated[str, typer.Option(help="Why, for the audit.")] = "",
    all_jobs: AllOption = False,
    partition: PartitionOption = None,
    tenant: TenantOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """End pauses: those that `tidegate pause` with the same words made."""
    selection = select(load_app(app), job, all_jobs=all_jobs, place=partition, tenant=tenant)
    resumed = wait_for(_resume(settings_of(), selection, reason))
    if as_json:
        print_json({"jobs": [_plain_resumed(each) for each in resumed]})
    else:
        for each in resumed:
            tell(*_told_resumed(each))


async def _pause(settings: Settings, selection: Selection, reason: str, lasting: timedelta | None) -> list[Paused]:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        actor = await actor_of(settings, connection)
        return await pause(connection, actor, selection, reason=reason, lasting=lasting)


async def _resume(settings: Settings, selection: Selection, reason: str) -> list[Resumed]:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        return await resume(connection, await actor_of(settings, connection), selection, reason=reason)


def _told_paused(answer: Paused) -> list[str]:
    name, part, made = repr(answer.job), part_of(answer.pause), answer.pause.sentence()
    if answer.is_new:
        lines = [f"job {name}, {part}: {made}"]
        lines += [f"  it was {earlier.sentence()} already" for earlier in answer.earlier]
    else:
        lines = [f"job {name}, {part}: nothing to do, it is {made}"]
    if answer.backfill is not None:
        lines.append(f"  its backfill {answer.backfill} goes on: a pause holds back live consumers alone")
    return [*lines, f"  '{resume_command(answer.job, answer.pause)}' ends it"]


def _told_resumed(answer: Resumed) -> list[str]:
    lines = [f"job {answer.job!r}, {part_of(each)}: resumed; it was {each.sentence()}" for each in answer.ended]
    if not answer.ended:
        lines = [f"job {answer.job!r}: nothing to resume"]
    return [*lines, *(f"  {told_standing(answer.job, each)}" for each in answer.remaining)]


def told_standing(job: str, intent: Intent) -> str:
    """What stands, and what ends it."""
    ending = f"; '{resume_command(job, intent)}' ends it" if intent.kind is IntentKind.PAUSE else ""
    return f"{part_of(intent)} is {intent.sentence()}{ending}"


def plain_intent(intent: Intent) -> dict[str, Any]:
    """An intent for programs."""
    return {
        "kind": intent.kind,
        "topic": intent.topic,
        "partition": intent.partition,
        "tenant": intent.tenant,
        "reason": intent.reason,
        "by": intent.actor,
        "since": intent.started_at,
        "until": intent.until,
    }


def _plain_paused(answer: Paused) -> dict[str, Any]:
    return {
        "job": answer.job,
        "is_new": answer.is_new,
        "pause": plain_intent(answer.pause),
        "earlier": [plain_intent(each) for each in answer.earlier],
        "backfill": answer.backfill,
    }


def _plain_resumed(answer: Resumed) -> dict[str, Any]:
    return {
        "job": answer.job,
        "ended": [plain_intent(each) for each in answer.ended],
        "remaining": [plain_intent(each) for each in answer.remaining],
    }
