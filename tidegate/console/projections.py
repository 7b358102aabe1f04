"""What sinks hold beside what their jobs declare: read, never changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from projections.sink import SinkDeclaration
from tidegate.app import App
from tidegate.jobs.declaration import ConsumerJob
from tidegate_kernel.errors import Misconfigured, NeedsRebuild, Transient
from tidegate_kernel.settings import Settings


class SinkState(StrEnum):
    """Whether a job could start to write."""

    AS_DECLARED = "as declared"
    NEEDS_REBUILD = "needs rebuild"
    NOT_PREPARED = "not prepared"
    AWAY = "away"


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """One sink of a job. `details` say what differs, is missing or does not answer; `documents` is None if unknown."""

    job: str
    sink: str
    store: str
    state: SinkState
    details: Sequence[str]
    documents: int | None


async def sink_statuses(app: App, settings: Settings, job: str | None = None) -> list[SinkStatus]:
    """Returns the status of every sink of the service, or of one job's. Raises Misconfigured for an unknown job."""
    jobs = app.jobs if job is None else [app.job(job)]
    return [await _status(each.code, each.sink, settings) for each in jobs if not isinstance(each, ConsumerJob)]


async def _status(job: str, declared: SinkDeclaration, settings: Settings) -> SinkStatus:
    documents, details = None, tuple[str, ...]()
    try:
        async with declared.open(settings) as sink:
            documents = await sink.documents()
            await sink.check()
        state = SinkState.AS_DECLARED
    except NeedsRebuild as error:
        state, details = SinkState.NEEDS_REBUILD, error.differences
    except Misconfigured as error:
        state, details = SinkState.NOT_PREPARED, (str(error),)
    except Transient as error:
        state, details = SinkState.AWAY, (str(error),)
    return SinkStatus(job, declared.name, declared.store, state, details, documents)
