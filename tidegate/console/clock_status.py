"""Jobs by the clock as they stand: what waits, what is at work, how the last run ended, what failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidegate.app import App
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.runs import RunState
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStatus:
    """One job. `due`: runs whose time has come and that nobody works on. `failed_items`: not done since.

    `last_state`: how the run ended that ended last; None before the first.
    """

    code: str
    kind: str
    trigger: str
    due: int = 0
    running: int = 0
    failed_items: int = 0
    last_state: RunState | None = None
    last_ended_at: datetime | None = None
    is_paused: bool = False


async def clock_statuses(connection: Connection, app: App) -> Sequence[ClockStatus]:
    """Returns every job by the clock of the service, in the order of their declaration."""
    rows = await connection.fetch(_QUERIES["clock_status"], app.service, [job.code for job in app.clock_jobs])
    found = {row["code"]: dict(row) for row in rows}
    return [_status(job, found.get(job.code, {"code": job.code})) for job in app.clock_jobs]


def _status(job: ClockJob, found: dict[str, Any]) -> ClockStatus:
    state = found.pop("last_state", None)
    return ClockStatus(
        kind=type(job).__name__,
        trigger=str(job.trigger or "by hand"),
        last_state=None if state is None else RunState(state),
        **found,
    )
