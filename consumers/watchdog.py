"""Notices what the client does not say: that it lost sight of a partition, or that it has ceased to work at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from consumers.ownership import Holding, Holdings
from tidegate_kernel import logs
from tidegate_kernel.cancellation import raise_if_cancelled
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.source import ClientDied, LogRange, RecordSource

_log = structlog.get_logger(__name__)

# Nobody is asked: the look costs microseconds. It bounds how long nothing is read before a new client is made.
_LOOK_AT_CLIENT_SECONDS = 1.0
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


async def watch_client(source: RecordSource, clock: Clock, on_trouble: Callable[[Transient], None]) -> None:
    """Looks until cancelled; `on_trouble` hears of it when the client of `source` has died, idle or not."""
    while True:
        await clock.sleep(_LOOK_AT_CLIENT_SECONDS)
        try:
            source.require_alive()
        except ClientDied as error:
            on_trouble(error)


class Watchdog:
    """Looks after the partitions of one job. `on_trouble` hears of it when only a new client can help."""

    def __init__(
        self, source: RecordSource, holdings: Holdings, clock: Clock, on_trouble: Callable[[Transient], None]
    ) -> None:
        self._source, self._holdings, self._clock, self._on_trouble = source, holdings, clock, on_trouble
        self._standing: dict[TopicPartition, _Standstill] = {}

    async def watch(self) -> None:
        """Looks until cancelled."""
        while True:
            await self._clock.sleep(_LOOK_EVERY_SECONDS)
            try:
                await self.look()
            except Transient as error:
                raise_if_cancelled(error)
                # Kafka does not answer: nobody can be fetched, and that is told elsewhere.
                self._standing.clear()

    async def look(self) -> None:
        """A partition that stands still for too long is sought anew, and known as stalled; where it then stands still
        for as long again, the client has to go. Raises SourceFailure.

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
            self._standing[held.partition] = _Standstill(held, reached, held.empty_fetches, self._clock.monotonic())
            self._wake(held, ranges[held.partition].end)
        elif is_long and was_asked_for:
            where = f"{held.partition}@{held.resume_offset}"
            self._on_trouble(ClientDied(f"{where}: not fetched, although it was sought anew {STALLED_SECONDS:g} s ago"))

    def _wake(self, held: Holding, end: int) -> None:
        held.stalled_since = self._clock.monotonic()
        topic, partition = held.partition
        _log.error(logs.PARTITION_STALLED, topic=topic, partition=partition, offset=held.resume_offset, end=end)
        if self._holdings.is_current(held) and held.is_ready and held.partition in self._source.assignment():
            held.seek(self._source)
            held.read_on(self._source)
