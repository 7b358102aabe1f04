"""Looking for one subject in all that a job's letters and parked events hold."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

from consumers.subjects import Sight, SubjectSeeker
from dlq.forgetting.erasure import Held, Kept, letters_to_read, parked_to_read
from tidegate_kernel.event import JobId
from tidegate_kernel.postgres import Connection

# Read at once while looking: of records of 1 MiB, Kafka's default limit, 50 MiB.
_READ = 50


async def search(connection: Connection, job: JobId, seeker: SubjectSeeker) -> tuple[Held, int]:
    """Returns what of the job's letters and parked events is about the subject, and of how many nobody can tell."""
    letters, strange = await _matching(seeker, _letters(connection, job))
    parked, more = await _matching(seeker, _parked(connection, job))
    return Held(letters, parked), strange + more


async def _matching(seeker: SubjectSeeker, batches: AsyncIterator[Sequence[Kept]]) -> tuple[list[Any], int]:
    found, unknown = [], 0
    async for batch in batches:
        for kept in batch:
            sights = seeker.look(kept.records)
            if Sight.SUBJECT in sights:
                found.append(kept.id)
            elif Sight.SOMEBODY_ELSE not in sights:
                unknown += 1
    return found, unknown


async def _letters(connection: Connection, job: JobId) -> AsyncIterator[Sequence[Kept]]:
    after = UUID(int=0)
    while batch := await letters_to_read(connection, job, after, _READ):
        yield batch
        after = batch[-1].id


async def _parked(connection: Connection, job: JobId) -> AsyncIterator[Sequence[Kept]]:
    after = 0
    while batch := await parked_to_read(connection, job, after, _READ):
        yield batch
        after = batch[-1].id
