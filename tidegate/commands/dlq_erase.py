"""`tidegate dlq erase`: take out of dead letters, and of what belongs to them, all that is about one subject."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.app import App
from tidegate.commands.dlq_erase_output import plain_erasure, print_erasure
from tidegate.commands.dlq_filters import letter_id
from tidegate.commands.loading import load_app
from tidegate.commands.options import AppOption, JsonOption, actor_of, examples, print_json, settings_of, wait_for
from tidegate.console.erasing import ErasurePlan, JobErased, Subject, erase_subject, plan_erasure
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.postgres import connect
from tidegate_kernel.settings import Settings

if TYPE_CHECKING:  # its client takes long to import, and every command of the group imports this module
    from tidegate_kernel.kafka_retention import Retention

EXAMPLES = examples(
    "tidegate dlq erase --key customer-17 --app shop.app:app                       [dim]# the plan[/dim]",
    "tidegate dlq erase --letter 6f1d6f0e-5a0b-5b0c-9d3e-7469646567a1 --reason 'ticket 4711' --yes",
    "tidegate dlq erase --field customer=- --reason 'ticket 4711' --yes            [dim]# asks on standard input[/dim]",
)
_FROM_INPUT = "-"
_LEFT = 1


def erase_command(
    key: Annotated[
        str | None, typer.Option(help="Of this record's or item's key; '-' reads it from standard input.")
    ] = None,
    letter: Annotated[str | None, typer.Option(metavar="ID", help="This letter.")] = None,
    field: Annotated[
        str | None, typer.Option(metavar="NAME=VALUE", help="Whose events say so, as the job's subjects read them.")
    ] = None,
    job: Annotated[list[str] | None, typer.Option("--job", metavar="JOB", help="Of this job; may be repeated.")] = None,
    reason: Annotated[str, typer.Option(help="Why, for the audit: a ticket, no names. Needed with --yes.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without it only the plan is shown.")] = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Erase one subject from dead letters and all that belongs to them; copies in Kafka are only named. For admins.

    A letter keeps its place, its state and its claim. One that nobody had decided about is discarded, never replayed.
    An item of a job by the clock is never done again: of its key a digest stays.
    """
    subject = _subject(key, field, letter)
    loaded, settings = load_app(app), settings_of()
    done, plan, left = wait_for(_erase(loaded, settings, job, subject, reason if yes else None))
    kept = wait_for(_retentions(loaded, settings, plan))
    if as_json:
        print_json(plain_erasure(plan, done, left, kept))
    else:
        print_erasure(plan, done, left, kept)
    if done is not None and any(each.erased.busy for each in done):
        raise typer.Exit(_LEFT)


def _subject(key: str | None, field: str | None, letter: str | None) -> Subject:
    if sum(each is not None for each in (key, field, letter)) != 1:
        raise Misconfigured("say who: either --key KEY or --field NAME=VALUE; or of one letter --letter ID")
    if letter is not None:
        return Subject(letter=letter_id(letter))
    if key is not None:
        # Arguments that are no UTF-8 arrive with surrogates for their bytes.
        return Subject(key=_typed(key).encode("utf-8", "surrogateescape"))
    name, equals, value = (field or "").partition("=")
    if not name or not equals:
        raise Misconfigured("--field takes NAME=VALUE, as in customer=17")
    return Subject(field=name, value=_typed(value))


def _typed(text: str) -> str:
    """What stands in a command line stands in the shell's history and in the list of processes."""
    return sys.stdin.readline().rstrip("\n") if text == _FROM_INPUT else text


async def _erase(
    app: App, settings: Settings, jobs: Sequence[str] | None, subject: Subject, reason: str | None
) -> tuple[Sequence[JobErased] | None, ErasurePlan, int]:
    """What was done (None without a `reason`), the plan, and how much another look finds."""
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        plan = await plan_erasure(connection, app, jobs, subject)
        if reason is None:
            return None, plan, plan.found
        done = await erase_subject(connection, await actor_of(settings, connection), app, plan, reason=reason)
        again = await plan_erasure(connection, app, jobs, subject)
        return done, plan, again.found


async def _retentions(app: App, settings: Settings, plan: ErasurePlan) -> Mapping[str, Retention | None]:
    """How long each topic keeps copies; None where Kafka does not tell."""
    from tidegate_kernel.kafka_retention import read_retention

    topics = {each.origin.dlq_topic for each in plan.jobs}
    codes = {each.origin.job_code for each in plan.jobs}
    topics |= {topic.name for job in app.jobs if job.code in codes for topic in job.topics}
    try:
        told = await read_retention(settings.kafka, topics)
    except Misconfigured:
        told = {}
    return {name: told.get(name) for name in sorted(topics)}
