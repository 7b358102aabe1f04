"""Bounds on what waits for Kafka: a job's dead letters, and the events that its handlers publish.

Both are rows in Postgres first, so a topic that takes none stops nothing: they wait in the outbox. At the bound the
job's partitions rest, or a long outage would fill the database that everything stands on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from prometheus_client import Gauge

from tidegate_kernel.clock import Clock
from tidegate_kernel.postgres import Pool, translated_errors
from tidegate_kernel.queries import load_queries
from tidegate_kernel.source import Outgoing

_QUERIES = load_queries(__package__)

# A look reads up to the bound, which is ten times that of letters.
_EVENTS_EVERY_SECONDS = 5.0


class Backlog(Protocol):
    """Something of a job that waits for Kafka, and may be too much."""

    @property
    def is_full(self) -> bool: ...
    @property
    def why(self) -> str:
        """Of a full one, for a person."""

    async def read(self) -> None:
        """Whether it is full is known; on an error what was known stays. Raises Transient."""


class LetterBacklog:
    """The letters of one job that its DLQ topic has not taken, as this process last counted them: up to `most`.

    At `most` it is full, and until half of them are gone: at the bound itself a relay that catches up would stop and
    start the job with every batch.
    """

    def __init__(self, pool: Pool, *, topic: str, most: int, is_full: Gauge) -> None:
        self._pool, self._topic, self._most, self._gauge = pool, topic, most, is_full
        self.is_full = False
        is_full.set(0)

    async def read(self) -> None:
        """Whether it is full is known; on an error what was known stays. Raises Transient."""
        bound = -(-self._most // 2) if self.is_full else self._most
        with translated_errors("count waiting letters"):
            async with self._pool.acquire(timeout=10) as connection:
                # Reads no more than the bound, from an index; nearly always that is nothing.
                self.is_full = bool(await connection.fetchval(_QUERIES["letters_wait"], self._topic, bound - 1))
        self._gauge.set(int(self.is_full))

    @property
    def why(self) -> str:
        """Of a full one, for a person."""
        return f"topic {self._topic!r} has not taken {self._most} dead letters, which wait in the outbox"


class EventBacklog:
    """The events that one job has published and Kafka has not taken, as this process last counted them: up to `most`.

    It counts the topics that the job has published to since the process began; what others publish there counts too.
    At `most` it is full, and until half of them are gone.
    """

    def __init__(self, pool: Pool, clock: Clock, *, most: int, is_full: Gauge) -> None:
        self._pool, self._clock, self._most, self._gauge = pool, clock, most, is_full
        self._topics: set[str] = set()
        self._next_look = clock.monotonic()
        self.is_full = False
        is_full.set(0)

    def note(self, published: Sequence[Outgoing]) -> None:
        """The job publishes these."""
        self._topics.update({record.topic for record in published})

    async def read(self) -> None:
        """Whether it is full is known; on an error what was known stays. Raises Transient."""
        if not self._topics or self._clock.monotonic() < self._next_look:
            return
        bound = -(-self._most // 2) if self.is_full else self._most
        with translated_errors("count waiting events"):
            async with self._pool.acquire(timeout=10) as connection:
                self.is_full = bool(await connection.fetchval(_QUERIES["events_wait"], sorted(self._topics), bound - 1))
        self._next_look = self._clock.monotonic() + _EVENTS_EVERY_SECONDS
        self._gauge.set(int(self.is_full))

    @property
    def why(self) -> str:
        """Of a full one, for a person."""
        return f"Kafka has not taken {self._most} events of the topics that it publishes to, which wait in the outbox"
