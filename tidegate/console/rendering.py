"""How far the sinks of folds are behind their states: keys that wait to be rendered, and keys that could not be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inbox.store import find_job
from projections.folds.dirty import Rendering, failed_keys, rendering_of
from tidegate.jobs.declaration import FoldJob, Job
from tidegate_kernel.postgres import Connection

_MOST_LOOKED_AT = 20


@dataclass(frozen=True, slots=True)
class RenderingStatus:
    """The rendering of a fold, and what was in the way of the keys that failed last. No keys: one may name a person."""

    rendering: Rendering
    errors: Sequence[str] = ()


async def rendering_status(connection: Connection, service: str, job: Job) -> RenderingStatus | None:
    """Returns how far the job's sink is behind its states; None for a job that is no fold, or never started."""
    if not isinstance(job, FoldJob):
        return None
    number = await find_job(connection, service=service, code=job.job_code)
    if number is None:
        return None
    rendering = await rendering_of(connection, number)
    failed = await failed_keys(connection, number, most=_MOST_LOOKED_AT) if rendering.failed else ()
    return RenderingStatus(rendering, list(dict.fromkeys(each.error for each in failed)))


def told_rendering(code: str, status: RenderingStatus) -> list[str]:
    """Sentences about what is behind, with the next command; none where nothing is."""
    rendering, told = status.rendering, []
    if rendering.waiting:
        told.append(f"{rendering.waiting} keys wait to be rendered, the first for {rendering.waiting_seconds:.0f} s")
    if rendering.failed:
        command = f"tidegate projections rerender {code} --failed --reason '…' --yes"
        told.append(
            f"{rendering.failed} keys could not be rendered ({'; '.join(status.errors)}); they are tried again when "
            f"they change or a new version starts, or at once: {command}"
        )
    return told
