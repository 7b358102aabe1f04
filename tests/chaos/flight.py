"""Whether records are in flight at a moment: taken by Kafka, not settled, a batch of them in a worker's hands."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import asyncpg
import psutil

from tests.chaos.producer import Producer
from tests.chaos.proxy import Proxy

# A commit that was under way when its process froze is through after this.
_CONNECT_SECONDS = 3.0

_POSITIONS = """
SELECT j.code, p.topic, p.partition, p.next_offset, p.owner
FROM tidegate.position AS p
JOIN tidegate.job AS j ON j.id = p.job
WHERE p.run = 0
"""
# Rows that nobody holds: an owned one that is not among them is locked by a batch under way.
_FREE = """
SELECT j.code, p.topic, p.partition
FROM tidegate.position AS p
JOIN tidegate.job AS j ON j.id = p.job
WHERE p.run = 0
FOR UPDATE OF p SKIP LOCKED
"""


@dataclass(frozen=True)
class Flight:
    """What was in flight: records not settled, batches under their lock, requests to sinks without an answer yet."""

    unsettled: int
    batches: int
    requests: int

    @property
    def is_proven(self) -> bool:
        return self.unsettled > 0 and self.batches + self.requests > 0


@dataclass(frozen=True)
class Sight:
    """Looks past all proxies, so that it sees also what the workers cannot reach."""

    postgres_dsn: str
    producer: Producer
    sinks: Sequence[Proxy]
    jobs: int

    async def all(self) -> Flight:
        """What is in flight anywhere. Raises OSError or asyncpg's errors if Postgres cannot be asked now."""
        return await self._look(owner=None, ports=None)

    async def of_worker(self, owner: str, pid: int) -> Flight:
        """What this process holds. Raises as `all`."""
        ports = {each.laddr.port for each in psutil.Process(pid).net_connections(kind="tcp")}
        return await self._look(owner=owner, ports=ports)

    async def _look(self, *, owner: str | None, ports: Collection[int] | None) -> Flight:
        connection = await asyncpg.connect(self.postgres_dsn, timeout=_CONNECT_SECONDS)
        try:
            rows = await connection.fetch(_POSITIONS)
            free = {tuple(row) for row in await connection.fetch(_FREE)}
        finally:
            connection.terminate()
        rows = [row for row in rows if owner in (None, row["owner"])]
        held = [row for row in rows if (row["code"], row["topic"], row["partition"]) not in free]
        asked = [port for proxy in self.sinks for port in proxy.open_exchanges if ports is None or port in ports]
        ends = self.producer.ends
        behind = sum(max(0, ends.get((row["topic"], row["partition"]), 0) - row["next_offset"]) for row in rows)
        return Flight(behind, len(held), len(asked))

    async def unsettled(self, log_ends: dict[tuple[str, int], int]) -> int:
        """How many records of these logs the jobs have still to settle, all together. Raises as `all`."""
        connection = await asyncpg.connect(self.postgres_dsn, timeout=_CONNECT_SECONDS)
        try:
            rows = await connection.fetch(_POSITIONS)
            waiting = await connection.fetchval("SELECT count(*) FROM tidegate.outbox WHERE failed_at IS NULL")
        finally:
            connection.terminate()
        settled = sum(int(row["next_offset"]) for row in rows)
        return self.jobs * sum(log_ends.values()) - settled + int(waiting)
