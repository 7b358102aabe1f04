"""What a job's tables hold of an event, a key or a record: the questions behind `find`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from tidegate.console.fate import Claim, Letter, Parked, SkippedRange
from tidegate.console.lag import LivePosition
from tidegate.console.views import views_of_job
from tidegate.jobs.declaration import Job
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries("tidegate.console")
_JOB_QUERIES = load_queries("tidegate.jobs")
_EVENT_ID, _LETTER_ID = b"ce_id", b"tg-dlq-id"


class Waiting(NamedTuple):
    """A record in the outbox. Kafka has refused it for good if it is set aside."""

    id: int
    kind: str
    topic: str
    created_at: datetime
    is_set_aside: bool


class TraceReader:
    """Reads the traces of one service's jobs. A job that never started has left none."""

    def __init__(self, connection: Connection, service: str, jobs: Mapping[str, asyncpg.Record]) -> None:
        self._connection, self._service, self._jobs = connection, service, jobs

    @classmethod
    async def of(cls, connection: Connection, service: str) -> TraceReader:
        """A reader of the generation of each job that readers see now."""
        rows = await connection.fetch(_QUERIES["newest_generations"], service)
        return cls(connection, service, {row["code"]: row for row in rows})

    def has_started(self, job: Job) -> bool:
        return job.code in self._jobs

    def claims_since(self, job: Job) -> date | None:
        """The first day of which all claims are there; None where none was ever removed."""
        since: date | None = self._jobs[job.code]["claims_since"] if job.code in self._jobs else None
        return since

    async def claims(self, job: Job, ids: Iterable[UUID]) -> Sequence[Claim]:
        """The claims of `ids`, in whichever bucket they are."""
        wanted = list(ids)
        return [Claim(**row) for row in await self._rows(job, _QUERIES["claims_of_event"], wanted)] if wanted else ()

    async def letters_of_event(
        self, job: Job, event_id: str, *, tenant: str | None, brand: str | None
    ) -> Sequence[Letter]:
        """The newest dead letters of the event id; a tenant or brand of None means any."""
        return await self._letters(job, _QUERIES["letters_of_event"], event_id, tenant, brand)

    async def letters_of_key(self, job: Job, key: bytes, *, topic: str | None) -> Sequence[Letter]:
        """The newest dead letters of the key; a topic of None means all."""
        return await self._letters(job, _QUERIES["letters_of_key"], key, topic)

    async def letters_at(self, job: Job, partition: TopicPartition, topic_id: UUID, offset: int) -> Sequence[Letter]:
        """The dead letter of the record at these coordinates of the topic that has this id."""
        topic, number = partition
        return await self._letters(job, _QUERIES["letters_at_place"], topic, topic_id, number, offset)

    async def parked_of_event(
        self, job: Job, event_id: str, *, tenant: str | None, brand: str | None
    ) -> Sequence[Parked]:
        """Where the event waits behind a dead letter of its key; a tenant or brand of None means any."""
        return await self._parked(job, _QUERIES["parked_of_event"], event_id, tenant, brand)

    async def parked_of_key(self, job: Job, key: bytes, *, topic: str | None) -> Sequence[Parked]:
        """What of the key waits, in its order; a topic of None means all."""
        return await self._parked(job, _QUERIES["parked_of_key"], key, topic)

    async def parked_at(self, job: Job, partition: TopicPartition, topic_id: UUID, offset: int) -> Sequence[Parked]:
        """The event of the record at these coordinates, if it waits."""
        topic, number = partition
        return await self._parked(job, _QUERIES["parked_at_place"], topic, topic_id, number, offset)

    async def skipped_at(self, job: Job, partition: TopicPartition, topic_id: UUID, offset: int) -> SkippedRange | None:
        """The newest range with this offset that was passed unread by somebody's decision."""
        topic, number = partition
        rows = await self._rows(job, _QUERIES["skipped_range_at"], topic, topic_id, number, offset)
        return SkippedRange(**rows[0]) if rows else None

    async def position(self, job: Job, partition: TopicPartition) -> LivePosition | None:
        """Where the live consumer stands; None if it never began there."""
        for row in await self._connection.fetch(_JOB_QUERIES["live_positions"], self._service, job.code):
            if (row["topic"], row["partition"]) == partition:
                return LivePosition(row["next_offset"], row["topic_id"], row["owner"], row["moved_at"])
        return None

    async def visible(self, job: Job, partition: TopicPartition) -> int | None:
        """Up to where readers see the partition; None where that is not known."""
        view = (await views_of_job(self._connection, self._service, job)).get(partition)
        return None if view is None else view.visible

    async def unpublished(self, event_id: str) -> Sequence[Waiting]:
        """Events of this id that a handler published and that are not in Kafka yet."""
        return list((await self._waiting(_EVENT_ID, [event_id.encode("utf-8", "replace")])).values())

    async def _parked(self, job: Job, query: str, *arguments: Any) -> Sequence[Parked]:
        return [Parked(**row) for row in await self._rows(job, query, *arguments)]

    async def _letters(self, job: Job, query: str, *arguments: Any) -> Sequence[Letter]:
        letters = [Letter(**row) for row in await self._rows(job, query, *arguments)]
        waiting = await self._waiting(_LETTER_ID, [str(letter.id).encode() for letter in letters])
        return [letter._replace(is_waiting=str(letter.id).encode() in waiting) for letter in letters]

    async def _waiting(self, header: bytes, values: Sequence[bytes]) -> Mapping[bytes, Waiting]:
        """Records of the outbox by the value they have in `header`."""
        rows = await self._connection.fetch(_QUERIES["outbox_with_header"], header, values) if values else ()
        return {row["value"]: Waiting(*(row[name] for name in Waiting._fields)) for row in rows}

    async def _rows(self, job: Job, query: str, *arguments: Any) -> Sequence[asyncpg.Record]:
        known = self._jobs.get(job.code)
        return () if known is None else await self._connection.fetch(query, known["id"], *arguments)
