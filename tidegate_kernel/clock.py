"""All time comes from a `Clock`, so that tests can move it."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
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
