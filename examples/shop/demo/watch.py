"""Looks at the running trial twice a second: how far every job is, from its positions, and what its workers count."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from examples.shop.demo.place import Place, TrialFailed
from examples.shop.demo.produce import Sent
from examples.shop.demo.screen import Screen
from examples.shop.demo.workers import Worker

JOBS = ("customer-ledger", "order-search", "revenue-by-day", "customer-value")
_LOOK_SECONDS = 0.5

_SETTLED = """
SELECT j.code, sum(p.next_offset)::bigint AS settled
FROM tidegate.position AS p
JOIN tidegate.job AS j ON j.id = p.job
WHERE p.topic = $1 AND p.run = 0
GROUP BY j.code
"""
_CLAIMED = """
SELECT j.code, count(*) AS claimed
FROM tidegate.inbox AS i
JOIN tidegate.job AS j ON j.id = i.job
GROUP BY j.code
"""
_DEAD_LETTERS = "SELECT count(*) FROM tidegate.dead_letter"
_UNRENDERED = "SELECT count(*) FROM tidegate.dirty WHERE error IS NULL"
_UNPUBLISHED = "SELECT count(*) FROM tidegate.outbox"

LAG_BUCKET = "tidegate_event_lag_seconds_bucket"
DUPLICATES = "tidegate_events_duplicate_total"


@dataclass
class Watch:
    """The trial as it is seen from outside. `workers` are all that ever ran."""

    place: Place
    database: Any
    http: aiohttp.ClientSession
    screen: Screen
    sent: Sent
    workers: list[Worker] = field(default_factory=list)

    async def run(self) -> None:
        """Shows the state until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def look(self) -> Mapping[str, int]:
        """Shows and returns how many records each job has settled."""
        settled = {row["code"]: row["settled"] for row in await self.database.fetch(_SETTLED, self.place.topic)}
        for worker in self.workers:
            if worker.is_running:
                await worker.scrape(self.http)
        letters = await self.database.fetchval(_DEAD_LETTERS)
        self.screen.show({"sent": self.sent.records, **{job: settled.get(job, 0) for job in JOBS}}, letters)
        return settled

    async def until_sent(self, share: float, total: int) -> None:
        """That share of the story has been acknowledged by Kafka."""
        while self.sent.records < share * total:  # noqa: ASYNC110  # a count that grows with every round
            await asyncio.sleep(0.05)

    async def until_settled(self, total: int, *, seconds: float) -> None:
        """Every job has settled everything that was sent, and every dead letter is published. Raises TrialFailed."""
        try:
            async with asyncio.timeout(seconds):
                while not await self._is_settled(total):  # noqa: ASYNC110  # other processes: nothing to wait on
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            settled = await self.look()
            raise TrialFailed(
                f"not settled after {seconds:.0f} s: {settled} of {total}; see {self.place.folder}"
            ) from None

    async def _is_settled(self, total: int) -> bool:
        settled = {row["code"]: row["settled"] for row in await self.database.fetch(_SETTLED, self.place.topic)}
        if not all(settled.get(job) == total for job in JOBS):
            return False
        return not any([await self.database.fetchval(query) for query in (_UNPUBLISHED, _UNRENDERED)])

    async def claimed(self) -> Mapping[str, int]:
        """How many event ids each job has taken: every event once, however often it came."""
        return {row["code"]: row["claimed"] for row in await self.database.fetch(_CLAIMED)}

    def counted(self, sample: str, job: str) -> int:
        """Sum of a counter over all workers; of a killed one up to its last scrape."""
        return int(sum(worker.samples.get((sample, job, ""), 0.0) for worker in self.workers))

    def lag_quantiles(self, job: str, fractions: Sequence[float]) -> Sequence[float]:
        """Seconds from an event's time to its settling: the upper bound of the histogram's bucket."""
        buckets: dict[float, float] = {}
        for worker in self.workers:
            for (name, of_job, bound), count in worker.samples.items():
                if name == LAG_BUCKET and of_job == job:
                    buckets[float(bound)] = buckets.get(float(bound), 0.0) + count
        total = buckets.get(float("inf"), 0.0)
        return [min((bound for bound, n in buckets.items() if n >= f * total), default=0.0) for f in fractions]
