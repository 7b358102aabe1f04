"""What `tidegate jobs show` adds to the declaration: where the job stands, if there is a Postgres that knows it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tidegate.commands.jobs_asking import connected
from tidegate.commands.options import say, settings_of, wait_for
from tidegate.console.progress import progress_of
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.declaration import Job
from tidegate_kernel.errors import Misconfigured, Transient

# Whoever wants the declaration, on a train or in CI, does not wait for a server that is not there.
_PATIENCE_SECONDS = 5.0


def progress_now(service: str, job: Job | ClockJob) -> Sequence[dict[str, Any]] | None:
    """Returns where the job stands, by partition or scope; None, with a remark, where Postgres does not tell."""
    try:
        return wait_for(_asked(service, job))
    except (Misconfigured, Transient) as error:
        say(f"note: without its checkpoints, which Postgres does not tell: {error}")
    except TimeoutError:
        say(f"note: without its checkpoints: Postgres has not answered within {_PATIENCE_SECONDS:g} s")
    return None


async def _asked(service: str, job: Job | ClockJob) -> Sequence[dict[str, Any]]:
    async with asyncio.timeout(_PATIENCE_SECONDS), connected(settings_of()) as connection:
        return await progress_of(connection, service, job)
