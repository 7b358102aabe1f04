"""The outbox relay: what a transaction decided to publish reaches Kafka, at least once and in order per key.

Every process runs one; a transaction-long lock lets one of them work at a time. A record leaves the outbox only after
Kafka acknowledged it, so a relay that dies in between repeats it, with the same ids in its headers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import structlog

from dlq.envelope import OUTBOX_ID as DEAD_LETTER_OUTBOX_ID
from tidegate.jobs.delivery import Delivery, Pending, waves
from tidegate_kernel import logs
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Transient
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.outbox import OUTBOX_ID, RELAY_LOCK
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.queries import load_queries
from tidegate_kernel.source import Outgoing, RecordWriter

_QUERIES = load_queries("tidegate.jobs")
# Values of a batch in memory; twice that with the client's buffers.
_BATCH_BYTES = 8 * 1024 * 1024
# Locks and snapshot are held while Kafka answers: a call of the writer lasts at most 10 s and none starts after 4.
_TRANSACTION_SECONDS = 15.0
_LAST_WAVE_SECONDS = 4.0
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
# Counting a long backlog reads all of it.
_MEASURE_EVERY_SECONDS = 15.0

_log = structlog.get_logger(__name__)


class Backlog(NamedTuple):
    """What waits in the outbox; `set_aside` records will never leave by themselves."""

    records: int
    oldest_age_seconds: float
    set_aside: int


@dataclass(slots=True)
class _Pause:
    """A topic that did not answer is left alone until `until` (monotonic), so that the others go on."""

    failures: int
    until: float


class OutboxRelay:
    """Publishes the outbox. Safe to run in any number of processes."""

    def __init__(
        self,
        pool: Pool,
        writer: RecordWriter,
        clock: Clock,
        *,
        batch_size: int = 500,
        idle_delay: timedelta = timedelta(milliseconds=400),
        metrics: Metrics | None = None,
    ) -> None:
        self._pool = pool
        self._writer = writer
        self._clock = clock
        self._batch_size = batch_size
        self._idle_seconds = idle_delay.total_seconds()
        self._metrics = Metrics() if metrics is None else metrics
        self._measure_at = clock.monotonic()
        self._pauses: dict[str, _Pause] = {}

    async def run(self) -> None:
        """Relays until cancelled, through outages of Postgres and Kafka. Idle it asks once per `idle_delay`: with
        the pool's own reset, five short statements a second."""
        failures = 0
        while True:
            try:
                relayed = await self.relay_once()
                await self._measure()
            except Transient as error:
                failures += 1
                if failures == 1:
                    _log.warning(logs.OUTBOX_INTERRUPTED, error=str(error))
                await self._clock.sleep(_pause_seconds(failures))
                continue
            if failures:
                _log.info(logs.OUTBOX_RESUMED, failures=failures)
                failures = 0
            if relayed == 0:
                await self._clock.sleep(self._idle_seconds)

    async def relay_once(self) -> int:
        """Returns how many records left the outbox: acknowledged by Kafka, or set aside for good.

        0 also where another process is at it. Raises Transient if Postgres or the road to it failed; records that were
        written by then are written again later.
        """
        with translated_errors("outbox relay"):
            async with self._pool.acquire(timeout=5) as connection:
                topics = self._due(row["topic"] for row in await connection.fetch(_QUERIES["pending_topics"]))
                if not topics:
                    return 0
                async with asyncio.timeout(_TRANSACTION_SECONDS), connection.transaction():
                    delivery = await self._relay(connection, topics)
        if delivery is None:
            return 0
        self._note(delivery, topics)
        return len(delivery.delivered) + len(delivery.refused)

    async def backlog(self) -> Backlog:
        """Raises Transient if Postgres or the road to it failed."""
        with translated_errors("outbox backlog"):
            row = await self._pool.fetchrow(_QUERIES["outbox_backlog"])
        assert row is not None
        return Backlog(row["records"], row["oldest_age_seconds"], row["set_aside"])

    async def _relay(self, connection: Connection, topics: list[str]) -> Delivery | None:
        """One batch, in the caller's transaction; None where another process has the turn."""
        if not await connection.fetchval(_QUERIES["take_relay_turn"], RELAY_LOCK):
            return None
        rows = await connection.fetch(_QUERIES["pending_records"], topics, self._batch_size, _BATCH_BYTES)
        delivery = Delivery(self._writer)
        stop_at = self._clock.monotonic() + _LAST_WAVE_SECONDS
        for wave in waves([_pending(row) for row in rows]):
            await delivery.write(wave)
            if self._clock.monotonic() >= stop_at:
                break
        await connection.execute(_QUERIES["forget_delivered"], delivery.delivered)
        if delivery.refused:
            await connection.execute(_QUERIES["set_aside"], list(delivery.refused), list(delivery.refused.values()))
        return delivery

    def _due(self, topics: Iterable[str]) -> list[str]:
        now = self._clock.monotonic()
        return [topic for topic in topics if topic not in self._pauses or self._pauses[topic].until <= now]

    def _note(self, delivery: Delivery, topics: list[str]) -> None:
        """Stalled topics pause, with a warning when that is new; the others of `topics` have recovered."""
        recovered = [t for t in topics if t not in delivery.stalled and self._pauses.pop(t, None) is not None]
        fresh = [t for t in delivery.stalled if t not in self._pauses]
        for topic in delivery.stalled:
            failures = 1 if topic in fresh else self._pauses[topic].failures + 1
            self._pauses[topic] = _Pause(failures, self._clock.monotonic() + _pause_seconds(failures))
        self._metrics.outbox.labels("delivered").inc(len(delivery.delivered))
        self._metrics.outbox.labels("set_aside").inc(len(delivery.refused))
        if fresh:
            _log.warning(logs.OUTBOX_TOPICS_UNAVAILABLE, topics=fresh, error=delivery.stalled[fresh[0]])
        if recovered:
            _log.info(logs.OUTBOX_TOPICS_AVAILABLE, topics=recovered)
        if delivery.refused:
            _log.error(logs.OUTBOX_SET_ASIDE, errors=delivery.refused)

    async def _measure(self) -> None:
        if self._clock.monotonic() < self._measure_at:
            return
        backlog = await self.backlog()
        self._metrics.outbox_waiting.set(backlog.records)
        self._metrics.outbox_oldest.set(backlog.oldest_age_seconds)
        self._metrics.outbox_set_aside.set(backlog.set_aside)
        self._measure_at = self._clock.monotonic() + _MEASURE_EVERY_SECONDS


def _pending(row: Any) -> Pending:
    names = [name.decode("utf-8", "replace") for name in row["header_names"]]
    headers = list(zip(names, row["header_values"], strict=True))
    # The last word is ours: a record that was read from another outbox and is published again is another one here.
    name = DEAD_LETTER_OUTBOX_ID if row["kind"] == "dead_letter" else OUTBOX_ID
    headers = [*(header for header in headers if header[0] != name), (name, str(row["id"]).encode())]
    return Pending(row["id"], row["kind"], Outgoing(row["topic"], row["value"], row["key"], headers))


def _pause_seconds(failures: int) -> float:
    return float(min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 10)))
