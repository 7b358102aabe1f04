"""`tidegate find`: what became of an event, of a key, of the record at some coordinates."""

from __future__ import annotations

from collections.abc import Sequence
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
from tidegate.console.claim_ids import EventSought
from tidegate.console.find import Found, KeySought, PlaceSought, Sought, find
from tidegate.console.places import place_of
from tidegate.jobs.declaration import Job
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.settings import Settings

EXAMPLES = examples(
    "tidegate find orders:3:18277 --app shop.app:app",
    "tidegate find --event-id 01890a5d-ac96-774b-bcce-b302099a8057",
    "tidegate find --event-id order-17 --source web --tenant acme --job customer-ledger",
    "tidegate find --key c1 --topic orders --json",
)

Place = Annotated[str | None, typer.Argument(metavar="[TOPIC:P:OFFSET]", help="The record at these coordinates.")]
EventId = Annotated[str | None, typer.Option("--event-id", metavar="ID", help="The event of this id.")]
Source = Annotated[str | None, typer.Option(metavar="S", help="With an id that is no UUID: the event's source.")]
Tenant = Annotated[str | None, typer.Option(metavar="T", help="The same: its tenant; '' for none.")]
Brand = Annotated[str | None, typer.Option(metavar="B", help="The same: its brand; '' for none.")]
Key = Annotated[str | None, typer.Option(metavar="KEY", help="Dead letters of this record key.")]
Topic = Annotated[str | None, typer.Option(metavar="TOPIC", help="With --key: only of this topic.")]
JobName = Annotated[str | None, typer.Option("--job", metavar="JOB", help="Only what became of it in this job.")]


def find_command(
    place: Place = None,
    app: AppOption = None,
    event_id: EventId = None,
    source: Source = None,
    tenant: Tenant = None,
    brand: Brand = None,
    key: Key = None,
    topic: Topic = None,
    job: JobName = None,
    as_json: JsonOption = False,
) -> None:
    """Say what became of it in each job: claimed, dead, skipped, not reached. Exit 1 if there is no trace of it."""
    loaded = load_app(app)
    given = [each is not None for each in (place, event_id, key)]
    if given.count(True) != 1:
        raise Misconfigured("say what to find: one of TOPIC:PARTITION:OFFSET, --event-id ID, or --key KEY")
    sought = _sought(place, key, topic) if event_id is None else _event(event_id, source, tenant, brand)
    jobs = list(loaded.jobs) if job is None else [loaded.job(job)]
    found = wait_for(_find(loaded, settings_of(), sought, jobs))
    if as_json:
        print_json(_plain(found))
    else:
        _print(found)
    if not found.is_found:
        raise typer.Exit(1)


def _event(event_id: str, source: str | None, tenant: str | None, brand: str | None) -> EventSought:
    if not event_id:
        raise Misconfigured("--event-id is empty; an event without an id is found by its place, TOPIC:PARTITION:OFFSET")
    return EventSought(event_id, source, tenant, brand)


def _sought(place: str | None, key: str | None, topic: str | None) -> Sought:
    if place is None:
        return KeySought((key or "").encode("utf-8", "surrogateescape"), topic)
    partition, offset = place_of(place)
    return PlaceSought(partition, offset)


async def _find(app: App, settings: Settings, sought: Sought, jobs: Sequence[Job]) -> Found:
    await require_schema(settings.postgres_dsn.get_secret_value())
    return await find(app, settings, sought, jobs, SystemClock())


def _print(found: Found) -> None:
    if found.reading is not None:
        written = "" if found.written_at is None else f", written {found.written_at:%Y-%m-%d %H:%M:%S}Z"
        tell(f"record: {found.reading}{written}")
    for job in found.jobs:
        event = "" if job.event_type is None else f" [{job.event_type} {job.event_id or 'without an id'}]"
        tell(f"{job.job}: {job.fate}{event}: {job.told}")
    letters = [
        [job.job, each.id, f"{each.topic}:{each.partition}:{each.offset}", each.state, each.reason, each.error_class,
         each.attempts, f"{each.last_failed_at:%Y-%m-%d %H:%M:%SZ}"]
        for job in found.jobs
        for each in job.letters
    ]  # fmt: skip
    if letters:
        columns = ["job", "dead letter", "record", "state", "reason", "error", "attempts", "last failed"]
        print_table(columns, letters, right=["attempts"])
    for waiting in found.outbox:
        state = "set aside: Kafka refused it for good" if waiting.is_set_aside else "waits to be published"
        tell(f"outbox: {waiting.kind} for {waiting.topic!r} of {waiting.created_at:%Y-%m-%d %H:%M:%S}Z {state}")
    for note in found.notes:
        tell(f"note: {note}")
    if not found.is_found:
        tell("no trace of it")


def _plain(found: Found) -> dict[str, Any]:
    return {
        "is_found": found.is_found,
        "reading": found.reading,
        "written_at": found.written_at,
        "jobs": [
            asdict(job)
            | {
                "claims": [each._asdict() for each in job.claims],
                "letters": [each._asdict() for each in job.letters],
                "parked": [each._asdict() for each in job.parked],
                "skipped": None if job.skipped is None else job.skipped._asdict(),
            }
            for job in found.jobs
        ],
        "outbox": [each._asdict() for each in found.outbox],
        "notes": found.notes,
    }
