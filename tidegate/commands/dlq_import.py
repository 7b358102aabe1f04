"""`tidegate dlq import`: dead letters out of their topic, for a database that lost them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.commands.loading import load_app
from tidegate.commands.options import (
    AppOption,
    JsonOption,
    actor_of,
    examples,
    print_json,
    say,
    settings_of,
    tell,
    wait_for,
)
from tidegate.commands.readable import counted
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.postgres import connect

if TYPE_CHECKING:  # the other commands of the group need no Kafka client
    from tidegate.app import App
    from tidegate.jobs.declaration import Job
    from tidegate.letter_import import ImportPlan, ImportReport
    from tidegate_kernel.settings import Settings

_NO_ITEMS = "the topic holds no copy of one, and the job's next run that meets it tries it again"

EXAMPLES = examples(
    "tidegate dlq import ledger --app shop.app:app      [dim]# what the topic tells[/dim]",
    "tidegate dlq import ledger --yes                   [dim]# needs a token; is audited[/dim]",
)


def import_command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Code of the job.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without it the plan is shown.")] = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring a job's dead letters from its DLQ topic into a database that does not have them.

    What the database has stays as it is, what had been resolved stays resolved, and to do it twice changes nothing.
    Items of jobs by the clock are counted, and not brought in: the next run that meets one tries it again.
    """
    loaded, settings = load_app(app), settings_of()
    declared = loaded.any_job(job)
    if isinstance(declared, ClockJob):
        _tell_of_items(wait_for(_plan(loaded, settings, declared)), as_json=as_json)
        return
    report = wait_for(_import(loaded, settings, declared) if yes else _plan(loaded, settings, declared))
    if as_json:
        print_json(_plain(report, is_done=yes))
        return
    tell(*_told(report.plan))
    if yes:
        tell(_done(report))
    else:
        say("nothing was changed; add --yes to bring them in")


def _tell_of_items(report: ImportReport, *, as_json: bool) -> None:
    """Its topic may tell of nothing else, and no token is asked for: whatever is typed, nothing is changed."""
    if as_json:
        print_json(_plain(report, is_done=False))
        return
    tell(*_told(report.plan))
    say("nothing was changed, and there is nothing to bring in")


async def _plan(app: App, settings: Settings, job: Job | ClockJob) -> ImportReport:
    from tidegate.letter_import import ImportReport, plan_import

    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        return ImportReport(plan=await plan_import(app, settings, job, connection))


async def _import(app: App, settings: Settings, job: Job) -> ImportReport:
    from tidegate.letter_import import import_letters

    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        actor = await actor_of(settings, connection)
        return await import_letters(app, settings, job, connection, actor=actor)


def _told(plan: ImportPlan) -> Iterator[str]:
    letters = counted(sum(plan.letters.values()), "letter")
    tell = "tells" if plan.records == 1 else "tell"
    yield f"topic {plan.topic}: {counted(plan.records, 'record')} {tell} of {letters}"
    yield from (f"  {state}: {letters}" for state, letters in _counts(plan.letters).items())
    if plan.items:
        yield f"  items: {plan.items}, not brought in: {_NO_ITEMS}"
    yield f"  malformed: {plan.misfits}"
    yield from (f"    {place}: {why}" for place, why in plan.first_misfits.items())
    if plan.misfits > len(plan.first_misfits):
        yield f"    and {plan.misfits - len(plan.first_misfits)} more"
    yield f"{plan.known} of them are in the database and stay as they are"


def _done(report: ImportReport) -> str:
    counts = ", ".join(f"{letters} {state}" for state, letters in _counts(report.restored).items())
    return f"{counted(report.total, 'letter')} came in{': ' if counts else ''}{counts}; next: tidegate dlq stats"


def _counts(counts: Mapping[Any, int]) -> dict[str, int]:
    return {str(state): letters for state, letters in sorted(counts.items()) if letters}


def _plain(report: ImportReport, *, is_done: bool) -> dict[str, Any]:
    return {**plain_import(report.plan), "is_done": is_done, "restored": _counts(report.restored)}


def plain_import(plan: ImportPlan) -> dict[str, Any]:
    """A plan for JSON."""
    return {
        "job": plan.job,
        "topic": plan.topic,
        "records": plan.records,
        "letters": _counts(plan.letters),
        "malformed": plan.misfits,
        "first_malformed": dict(plan.first_misfits),
        "known": plan.known,
        "items": plan.items,
    }
