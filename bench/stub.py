"""The sink of every contestant: builds the Elasticsearch bulk body, then drops it; and the stopwatch that it drives.

Dropping is the strictest choice: a store that takes time would hide what comes beside it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, NamedTuple

from projections.at_once import encode_at_once
from projections.elasticsearch_bulk import Answer, BulkWriter
from projections.elasticsearch_lines import bulk_lines, bulk_lines_at_once
from projections.sink import Applied
from projections.writes import Upsert, Write
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.settings import Settings

# What the Elasticsearch declaration has as its defaults.
MAX_DOCUMENT_BYTES = 10 * 1024 * 1024
_MAX_REQUEST_BYTES = 8 * 1024 * 1024
BATCH_SIZE = 1000


class Reading(NamedTuple):
    """What passed between two moments of a process."""

    events: int
    seconds: float
    cpu_seconds: float


class Stopwatch:
    """Runs from the first batch that reaches the sink to the one that completes `events`: joining a group and the
    part before the first batch count for nobody."""

    def __init__(self, events: int) -> None:
        self._wanted = events
        self._seen = 0
        self._start = (0.0, 0.0)
        self._first = 0
        self.reading: Reading | None = None
        self.done = asyncio.Event()

    def passed(self, rows: int) -> None:
        """A batch of that many rows is out."""
        if not self._seen:
            self._first, self._start = rows, (time.perf_counter(), time.process_time())
        self._seen += rows
        if self._seen >= self._wanted and self.reading is None:
            seconds, cpu = time.perf_counter() - self._start[0], time.process_time() - self._start[1]
            self.reading = Reading(self._seen - self._first, seconds, cpu)
            self.done.set()

    async def read_while(self, running: asyncio.Future[None]) -> Reading:
        """What it read when all had passed. Raises what ended `running` before, or RuntimeError."""
        waiter: asyncio.Future[Any] = asyncio.ensure_future(self.done.wait())
        await asyncio.wait({running, waiter}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        if running.done():
            running.result()
        return self.read()

    def read(self) -> Reading:
        """What it read. Raises RuntimeError if it never came to its end."""
        if self.reading is None:
            raise RuntimeError("the run ended before its events were through")
        return self.reading


class StubSink:
    """Declaration and open sink in one. `delay` seconds pass in each request, as in a store."""

    def __init__(self, stopwatch: Stopwatch, *, batch_size: int = BATCH_SIZE, delay: float = 0.0) -> None:
        self.name = self.store = "stub"
        self.batch_size = batch_size
        self._stopwatch, self._delay = stopwatch, delay
        self._writer = BulkWriter(self.name, self.post, clock=SystemClock(), max_request_bytes=_MAX_REQUEST_BYTES)

    def where(self, settings: Settings) -> str:  # noqa: ARG002  # part of the interface
        return "the stub sink"

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[StubSink]:  # noqa: ARG002  # part of the interface
        yield self

    async def prepare(self) -> None:
        """Nothing to do."""

    async def check(self) -> None:
        """Always fine."""

    def encode(self, write: Write) -> bytes:
        return bulk_lines(write, MAX_DOCUMENT_BYTES)

    def encode_all(self, writes: Sequence[Write]) -> Sequence[bytes]:
        return encode_at_once(writes, self._upserts, self.encode)

    def _upserts(self, writes: Sequence[Upsert]) -> list[bytes]:
        return bulk_lines_at_once(writes, MAX_DOCUMENT_BYTES)

    async def apply(self, encoded: Sequence[bytes]) -> Applied:
        applied = await self._writer.apply(encoded)
        self.passed(len(encoded))
        return applied

    def passed(self, rows: int) -> None:
        """A request of that many rows was answered."""
        self._stopwatch.passed(rows)

    def form(self, write: Upsert) -> bytes:
        """For the loops: the same lines as ours."""
        return bulk_lines(write, MAX_DOCUMENT_BYTES)

    async def send(self, formed: Sequence[bytes]) -> None:
        """For the loops: the same body, in one request."""
        await self.post(b"".join(formed))
        self.passed(len(formed))

    async def purge(self, before: datetime, most: int) -> int:  # noqa: ARG002  # part of the interface
        return 0

    async def reset(self) -> None:
        """Nothing to do."""

    async def documents(self) -> int:
        return 0

    async def refresh(self) -> None:
        """Nothing to do."""

    async def probe(self) -> bool:
        return True

    async def post(self, body: bytes) -> Answer:  # noqa: ARG002  # dropped
        """The request: waits as long as the store would, and says that all is in."""
        if self._delay:
            await asyncio.sleep(self._delay)
        return _ALL_IN


_ALL_IN = Answer(200, {"errors": False})
