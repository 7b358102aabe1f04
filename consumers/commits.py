"""Tells Kafka's group the settled offsets: a hint to tools and to a cold start. Nobody here resumes from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import structlog

from consumers.ownership import Holdings
from tidegate_kernel import logs
from tidegate_kernel.cancellation import raise_if_cancelled
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.source import RecordSource

_log = structlog.get_logger(__name__)

# Only a hint, and a commit a second costs nothing.
_COMMIT_EVERY_SECONDS = 1.0


class Commits:
    """Remembers what the group was told, and tells it what is new. `on_trouble` hears of what Kafka did not take."""

    def __init__(self, clock: Clock, on_trouble: Callable[[Transient], None]) -> None:
        self._clock, self._on_trouble = clock, on_trouble
        self._told: dict[TopicPartition, int] = {}

    async def run(self, source: RecordSource, holdings: Holdings) -> None:
        """Once a second, until cancelled, the group learns what has settled."""
        while True:
            await self._clock.sleep(_COMMIT_EVERY_SECONDS)
            await self.tell(source, holdings.settled())

    async def tell(self, source: RecordSource, settled: Mapping[TopicPartition, int]) -> None:
        """The group knows where it would resume. A failure is only noted: the next round repeats it."""
        news = {p: offset for p, offset in settled.items() if self._told.get(p) != offset}
        try:
            await source.commit(news)
            self._told.update(news)
        except Transient as error:
            raise_if_cancelled(error)
            offsets = {str(p): offset for p, offset in news.items()}
            _log.warning(logs.COMMIT_FAILED, offsets=offsets, error=str(error))
            self._on_trouble(error)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """They are another member's now, who tells the group other offsets."""
        for partition in partitions:
            self._told.pop(partition, None)
