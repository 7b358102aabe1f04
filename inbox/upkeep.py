"""Upkeep of the inbox while a worker runs."""

from __future__ import annotations

import structlog

from inbox.days import attach_days
from tidegate_kernel import logs
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.postgres import Pool, translated_errors

_log = structlog.get_logger(__name__)

_EVERY_SECONDS = 3600.0
_AGAIN_SECONDS = 30.0


class InboxUpkeep:
    """Rounds of upkeep, one after another."""

    def __init__(self, pool: Pool, clock: Clock) -> None:
        self._pool, self._clock = pool, clock
        self._pause = 0.0

    async def run(self) -> None:
        """Does not end."""
        while True:
            await self._clock.sleep(self._pause)
            await self.once()

    async def once(self) -> None:
        """One round was tried; the next follows soon after one that failed."""
        self._pause = _AGAIN_SECONDS
        try:
            with translated_errors("inbox upkeep"):
                async with self._pool.acquire(timeout=10) as connection:
                    attached = await attach_days(connection, self._clock.now().date())
        except (Transient, Misconfigured) as error:
            _log.warning(logs.UPKEEP_FAILED, error=str(error))
            return
        if attached:
            _log.info(logs.INBOX_DAYS_ATTACHED, days=[str(day) for day in attached])
        self._pause = _EVERY_SECONDS
