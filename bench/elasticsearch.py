"""Real Elasticsearch: Tidegate from Kafka to the index, and a bare loop of the same bulk requests."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

import msgspec

from bench.records import Written, new_orders
from bench.stub import BATCH_SIZE, MAX_DOCUMENT_BYTES, Reading, Stopwatch
from bench.workload import JOB, OrderPlaced, application, document
from projections.elasticsearch import Elasticsearch
from projections.elasticsearch_lines import bulk_lines
from projections.elasticsearch_sink import ElasticsearchSink, connect
from projections.sink import Applied
from tidegate.worker import calm_collector, run_worker
from tidegate_kernel.logs import configure_logs
from tidegate_kernel.settings import Settings

_KEYWORDS = ("order_id", "tenant", "customer_id", "currency", "channel")
_NUMBERS = ("total_cents", "items", "version")
_TENANT = "tenant-7"


class TimedIndex:
    """The declaration of an index of this run, whose open sink drives a stopwatch."""

    def __init__(self, stopwatch: Stopwatch, **settings: Any) -> None:
        self._stopwatch = stopwatch
        fields = {name: {"type": "keyword"} for name in _KEYWORDS} | {name: {"type": "long"} for name in _NUMBERS}
        self.declared = Elasticsearch(
            index=f"bench-{secrets.token_hex(4)}",
            mappings={"properties": fields},
            settings={"number_of_replicas": 0, **settings},
            batch_size=BATCH_SIZE,
        )
        self.name, self.store, self.batch_size = self.declared.name, self.declared.store, BATCH_SIZE

    def where(self, settings: Settings) -> str:
        return self.declared.where(settings)

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[TimedSink]:
        async with connect(settings) as client:
            yield TimedSink(self.declared, client, self._stopwatch)

    @asynccontextmanager
    async def made(self, settings: Settings) -> AsyncIterator[TimedSink]:
        """The index is there inside the block, and gone after it."""
        async with self.declared.open(settings) as preparing:
            await preparing.prepare()
        try:
            async with self.open(settings) as sink:
                yield sink
        finally:
            async with connect(settings) as client:
                await client.indices.delete(index=self.declared.physical)
                await client.indices.delete_index_template(name=f"tidegate-{self.declared.physical}")


class TimedSink(ElasticsearchSink):
    """The sink as it is; each batch that is in is told to the stopwatch."""

    def __init__(self, declared: Elasticsearch, client: Any, stopwatch: Stopwatch) -> None:
        super().__init__(declared, client)
        self._stopwatch = stopwatch

    async def apply(self, encoded: Sequence[bytes]) -> Applied:
        applied = await super().apply(encoded)
        self._stopwatch.passed(len(encoded))
        return applied

    async def post(self, body: bytes, rows: int) -> None:
        """One request, and nothing else."""
        answer = await self._post(body)
        if answer.status != 200 or answer.body["errors"]:
            raise RuntimeError(f"the server refused a request: {answer.status}")
        self._stopwatch.passed(rows)


async def from_kafka(settings: Settings, *, service: str, topic: str, events: int) -> Reading:
    """The whole road: fetched, decoded, claimed, projected, in the index, settled."""
    stopwatch, stop = Stopwatch(events), asyncio.Event()
    index = TimedIndex(stopwatch)
    async with index.made(settings):
        configure_logs(style="json", level="info")
        worker = asyncio.create_task(
            run_worker(application(service, topic, index), settings, [JOB], stop=stop), name="worker"
        )
        waiter = asyncio.create_task(stopwatch.done.wait(), name="stopwatch")
        await asyncio.wait({worker, waiter}, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await worker
    return _read(stopwatch)


async def bare_requests(settings: Settings, *, events: int, lanes: int) -> Reading:
    """As many requests of as many documents at once, their bodies made before: what the server itself can do.

    Its index is refreshed once a second, by the server, as ours is by Tidegate: readers see the same.
    """
    bodies = list(_bodies(events))
    stopwatch = Stopwatch(events)
    async with TimedIndex(stopwatch, refresh_interval="1s").made(settings) as sink:
        calm_collector()
        waiting = iter(bodies)

        async def lane() -> None:
            for rows, body in waiting:
                await sink.post(body, rows)

        await asyncio.gather(*(lane() for _ in range(lanes)))
    return _read(stopwatch)


def _bodies(events: int) -> Iterator[tuple[int, bytes]]:
    orders = new_orders(events)
    while batch := list(islice(orders, BATCH_SIZE)):
        yield len(batch), b"".join(map(_lines, batch))


def _lines(written: Written) -> bytes:
    order = msgspec.json.decode(written.value, type=OrderPlaced)
    return bulk_lines(document(order, _TENANT), MAX_DOCUMENT_BYTES)


def _read(stopwatch: Stopwatch) -> Reading:
    if stopwatch.reading is None:
        raise RuntimeError("the run ended before its events were in the index")
    return stopwatch.reading
