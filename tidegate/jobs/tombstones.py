"""Upkeep of sinks: a tombstone leaves when nothing that its version has to hold off can come any more.

Older events come from Kafka, from dead letters and from backfills. What Kafka held when the oldest undecided letter
was read, or when an unfinished backfill began, was written within the retention of its topic before that; so a
tombstone that is older still has nothing left to hold off. Letters and backfills are dated by the database, tombstones
by the hosts that wrote them: a day is added for clocks that differ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import structlog

from dlq.states import UNRESOLVED
from projections.sink import Sink
from tidegate_kernel import logs
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import LeaseLost, Misconfigured, Transient
from tidegate_kernel.event import JobId
from tidegate_kernel.kafka_retention import Retention
from tidegate_kernel.lease import Lease
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool, translated_errors
from tidegate_kernel.queries import load_queries
from tidegate_kernel.rounds import Tell, tell_nobody

_log = structlog.get_logger(__name__)
_QUERIES = load_queries(__package__)

ReadRetention = Callable[[Collection[str]], Awaitable[Mapping[str, Retention]]]
"""How long Kafka keeps the records of topics; those that may not be asked about are missing."""

_LEASE = timedelta(seconds=60)
# Of clocks against each other; and Kafka looks for what it may delete every five minutes.
_MARGIN = timedelta(days=1)
# A search and a bulk request of small lines: well below a second.
_CHUNK = 1000
# It yields to projections: it works a fifth of the time, and leaves the rest of a large heap to the next round.
_REST = 4.0
_ROUND_SECONDS = 1200.0


class KeptSink(NamedTuple):
    """A job's sink, and the topics that its documents come from."""

    job: JobId
    code: str
    name: str
    topics: Sequence[str]
    sink: Sink


class TombstoneUpkeep:
    """Rounds of one worker, known as `holder`, over a job's sink; one worker at a time."""

    def __init__(
        self,
        pool: Pool,
        clock: Clock,
        kept: KeptSink,
        *,
        read_retention: ReadRetention,
        holder: str,
        metrics: Metrics,
    ) -> None:
        self._pool, self._clock, self._kept = pool, clock, kept
        self._read_retention, self._holder, self._metrics = read_retention, holder, metrics

    async def round(self, tell: Tell = tell_nobody) -> None:
        """One round. Raises Transient, Misconfigured, LeaseLost for what stood in its way, logged by then."""
        kept = self._kept
        try:
            await self._keep(kept, tell)
        except (Transient, Misconfigured, LeaseLost) as error:
            _log.warning(logs.TOMBSTONE_UPKEEP_FAILED, job=kept.code, sink=kept.name, error=str(error))
            raise

    async def _keep(self, kept: KeptSink, tell: Tell) -> None:
        needed = needed_for(kept.topics, await self._read_retention(kept.topics))
        if needed is None:
            return
        lease = Lease(self._pool, f"tombstones of {kept.job} in {kept.name}", holder=self._holder, ttl=_LEASE)
        if (token := await lease.take()) is not None:
            async with lease.keep(token):
                await self._purge(kept, await self._oldest_open(kept.job) - needed, tell)

    async def _oldest_open(self, job: JobId) -> datetime:
        """Since when something is unfinished that may bring older events; now, if nothing is."""
        with translated_errors("tombstone upkeep"):
            async with self._pool.acquire(timeout=10) as connection:
                moment: datetime = await connection.fetchval(_QUERIES["oldest_open"], job, list(UNRESOLVED))
        return moment

    async def _purge(self, kept: KeptSink, before: datetime, tell: Tell) -> None:
        purged, stop_at = 0, self._clock.monotonic() + _ROUND_SECONDS
        try:
            while (began := self._clock.monotonic()) < stop_at:
                chunk = await kept.sink.purge(before, _CHUNK)
                purged += chunk
                await tell(chunk)
                if chunk < _CHUNK:
                    break
                await self._clock.sleep(_REST * (self._clock.monotonic() - began))
        finally:
            self._metrics.tombstones_purged.labels(kept.code).inc(purged)
            if purged:
                _log.info(
                    logs.TOMBSTONES_PURGED, job=kept.code, sink=kept.name, purged=purged, before=before.isoformat()
                )


def needed_for(topics: Collection[str], retention: Mapping[str, Retention]) -> timedelta | None:
    """How long a tombstone is needed after the last event that it may have to hold off; None for ever.

    For ever, where a topic keeps the last record of each key, or all records, or does not tell.
    """
    longest = timedelta(0)
    for topic in topics:
        found = retention.get(topic)
        if found is None or found.kept is None or found.is_compacted:
            return None
        # A segment leaves as a whole: a record may stay as long as the youngest one beside it.
        longest = max(longest, found.kept + found.segment)
    return longest + _MARGIN
