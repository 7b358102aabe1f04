"""Notices a partition that is assigned and not fetched, though its log goes on: the client can lose sight of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from consumers.ownership import Holding, Holdings
from tidegate_kernel import logs
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.source import LogRange, RecordSource

_log = structlog.get_logger(__name__)

_LOOK_EVERY_SECONDS = 15.0
# A fetch that Kafka answers takes a fraction of a second, also across an election of leaders.
STALLED_SECONDS = 60.0
# The answer to one may have been under way.
_EMPTY_FETCHES = 3


@dataclass(frozen=True, slots=True)
class _Standstill:
    """Where a partition that has records before it stood at the first look, and when that was (monotonic)."""

    held: Holding
    reached: int
    empty_fetches: int
    since: float


class Watchdog:
    """Looks after the partitions of one job."""

    def __init__(self, source: RecordSource, holdings: Holdings, clock: Clock) -> None:
        self._source, self._holdings, self._clock = source, holdings, clock
        self._standing: dict[TopicPartition, _Standstill] = {}

    async def watch(self) -> None:
        """Looks until cancelled."""
        while True:
            await self._clock.sleep(_LOOK_EVERY_SECONDS)
            try:
                await self.look()
            except Transient:
                # Kafka does not answer: nobody can be fetched, and that is told elsewhere.
                self._standing.clear()

    async def look(self) -> None:
        """A partition that stands still for too long is sought anew, and known as stalled. Raises SourceFailure.

        Ends are asked of Kafka: what the client believes of a partition that it forgot is as old as its last fetch.
        """
        fetched = [held for held in self._holdings.all() if held.is_ready and held.in_hand_since is None]
        ranges = await self._source.ranges([held.partition for held in fetched]) if fetched else {}
        before, self._standing = self._standing, {}
        for held in fetched:
            self._judge(held, ranges, before.get(held.partition))

    def _judge(self, held: Holding, ranges: Mapping[TopicPartition, LogRange], earlier: _Standstill | None) -> None:
        reached = max(held.resume_offset, self._source.drained_to(held.partition) or 0)
        if held.partition not in ranges or reached >= ranges[held.partition].end:
            held.stalled_since = None
            return
        if earlier is None or earlier.held is not held or earlier.reached != reached:
            held.stalled_since = None
            earlier = _Standstill(held, reached, held.empty_fetches, self._clock.monotonic())
        self._standing[held.partition] = earlier
        # A lane that is busy with another partition's batch has not asked for this one.
        was_asked_for = held.empty_fetches - earlier.empty_fetches >= _EMPTY_FETCHES
        is_long = self._clock.monotonic() - earlier.since >= STALLED_SECONDS
        if is_long and was_asked_for and held.stalled_since is None:
            self._wake(held, ranges[held.partition].end)

    def _wake(self, held: Holding, end: int) -> None:
        held.stalled_since = self._clock.monotonic()
        topic, partition = held.partition
        _log.error(logs.PARTITION_STALLED, topic=topic, partition=partition, offset=held.resume_offset, end=end)
        if self._holdings.is_current(held) and held.is_ready and held.partition in self._source.assignment():
            held.seek(self._source)
            held.read_on(self._source)
