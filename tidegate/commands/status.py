"""`tidegate status`: how far behind, how fresh, what failed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from tidegate.app import App
from tidegate.commands.loading import load_app
from tidegate.commands.options import (
    AppOption,
    JsonOption,
    examples,
    print_json,
    print_table,
    settings_of,
    tell,
    wait_for,
)
from tidegate.commands.pause import plain_intent, told_standing
from tidegate.console.clock_status import ClockStatus
from tidegate.console.facts import ago
from tidegate.console.lag import PartitionStatus
from tidegate.console.rendering import told_rendering
from tidegate.console.status import JobStatus, ServiceStatus, Verdict, read_status
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.settings import Settings

EXAMPLES = examples(
    "tidegate status --app shop.app:app",
    "tidegate status --partitions",
    "tidegate status --json --fail-if-late     [dim]# exit 1 if a job is late, stalled or blocked[/dim]",
)

_COLORS = {
    Verdict.OK: "green",
    Verdict.PAUSED: "cyan",
    Verdict.REWOUND: "cyan",
    Verdict.LATE: "yellow",
    Verdict.STALLED: "red",
    Verdict.BLOCKED: "red",
}
_ALARMING = frozenset({Verdict.LATE, Verdict.STALLED, Verdict.BLOCKED})
_NUMBERS = ("behind", "seconds", "readers", "visible", "sla", "position", "end", "dead letters")


def status_command(
    app: AppOption = None,
    partitions: Annotated[bool, typer.Option("--partitions", help="A line for each partition.")] = False,
    fail_if_late: Annotated[
        bool, typer.Option("--fail-if-late", help="Exit 1 if a job is late, stalled or blocked.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show every job's lag in records and seconds, pauses, freshness, dead letters and the outbox. Needs no worker."""
    loaded = load_app(app)
    found = wait_for(_read(loaded, settings_of()))
    if as_json:
        print_json(_plain(found))
    else:
        _print(found, partitions=partitions)
    if fail_if_late and any(job.verdict in _ALARMING for job in found.jobs):
        raise typer.Exit(1)


async def _read(app: App, settings: Settings) -> ServiceStatus:
    await require_schema(settings.postgres_dsn.get_secret_value())
    return await read_status(app, settings, SystemClock())


def _print(found: ServiceStatus, *, partitions: bool) -> None:
    columns = ["job", "state", "behind", "seconds", "readers", "sla", "owner", "dead letters"]
    print_table(columns, [_job_row(job) for job in found.jobs], right=_NUMBERS)
    if found.clock_jobs:
        typer.echo()
        columns = ["job by the clock", "due", "at work", "last run", "ended", "failed items"]
        print_table(columns, [_clock_row(job) for job in found.clock_jobs], right=("due", "at work", "failed items"))
    if partitions:
        typer.echo()
        columns = ["job", "partition", "state", "position", "end", "behind", "seconds", "visible", "readers", "owner"]
        rows = [_partition_row(job, each) for job in found.jobs for each in job.partitions]
        print_table(columns, rows, right=_NUMBERS)
    for job in found.jobs:
        for intent in job.intents:
            tell(f"{job.code}: {told_standing(job.code, intent)}")
        if job.parked:
            told = "1 event is" if job.parked == 1 else f"{job.parked} events are"
            tell(f"{job.code}: {told} parked behind dead letters of their keys")
        if job.rendering is not None:
            tell(*(f"{job.code}: {told}" for told in told_rendering(job.code, job.rendering)))
        if job.backlog is not None:
            tell(f"{job.code}: rests: {job.backlog}")
        for each in job.partitions:
            if each.obstacle is not None:
                tell(f"{job.code}: {each.topic}:{each.partition} is blocked: {each.obstacle}")
            tell(*_told_of_readers(job, each))
    outbox = found.outbox
    aside = f", {outbox.set_aside} set aside: Kafka refused them for good" if outbox.set_aside else ""
    tell(f"outbox: {outbox.records} waiting, the oldest for {outbox.oldest_age_seconds:.0f} s{aside}")
    if found.upkeep_trouble is not None:
        tell(f"inbox upkeep: {found.upkeep_trouble}")


def _told_of_readers(job: JobStatus, each: PartitionStatus) -> Iterator[str]:
    """What is unusual about what they see."""
    view, where = each.view, f"{job.code}: {each.topic}:{each.partition}"
    if view is not None and view.trouble is not None:
        yield f"{where}: nothing new is visible to readers for {ago(view.trouble_seconds)}: {view.trouble}"
    if view is not None and view.rewound_from is not None:
        yield f"{where}: was moved back from {view.rewound_from}; readers see it up to {view.visible}"


def _job_row(job: JobStatus) -> list[object]:
    color = _COLORS[job.verdict]
    owners = sorted({each.owner for each in job.partitions if each.owner})
    sla = "-" if job.sla_seconds is None else f"{job.sla_seconds:g}"
    letters = ", ".join(f"{count} {state}" for state, count in job.dead_letters.items()) or "0"
    has_started = any(each.position is not None for each in job.partitions)
    owner = ", ".join(owners) or ("nobody" if has_started else "never started")
    verdict = f"[{color}]{job.verdict}[/{color}]"
    readers = "-" if all(each.view is None for each in job.partitions) else _seconds(job.reader_seconds)
    return [job.code, verdict, job.records_behind, _seconds(job.seconds_behind), readers, sla, owner, letters]


def _clock_row(job: ClockStatus) -> list[object]:
    ended = "-" if job.last_ended_at is None else f"{job.last_ended_at:%Y-%m-%d %H:%M:%SZ}"
    state = job.last_state or "never ran"
    return [job.code, job.due, job.running, f"{state}, paused" if job.is_paused else state, ended, job.failed_items]


def _partition_row(job: JobStatus, each: PartitionStatus) -> list[object]:
    where = f"{each.topic}:{each.partition}"
    position = "-" if each.position is None else each.position
    seconds = _seconds(each.seconds_behind)
    visible = "-" if each.view is None or each.view.visible is None else each.view.visible
    readers = "-" if each.view is None else _seconds(each.reader_seconds)
    state = each.state or "-"
    owner = each.owner or "-"
    return [job.code, where, state, position, each.end, each.records_behind, seconds, visible, readers, owner]


def _seconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds:.1f}"


def _plain(found: ServiceStatus) -> dict[str, Any]:
    return {
        "service": found.service,
        "asked_at": found.asked_at.isoformat(),
        "jobs": [
            {
                **asdict(job),
                "intents": [plain_intent(intent) for intent in job.intents],
                "records_behind": job.records_behind,
                "seconds_behind": job.seconds_behind,
                "reader_seconds": job.reader_seconds,
                "partitions": [_plain_partition(each) for each in job.partitions],
                "verdict": job.verdict,
            }
            for job in found.jobs
        ],
        "clock_jobs": [asdict(job) for job in found.clock_jobs],
        "outbox": found.outbox._asdict(),
        "upkeep_trouble": found.upkeep_trouble,
    }


def _plain_partition(each: PartitionStatus) -> dict[str, Any]:
    return {**asdict(each), "view": None if each.view is None else each.view._asdict()}
