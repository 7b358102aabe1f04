"""A bound on the dead letters that wait for Kafka.

Letters are rows in Postgres first, so a DLQ topic that takes none stops nothing: they wait in the outbox. At the
bound the job's partitions rest, or a long outage would fill the database that everything stands on.
"""

from __future__ import annotations

from prometheus_client import Gauge

from tidegate_kernel.postgres import Pool, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)


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
