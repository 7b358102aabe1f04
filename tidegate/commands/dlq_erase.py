"""`tidegate dlq erase`: take out of dead letters, and of what belongs to them, all that is about one subject."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.app import App
from tidegate.commands.loading import load_app
from tidegate.commands.options import (
    AppOption,
    JsonOption,
    actor_of,
    examples,
    print_json,
    print_table,
    settings_of,
    tell,
    wait_for,
)
from tidegate.console.erasing import ErasurePlan, JobErased, JobPlan, Subject, erase_subject, plan_erasure
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.postgres import connect
from tidegate_kernel.settings import Settings

if TYPE_CHECKING:  # its client takes long to import, and every command of the group imports this module
    from tidegate_kernel.kafka_retention import Retention

EXAMPLES = examples(
    "tidegate dlq erase --key customer-17 --app shop.app:app                       [dim]# the plan[/dim]",
    "tidegate dlq erase --field customer=- --reason 'ticket 4711' --yes            [dim]# asks on standard input[/dim]",
)
_FROM_INPUT = "-"
_LEFT = 1


def erase_command(
    key: Annotated[str | None, typer.Option(help="Of this record key; '-' reads it from standard input.")] = None,
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
    """
    subject = _subject(key, field)
    loaded, settings = load_app(app), settings_of()
    done, plan, left = wait_for(_erase(loaded, settings, job, subject, reason if yes else None))
    kept = wait_for(_retentions(loaded, settings, plan))
    if as_json:
        print_json(_plain(plan, done, left, kept))
    else:
        _print(plan, done, left, kept)
    if done is not None and any(each.erased.busy for each in done):
        raise typer.Exit(_LEFT)


def _subject(key: str | None, field: str | None) -> Subject:
    if (key is None) == (field is None):
        raise Misconfigured("say who: either --key KEY or --field NAME=VALUE")
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


def _print(
    plan: ErasurePlan, done: Sequence[JobErased] | None, left: int, kept: Mapping[str, Retention | None]
) -> None:
    columns = ["job", "letters", "parked", "edits", "in the outbox", "not looked into"]
    print_table(columns, [_cells(each) for each in plan.jobs], right=columns[2:])
    tell(*_hazards(plan))
    tell(*(f"topic {topic}: copies {_lasting(retention)}; not in our reach" for topic, retention in kept.items()))
    if done is None:
        tell("nothing was erased: add --reason and --yes to do it" if left else "nothing of it is there")
        return
    for job, each in zip(plan.jobs, done, strict=True):
        tell(*_deeds(job, each))
    tell("nothing of it is left" if not left else f"{left} letters or parked events are there now: type it again")


def _cells(job: JobPlan) -> list[object]:
    states = ", ".join(f"{count} {state}" for state, count in job.extent.letters.items()) or "none"
    return [job.origin.job_code, states, job.extent.parked, job.extent.edits, job.extent.copies, job.unknown]


def _hazards(plan: ErasurePlan) -> Iterator[str]:
    for job in plan.jobs:
        code, extent = job.origin.job_code, job.extent
        if extent.undecided:
            yield f"{code}: {extent.undecided} of the letters are undecided; erased they can never be replayed"
        if extent.waiting:
            yield f"{code}: {extent.waiting} events wait in the same sequences; those of others lose what they wait for"
        if extent.parked:
            yield f"{code}: {extent.parked} parked events will never be handled"
        if job.unknown:
            yield f"{code}: {job.unknown} letters do not decode and were not looked into: --key finds them"
    if plan.blind:
        yield f"not looked into, they declare no {plan.subject.kind}: {', '.join(plan.blind)}"
    if plan.published:
        yield f"{plan.published} events with this key that handlers published wait for Kafka: not erased"


def _deeds(job: JobPlan, done: JobErased) -> Iterator[str]:
    code, erased = job.origin.job_code, done.erased
    letters = sum(erased.letters.values())
    yield (
        f"{code}: erased {letters} letters, {erased.parked} parked events, {erased.edits} edits, "
        f"{erased.copies} copies in the outbox"
    )
    if done.loose:
        yield (
            f"{code}: {done.loose} events wait with no letter before them any more; they go on with "
            f"'tidegate dlq replay --job {code} --reason … --yes'"
        )
    for letter in erased.busy:
        yield f"{code}: letter {letter} is just being replayed and was left alone: type it again when the run has ended"


def _lasting(retention: Retention | None) -> str:
    if retention is None:
        return "stay as long as its retention says, which Kafka does not tell now"
    if retention.kept is None:
        told = "stay for ever"
        return f"{told}, unless a later record of their key replaces them" if retention.is_compacted else told
    return f"stay for up to {_spelled(retention.kept + retention.segment)} after they were written"


def _spelled(period: timedelta) -> str:
    hours = -(-period // timedelta(hours=1))
    return f"{hours} h" if hours < 48 else f"{-(-hours // 24)} days"


def _plain(
    plan: ErasurePlan, done: Sequence[JobErased] | None, left: int, kept: Mapping[str, Retention | None]
) -> dict[str, Any]:
    results: Sequence[JobErased | None] = done or [None] * len(plan.jobs)
    return {
        "by": plan.subject.kind,
        "is_done": done is not None,
        "jobs": [_plain_job(job, result) for job, result in zip(plan.jobs, results, strict=True)],
        "not_looked_into": list(plan.blind),
        "published_events": plan.published,
        "left": left,
        "topics": [{"topic": topic, "copies": _lasting(retention)} for topic, retention in kept.items()],
    }


def _plain_job(job: JobPlan, done: JobErased | None) -> dict[str, Any]:
    extent = job.extent
    told = {
        "job": job.origin.job_code,
        "generation": job.origin.generation,
        "letters": dict(extent.letters),
        "parked": extent.parked,
        "edits": extent.edits,
        "copies": extent.copies,
        "waiting": extent.waiting,
        "not_looked_into": job.unknown,
    }
    if done is None:
        return told
    erased = done.erased
    counts = {"letters": dict(erased.letters), "parked": erased.parked, "edits": erased.edits, "copies": erased.copies}
    return {**told, "erased": counts, "loose": done.loose, "busy": [str(letter) for letter in erased.busy]}
