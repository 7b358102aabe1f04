"""Two nights in which clocks change, by a clock that is moved by hand: three schedulers on the real database.

Only here a demo reaches for what stands behind Tidegate's face: a worker's clock is the machine's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from examples.shop.demo.place import Place
from examples.shop.reconciliation.job import nightly_reconciliation
from tidegate.jobs.clockwork.scheduler import Scheduler
from tidegate_kernel.postgres import Pool, open_pool

_SCHEDULERS = 3
_STEP = timedelta(minutes=20)


class Change(NamedTuple):
    """Two nights around a change, and when the runs of 02:15 in Berlin are due in them, in UTC."""

    name: str
    begin: datetime
    due: Sequence[datetime]


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


CHANGES = (
    # 02:15 comes twice: the first one counts.
    Change("autumn", _at("2026-10-24T12:00"), (_at("2026-10-25T00:15"), _at("2026-10-26T01:15"))),
    # 02:15 does not come: the end of the gap counts, 03:00.
    Change("spring", _at("2026-03-28T12:00"), (_at("2026-03-29T01:00"), _at("2026-03-30T00:15"))),
)


@dataclass
class MovedClock:
    """Time is what it was set to."""

    at: datetime

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def runs_of(place: Place, change: Change) -> Mapping[datetime, int]:
    """How many runs three schedulers made in the two nights, by what each was made for."""
    service, clock = f"{place.prefix}{change.name}", MovedClock(change.begin)
    async with open_pool(place.environment["TIDEGATE_POSTGRES_DSN"], size=_SCHEDULERS) as pool:
        schedulers = [await _scheduler(pool, clock, service, number) for number in range(_SCHEDULERS)]
        while clock.at < change.begin + timedelta(days=2):
            clock.at += _STEP
            await asyncio.gather(*(each.make_runs() for each in schedulers))
        rows = await pool.fetch(
            "SELECT r.scheduled_at FROM tidegate.job_run AS r JOIN tidegate.job AS j ON j.id = r.job "
            "WHERE j.service = $1",
            service,
        )
    return Counter(row["scheduled_at"] for row in rows)


async def _scheduler(pool: Pool, clock: MovedClock, service: str, number: int) -> Scheduler:
    scheduler = Scheduler(pool, clock, service=service, holder=f"scheduler-{number}")
    await scheduler.begin([replace(nightly_reconciliation(), jitter=timedelta(0), overlap="wait")])
    return scheduler
