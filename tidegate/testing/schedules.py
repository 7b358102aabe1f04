"""What a schedule comes to, by a clock that is moved: nights in which clocks change need no waiting for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.history import recent_runs
from tidegate.jobs.clockwork.scheduler import Scheduler
from tidegate_kernel.postgres import open_pool

_STEP = timedelta(minutes=20)
_MOST_RUNS = 1_000_000


@dataclass
class _MovedClock:
    """Time is what it was set to."""

    at: datetime

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def scheduled_runs(
    job: ClockJob, *, db: str, service: str, since: datetime, until: datetime, schedulers: int = 3
) -> Mapping[datetime, int]:
    """How many runs `schedulers` processes make of the job's schedule in (since, until], by what each is made for.

    They race each other, as workers do, in the database `db`, which has Tidegate's tables. The runs stay there as due
    runs of `service`: take a name that no worker has.
    """
    clock = _MovedClock(since)
    async with open_pool(db, size=schedulers) as pool:
        racing = [Scheduler(pool, clock, service=service, holder=f"scheduler-{number}") for number in range(schedulers)]
        for scheduler in racing:
            await scheduler.begin([job])
        while clock.at < until:
            clock.at = min(clock.at + _STEP, until)
            await asyncio.gather(*(scheduler.make_runs() for scheduler in racing))
        async with pool.acquire() as connection:
            found = await recent_runs(connection, service, code=job.code, limit=_MOST_RUNS)
    return Counter(run.scheduled_at for run in found)
