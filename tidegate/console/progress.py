"""Where jobs of every kind have come: the checkpoint values that stand in Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.declaration import Job
from tidegate_kernel.postgres import Connection, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)
_JOB_QUERIES = load_queries("tidegate.jobs")

MOST_SHOWN = 1000
"""Scopes of one job: a service with more tenants asks its tables."""


async def progress_of(connection: Connection, service: str, job: Job | ClockJob) -> Sequence[dict[str, Any]]:
    """Returns where the job stands, by partition or by scope; nothing before its first batch. Raises Transient.

    Of a partition `next_offset` is its checkpoint; of a scope `checkpoint`, with the token under which it was written,
    and for a provider `synced_until`, its cursor.
    """
    with translated_errors("read checkpoints"):
        if isinstance(job, ClockJob):
            rows = await connection.fetch(_QUERIES["clock_progress"], service, job.code, MOST_SHOWN)
        else:
            rows = await connection.fetch(_JOB_QUERIES["live_positions"], service, job.code)
    return [{name: value for name, value in row.items() if name != "topic_id"} for row in rows]
