"""Everybody else who reads the topic: a replay is between the job and its letters, and none of them may notice it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiokafka import AIOKafkaConsumer

from examples.shop.demo.place import Place, TrialFailed
from examples.shop.demo.workers import Worker

JOBS = ("order-search", "revenue-by-day")
_COUNTERS = ("tidegate_records_total", "tidegate_events_applied_total", "tidegate_events_duplicate_total")
_QUIET_MS = 1000


class Others:
    """Counts what others have seen and done since this object was made. `group`: a reader of a group of its own."""

    def __init__(self, place: Place, http: aiohttp.ClientSession, worker: Worker, group: Any) -> None:
        self._place, self._http, self._worker, self._group = place, http, worker, group
        self._read = 0

    async def seen(self) -> Mapping[str, int]:
        """Numbers that only grow, by what they count."""
        await self._worker.scrape(self._http)
        handled = {f"records handled by {job}": self._handled(job) for job in JOBS}
        return {
            "records in the topic": await self._records(),
            "records read by another group": await self._read_by_group(),
            **handled,
            "writes to the search index": await self._index_writes(),
        }

    def _handled(self, job: str) -> int:
        return int(sum(self._worker.samples.get((name, job, ""), 0.0) for name in _COUNTERS))

    async def _records(self) -> int:
        return sum((await self._group.end_offsets(self._group.assignment())).values())

    async def _read_by_group(self) -> int:
        while batches := await self._group.getmany(timeout_ms=_QUIET_MS):
            self._read += sum(map(len, batches.values()))
        return self._read

    async def _index_writes(self) -> int:
        url = f"{self._place.elasticsearch}/{self._place.index}-g1/_stats/indexing"
        async with self._http.get(url) as answer:
            if answer.status != 200:
                raise TrialFailed(
                    f"elasticsearch answered {answer.status} when it was asked how often it was written to"
                )
            told = (await answer.json())["_all"]["primaries"]["indexing"]
        return int(told["index_total"] + told["delete_total"])


@asynccontextmanager
async def others_of(place: Place, http: aiohttp.ClientSession, worker: Worker) -> AsyncIterator[Others]:
    """Yields the others, at the end of the topic; the group is left afterwards."""
    group = AIOKafkaConsumer(
        place.topic,
        bootstrap_servers=place.kafka,
        group_id=f"{place.prefix}loyalty-points",
        enable_auto_commit=False,
        auto_offset_reset="latest",
    )
    await group.start()
    try:
        for partition in group.assignment():
            await group.position(partition)  # where it begins is decided now
        yield Others(place, http, worker, group)
    finally:
        await group.stop()
