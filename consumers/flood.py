"""A flood of dead letters is a fault upstream or a bad release, not so many faults of records: it stops the topic.

Counted in each process, per partition in a row and per topic as a share. The stop itself is an intent in Postgres, so
that every worker obeys it, restarts included, until somebody who has looked releases it up to an offset.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import structlog

from consumers.batch import Batch, Outcome
from tidegate_kernel import logs
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import JobId, TopicPartition
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FloodLimit:
    """How many dead letters of a topic are too many: `run_length` in a row in one partition, or more than `ratio` of
    the last `window` records of the topic that this process settled.

    The batch that reaches a limit is settled, so up to a batch per lane and process may come on top.
    """

    run_length: int = 100
    ratio: float = 0.5
    window: int = 1000

    def __post_init__(self) -> None:
        if self.run_length < 1 or self.window < 1 or not 0 < self.ratio <= 1:
            raise Misconfigured(
                "a FloodLimit needs run_length and window of at least 1, and a ratio above 0 and up to 1"
            )


class _Share(NamedTuple):
    records: int
    letters: int


class _Topic:
    """What is remembered of a topic: letters in a row by partition, and the shares of its last batches."""

    def __init__(self, limit: FloodLimit) -> None:
        self._limit = limit
        self._runs: dict[int, int] = {}
        self._shares: deque[_Share] = deque()
        self._records = self._letters = 0

    def note(self, batch: Batch, failed: frozenset[int]) -> str | None:
        self._count_share(_Share(len(batch.records), len(failed)))
        longest = self._longest_run(batch, failed)
        if longest >= self._limit.run_length:
            return f"{longest} dead letters in a row in partition {batch.fence.partition}"
        if self._records >= self._limit.window and self._letters > self._limit.ratio * self._records:
            return f"{self._letters} of the last {self._records} records became dead letters"
        return None

    def _longest_run(self, batch: Batch, failed: frozenset[int]) -> int:
        if not failed:
            self._runs.pop(batch.fence.partition, None)
            return 0
        longest = run = self._runs.get(batch.fence.partition, 0)
        for record in batch.records:
            run = run + 1 if record.offset in failed else 0
            longest = max(longest, run)
        self._runs[batch.fence.partition] = run
        return longest

    def _count_share(self, share: _Share) -> None:
        self._shares.append(share)
        self._records += share.records
        self._letters += share.letters
        while self._records - self._shares[0].records >= self._limit.window:
            oldest = self._shares.popleft()
            self._records -= oldest.records
            self._letters -= oldest.letters


class Floods:
    """The flood breakers of one job in this process."""

    def __init__(
        self, job: str, pool: Pool, number: JobId, *, limits: Mapping[str, FloodLimit], metrics: Metrics
    ) -> None:
        self._pool, self._number, self._limits = pool, number, limits
        self._stops = metrics.flood_stops.labels(job)
        self._topics: dict[str, _Topic] = {}
        self._allowed: dict[tuple[TopicPartition, UUID], int] = {}

    async def note(self, batch: Batch, outcome: Outcome) -> bool:
        """A batch was settled; whether its topic is stopped because of it. Raises Transient if that cannot be stored:
        then the next letters try again."""
        topic = batch.fence.topic
        why = self._note(batch, outcome)
        if why is None:
            return False
        await self._learn_allowances()
        self._topics.pop(topic)
        if all(self._is_allowed(batch, failure.record.offset) for failure in outcome.failures):
            return False  # released up to here by somebody who knew: counted from the start again
        with translated_errors("stop for a flood"):
            stopped = await self._pool.fetchval(_QUERIES["stop_for_flood"], self._number, topic, why)
        if stopped is not None:
            self._stops.inc()
            _log.error(logs.FLOOD_STOPPED, topic=topic, why=why)
        return True

    def _note(self, batch: Batch, outcome: Outcome) -> str | None:
        topic = self._topics.get(batch.fence.topic)
        if topic is None:
            topic = self._topics[batch.fence.topic] = _Topic(self._limits[batch.fence.topic])
        offsets = (failure.record.offset for failure in outcome.failures)
        return topic.note(batch, frozenset(offset for offset in offsets if not self._is_allowed(batch, offset)))

    def _is_allowed(self, batch: Batch, offset: int) -> bool:
        place = TopicPartition(batch.fence.topic, batch.fence.partition), batch.topic_id
        return offset < self._allowed.get(place, 0)

    async def _learn_allowances(self) -> None:
        with translated_errors("read flood allowances"):
            rows = await self._pool.fetch(_QUERIES["flood_allowances"], self._number)
        self._allowed = {
            (TopicPartition(row["topic"], row["partition"]), row["topic_id"]): row["until_offset"] for row in rows
        }
