"""All time comes from a `Clock`, so that tests can move it."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Wall time for facts, monotonic time for durations, and waiting."""

    def now(self) -> datetime:
        """The current instant, aware, UTC."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean something."""

    async def sleep(self, seconds: float) -> None:
        """Returns after `seconds`."""


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ServerClock:
    """What all processes go by: the time of a server, as it was told last and as long ago as that is by `clock`.

    A host's own wall clock may be a year off. Until the server has been heard it is the host's.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: tuple[datetime, float] | None = None

    def hear(self, now: datetime) -> None:
        """The server has just said so."""
        self._heard = now, self._clock.monotonic()

    def now(self) -> datetime:
        if self._heard is None:
            return self._clock.now()
        told, at = self._heard
        return told + timedelta(seconds=self._clock.monotonic() - at)

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
