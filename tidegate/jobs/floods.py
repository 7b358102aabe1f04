"""Topics that a flood of dead letters has stopped, and their release by somebody who has looked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tidegate.app import App
from tidegate.jobs.declaration import Job
from tidegate_kernel.audit import permitted
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import JobId
from tidegate_kernel.permissions import Action, Actor, Deed
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.queries import load_queries
from tidegate_kernel.source import RecordSource

_QUERIES = load_queries("tidegate.jobs")


@dataclass(frozen=True, slots=True)
class Flood:
    """A stopped topic of a job. `dead` counts its letters that nobody has resolved yet."""

    job: JobId
    topic: str
    why: str
    since: datetime
    dead: int


@dataclass(frozen=True, slots=True)
class Release:
    """What is to be released: dead letters below `until` (partition to offset) are foreseen and not counted again."""

    job: JobId
    topic: str
    topic_id: UUID
    until: Mapping[int, int]


async def read_floods(connection: Connection, app: App, job: Job) -> Sequence[Flood]:
    """Returns the stopped topics of the job, oldest first; one stopped twice at once, twice. Raises Transient."""
    with translated_errors("read floods"):
        rows = await connection.fetch(_QUERIES["floods_of_job"], app.service, job.code)
    return [Flood(row["job"], row["topic"], row["reason"], row["started_at"], row["dead"]) for row in rows]


async def plan_release(
    reader: RecordSource, job: Job, floods: Sequence[Flood], *, topic: str | None, until: Mapping[int, int] | None
) -> Release:
    """Returns what a release of `topic` would do: by default, of the only one stopped. `until` None: up to the ends.

    Raises Misconfigured where nothing is stopped or it is not clear what is meant, SourceFailure.
    """
    stopped = sorted({flood.topic for flood in floods})
    if not stopped:
        raise Misconfigured(f"job {job.code!r}: no topic is stopped for a flood of dead letters")
    if topic is None and len(stopped) > 1:
        raise Misconfigured(f"job {job.code!r}: {', '.join(stopped)} are stopped; say which with --topic")
    chosen = topic or stopped[0]
    if chosen not in stopped:
        raise Misconfigured(f"job {job.code!r}: topic {chosen!r} is not stopped; stopped: {', '.join(stopped)}")
    ranges = await reader.ranges(await reader.partitions_of(chosen))
    ends = {place.partition: held.end for place, held in ranges.items()}
    for partition, offset in (until or {}).items():
        if not 0 <= offset <= ends.get(partition, -1):
            raise Misconfigured(f"{chosen}:{partition} has no offset {offset}; the log ends at {ends.get(partition)}")
    return Release(floods[0].job, chosen, await reader.topic_id(chosen), ends if until is None else until)


async def release_flood(
    database: Connection | Pool, actor: Actor, app: App, job: Job, release: Release, *, reason: str
) -> None:
    """The topic moves again within two seconds. Raises Denied, Transient."""
    offsets = sorted(release.until.items())
    told = {"topic": release.topic, "until": {str(partition): offset for partition, offset in offsets}}
    deed = Deed(Action.FLOOD_RELEASE, app.group(job.job_code), reason, told)
    async with permitted(database, actor, deed) as connection:
        await connection.execute(
            _QUERIES["allow_letters"],
            release.job,
            release.topic,
            release.topic_id,
            [partition for partition, _ in offsets],
            [offset for _, offset in offsets],
        )
        await connection.fetch(_QUERIES["release_flood"], release.job, release.topic, actor.name)
