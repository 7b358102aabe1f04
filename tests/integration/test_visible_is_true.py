"""G11 on the real stores: what Tidegate says is visible, a reader who polls does find, and is not told too late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from statistics import median
from time import monotonic
from typing import Protocol

import msgspec
import pytest
from pydantic import SecretStr

from projections.clickhouse import ClickHouse
from projections.clickhouse_connection import Connection
from projections.elasticsearch import Elasticsearch
from projections.elasticsearch_sink import connect
from tests.integration.live import Service, running, until
from tidegate import App, CloudEvents, Event, Json, ProjectionJob, Topic, Upsert, on
from tidegate.assembly import assemble, live_loop
from tidegate.freshening import Freshening, freshening_of
from tidegate.resources import Resources
from tidegate.stack.names import StackAddresses
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import Settings

pytestmark = [pytest.mark.servers, pytest.mark.timeout(120)]

PARTITIONS = range(4)
EVENTS = 4_000
REFRESH_SECONDS = 1.0
# Two periods, as promised, and what two busy cores may add to a look; of one look they may add more.
LATEST_SECONDS = 2 * REFRESH_SECONDS + 1.5
LOOKS_BETWEEN = 3


class Noted(msgspec.Struct):
    n: int


def document(event: Event[Noted]) -> Upsert:
    part, offset = event.record.partition, event.record.offset
    place = f"{part}:{offset}"
    return Upsert(place, version=1, document={"place": place, "part": part, "at": offset})


class Reader(Protocol):
    """A reader who asks again and again, and refreshes nothing."""

    settings: Settings
    declared: Elasticsearch | ClickHouse

    async def below(self, promised: Mapping[int, int]) -> tuple[dict[int, int], dict[int, int]]:
        """How many documents below the promised offsets there are, and up to which offset any, by partition."""


@dataclass
class IndexReader:
    settings: Settings
    name: str
    declared: Elasticsearch | ClickHouse = field(init=False)

    def __post_init__(self) -> None:
        kinds = {"place": "keyword", "part": "integer", "at": "long"}
        self.declared = Elasticsearch(
            index=self.name,
            mappings={"properties": {each: {"type": kind} for each, kind in kinds.items()}},
            settings={"number_of_replicas": 0, "number_of_shards": 2},
        )

    async def below(self, promised: Mapping[int, int]) -> tuple[dict[int, int], dict[int, int]]:
        aggregations = {
            f"p{part}": {
                "filter": {"term": {"part": part}},
                "aggs": {
                    "below": {"filter": {"range": {"at": {"lt": promised.get(part, 0)}}}},
                    "upto": {"max": {"field": "at"}},
                },
            }
            for part in PARTITIONS
        }
        async with connect(self.settings) as client:
            found = (await client.search(index=self.name, size=0, aggs=aggregations))["aggregations"]
        counts = {part: found[f"p{part}"]["below"]["doc_count"] for part in PARTITIONS}
        return counts, {part: int(found[f"p{part}"]["upto"]["value"] or 0) for part in PARTITIONS}


@dataclass
class TableReader:
    settings: Settings
    name: str
    declared: Elasticsearch | ClickHouse = field(init=False)

    def __post_init__(self) -> None:
        columns = {"place": "String", "part": "Int32", "at": "Int64"}
        self.declared = ClickHouse(table=self.name, columns=columns, order_by=("place",), batch_size=500)

    async def below(self, promised: Mapping[int, int]) -> tuple[dict[int, int], dict[int, int]]:
        limits = ",".join(str(promised.get(part, 0)) for part in PARTITIONS)
        query = f"SELECT part, countIf(at < [{limits}][part + 1]), max(at) FROM {self.name} GROUP BY part"
        connection = Connection(self.settings)
        try:
            rows = (await (await connection.client()).query(query)).result_rows
        finally:
            await connection.close()
        return {row[0]: row[1] for row in rows}, {row[0]: row[2] for row in rows}


def application(service: Service, reader: Reader) -> App:
    job = ProjectionJob(
        code="notes",
        topics=[Topic(service.topic, format=Json(), envelope=CloudEvents())],
        unlisted="skip",
        runbook="-",
        events=[on("noted", Noted, document)],
        sink=reader.declared,
        freshness_sla=timedelta(seconds=5),
        batch_size=100,
    )
    return App(service=service.topic, owner="tests", jobs=[job])


@asynccontextmanager
async def worker(service: Service, reader: Reader) -> AsyncIterator[tuple[Freshening, Metrics]]:
    """The job runs as in a worker: its consumer, its refresher, its measures."""
    app = application(service, reader)
    settings = reader.settings.model_copy(
        update={"postgres_dsn": SecretStr(service.dsn), "kafka": service.kafka, "drain_timeout": timedelta(seconds=5)}
    )
    metrics = Metrics()
    resources = Resources(settings, service.pool, SystemClock(), metrics, ThreadPoolExecutor(1), "worker")
    async with reader.declared.open(settings) as sink:
        await sink.prepare()
        parts = await assemble(app, app.job("notes"), resources, sink=sink)
        fresh = freshening_of(app, parts, resources)
        assert fresh is not None
        async with running(live_loop(parts, service.join, SystemClock())):
            beside = [asyncio.create_task(work) for work in fresh.work().values()]
            try:
                yield fresh, metrics
            finally:
                for task in beside:
                    task.cancel()
                await asyncio.wait(beside)


async def promised(pool: Pool) -> dict[int, int]:
    """What `tidegate wait-for` would promise now."""
    return {row["partition"]: row["next_offset"] for row in await pool.fetch("SELECT * FROM tidegate.visible")}


class Watcher:
    """Compares, at every moment it gets, what is promised with what is there."""

    def __init__(self, pool: Pool, reader: Reader) -> None:
        self._pool, self._reader = pool, reader
        self.looks = 0
        self.broken: list[str] = []
        self.late: list[float] = []
        self._seen: dict[tuple[int, int], float] = {}

    async def run(self) -> None:
        while True:
            await self.look()

    def has_looked(self, times: int) -> bool:
        return self.looks >= times

    async def look(self) -> None:
        # What was promised before the reader asked: it must find all of it.
        before = await promised(self._pool)
        counts, upto = await self._reader.below(before)
        now = monotonic()
        for part, offset in before.items():
            if counts.get(part, 0) != offset:
                self.broken.append(f"partition {part}: {offset} promised, {counts.get(part, 0)} found")
            for place in [each for each in self._seen if each[0] == part and each[1] < offset]:
                self.late.append(now - self._seen.pop(place))
        for part, last in upto.items():
            if last >= before.get(part, 0):
                self._seen.setdefault((part, last), now)
        self.looks += 1


async def test_what_is_promised_is_found_in_the_index_and_not_promised_late(
    service: Service, stack: StackAddresses, unique_name: Callable[[str], str]
) -> None:
    """Told before the refresh, a reader would ask for what is promised and not find it; told long after it, the figure
    would call fresh data stale."""
    await _prove(service, IndexReader(Settings(elasticsearch_url=stack.elasticsearch_url), unique_name("seen")))


async def test_what_is_promised_is_found_in_the_table_and_not_promised_late(
    service: Service, stack: StackAddresses, unique_name: Callable[[str], str]
) -> None:
    """An insert is visible as soon as it is acknowledged; the figure must not be told before the position moved."""
    name = unique_name("seen").replace("-", "_")
    await _prove(service, TableReader(Settings(clickhouse_url=stack.clickhouse_url), name))


async def _prove(service: Service, reader: Reader) -> None:
    async with worker(service, reader) as (_, metrics):
        watcher = Watcher(service.pool, reader)
        watching = asyncio.create_task(watcher.run())
        for first in range(0, EVENTS, 200):
            await service.produce(range(first, first + 200))
            await until(partial(watcher.has_looked, watcher.looks + LOOKS_BETWEEN))
        await until(lambda: _all_promised(service.pool))
        watching.cancel()
        await asyncio.wait([watching])
        await watcher.look()
        await until(lambda: _measured(metrics, service.topic))

    assert watcher.broken == []
    assert watcher.late, "nothing was seen before it was promised, so nothing was measured"
    assert median(watcher.late) < LATEST_SECONDS


async def _all_promised(pool: Pool) -> bool:
    return sum((await promised(pool)).values()) == EVENTS


def _measured(metrics: Metrics, topic: str) -> bool:
    """Every event was timed until it was seen, and nobody is behind any more."""
    sample = metrics.registry.get_sample_value
    behind = [
        sample("tidegate_reader_seconds_behind", {"job": "notes", "topic": topic, "partition": str(part)})
        for part in PARTITIONS
    ]
    return behind == [0.0] * 4 and sample("tidegate_event_visible_seconds_count", {"job": "notes"}) == EVENTS
