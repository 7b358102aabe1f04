"""What readers of a job see of each partition, as Postgres has it: no worker needs to be alive for it."""

from __future__ import annotations

from typing import NamedTuple

from tidegate.jobs.declaration import ConsumerJob, Job
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries("tidegate.console")


class View(NamedTuple):
    """Up to where readers see a partition; None before anything was made visible.

    `still_seconds`: since when neither that nor the position has moved. `rewound_from`: it had been there before its
    position was moved back, and is not there again. `trouble`: why nothing can be made visible, for
    `trouble_seconds`. All ages are by the database's clock.
    """

    visible: int | None
    still_seconds: float
    rewound_from: int | None = None
    trouble: str | None = None
    trouble_seconds: float = 0.0


async def views_of_job(connection: Connection, service: str, job: Job) -> dict[TopicPartition, View]:
    """What readers see, by partition; nothing for a job that has none."""
    if isinstance(job, ConsumerJob):
        return {}
    rows = await connection.fetch(_QUERIES["views_of_job"], service, job.code)
    return {
        TopicPartition(row["topic"], row["partition"]): View(
            row["visible"], row["still_seconds"], row["rewound_from"], row["trouble"], row["trouble_seconds"] or 0.0
        )
        for row in rows
    }
