"""One refresher a store: of all workers of a job, the holder of a lease makes visible what was written, once a second.

What was written is read first, then the store is refreshed, then it is told as visible: told before, a reader who was
promised an event would not find it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta

import structlog

from projections.sink import Sink
from projections.visibility import Point, Visibility, WrittenUpTo
from tidegate_kernel import logs
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import LeaseLost, Misconfigured, Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.lease import Lease, Token
from tidegate_kernel.metrics import Metrics

_log = structlog.get_logger(__name__)

LEASE_TTL = timedelta(seconds=6)
"""A refresher that dies is replaced within it: readers see nothing new meanwhile."""

# What a refresh costs the store is paid once a second at most, whatever is written.
_EVERY_SECONDS = 1.0
# How the others notice that the lease has ended: a third of it.
_ASK_EVERY_SECONDS = 2.0
# While the store does not refresh: its own breaker asks oftener, and each try logs nothing.
_LONGEST_REST_SECONDS = 8.0
# Eight seconds after the drain whatever still hangs is cut off (docs/guarantees.md, G10): this is part of them.
_LAST_WORD_SECONDS = 5.0


class Refresher:
    """Keeps one job's store refreshed, from whichever worker has the lease.

    `written` is made anew whenever that is this one: what it remembers of before may be behind what others have shown.
    """

    def __init__(
        self,
        sink: Sink,
        visibility: Visibility,
        *,
        written: Callable[[], WrittenUpTo],
        lease: Lease,
        job: str,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._sink, self._visibility, self._new_written, self._lease = sink, visibility, written, lease
        self._written = written()
        self._job, self._clock, self._refreshes = job, clock, metrics.refreshes
        self._shown: dict[TopicPartition, Point] = {}
        self._besides: datetime | None = None
        self._trouble: str | None = None
        self._rest = _EVERY_SECONDS

    async def run(self) -> None:
        """Until cancelled. Whatever is in the way is tried again; nothing counts as visible meanwhile."""
        while True:
            # Postgres is away, which the breakers tell, or the lease has gone to another worker.
            with suppress(Transient, LeaseLost):
                await self._while_ours()
            await self._clock.sleep(_ASK_EVERY_SECONDS)

    async def last_word(self) -> None:
        """What this process settled last is visible, if nobody else sees to it and the servers answer in time."""
        try:
            async with asyncio.timeout(_LAST_WORD_SECONDS):
                if (token := await self._lease.take()) is not None:
                    async with self._lease.keep(token):
                        await self._begin()
                        await self.round(token)
        except (Transient, LeaseLost, TimeoutError):
            return  # it is applied, and visible with the next worker's first refresh

    async def _while_ours(self) -> None:
        if (token := await self._lease.take()) is None:
            return
        async with self._lease.keep(token):
            await self._begin()
            while True:
                await self.round(token)
                await self._clock.sleep(self._rest)

    async def _begin(self) -> None:
        """What is written from now on is compared with what the last holder has shown."""
        self._written = self._new_written()
        shown = await self._visibility.shown()
        self._shown = {partition: row.point for partition, row in shown.items()}
        self._trouble = next((row.trouble for row in shown.values() if row.trouble), None)
        # A backfill may have written since the last refresh: nobody has noted which it knew of.
        self._besides, self._rest = None, _EVERY_SECONDS

    async def round(self, token: Token) -> None:
        """What had been written when the round began is visible, or told why not. Raises LeaseLost, Transient."""
        written = await self._written()
        news = {place: point for place, point in written.points.items() if self._shown.get(place) != point}
        if not news and written.besides == self._besides and self._trouble is None:
            return
        if (trouble := await self._refresh()) is not None:
            await self._note(token, trouble)
            return
        # A store that was emptied and filled again stands where it stood, and was told as empty by somebody else.
        await self._tell(token, news if written.besides == self._besides else written.points)
        self._besides = written.besides

    async def _refresh(self) -> str | None:
        """Why the store did not refresh; None if it did."""
        try:
            await self._sink.refresh()
        except (Transient, Misconfigured) as error:
            self._refreshes.labels(self._job, "failed").inc()
            return str(error)
        self._refreshes.labels(self._job, "done").inc()
        return None

    async def _note(self, token: Token, trouble: str) -> None:
        self._rest = min(self._rest * 2, _LONGEST_REST_SECONDS)
        if trouble != self._trouble:
            _log.warning(logs.REFRESH_FAILED, job=self._job, error=trouble)
            await self._visibility.note_trouble(self._lease.name, token, trouble)
            self._trouble = trouble

    async def _tell(self, token: Token, news: Mapping[TopicPartition, Point]) -> None:
        if news:
            await self._visibility.show(self._lease.name, token, news)
            self._shown.update(news)
        if self._trouble is not None:
            await self._visibility.clear_trouble(self._lease.name, token)
            _log.info(logs.REFRESH_RESUMED, job=self._job)
        self._trouble, self._rest = None, _EVERY_SECONDS
