"""Cautious mode: a record that ends its process must not end every process that takes it up.

A partition whose last two owners ended in a row without release and without progress is suspect. Nothing else is in
flight in the process while its records are handled, and what is about to be handled is written down first: one record,
then groups that double with each success, so that a false suspicion costs little. After an owner that ended at a group
its records are handled one by one. A record that was begun alone too often becomes a dead letter. Healthy partitions
pay nothing.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from consumers.batch import Batch, Outcome
from consumers.ownership import Holding
from consumers.pipeline import Pipeline
from consumers.steward import Steward
from tidegate_kernel.errors import Poison, Reason


class Solitude:
    """Batches of all jobs of a process side by side, or one alone: a process that ends then ended because of it."""

    def __init__(self) -> None:
        self._in_flight = 0
        self._alone = asyncio.Lock()
        self._none_in_flight = asyncio.Event()
        self._none_in_flight.set()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Inside, others may be in flight too. Waits while one is alone, or waits to be."""
        while self._alone.locked():
            async with self._alone:
                pass
        self._in_flight += 1
        self._none_in_flight.clear()
        try:
            yield
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._none_in_flight.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Inside, nothing else is in flight. Nor is anything begun after what ends the process, while it ends."""
        await self._alone.acquire()
        try:
            await self._none_in_flight.wait()
            yield
        finally:
            error = sys.exc_info()[1]
            if error is None or isinstance(error, (Exception, asyncio.CancelledError)):
                self._alone.release()


class Caution:
    """Hands batches to a job's pipeline: many at once, or those of a suspect partition alone."""

    def __init__(self, pipeline: Pipeline, steward: Steward, solitude: Solitude, *, attempts: int) -> None:
        self._pipeline, self._steward, self._solitude, self._attempts = pipeline, steward, solitude, attempts

    async def handle(self, held: Holding, batch: Batch) -> Outcome:
        """As `Pipeline.handle`. Of a suspect partition a batch holds no more than `held.group` records."""
        if not held.is_suspect:
            async with self._solitude.shared():
                return await self._pipeline.handle(batch)
        async with self._solitude.alone():
            if len(batch.records) == 1:
                outcome = await self._attempt(held, batch)
            else:
                await self._steward.note_group(held.partition, held.position, until=batch.next_offset)
                outcome = await self._pipeline.handle(batch)
            held.suspicion_passed()
            return outcome

    async def _attempt(self, held: Holding, batch: Batch) -> Outcome:
        attempts = await self._steward.note_attempt(held.partition, held.position)
        if attempts > self._attempts:
            batch = replace(batch, unreadable=_crashed(self._attempts))
        held.is_attempting = True
        outcome = await self._pipeline.handle(batch)
        # Where the position has moved the attempt counts no more; a paused tenant's record was not begun.
        held.is_attempting = outcome.stop is not None
        return outcome

    async def withdraw(self, held: Holding) -> None:
        """The attempt ended without the process ending: it does not count. Raises Transient."""
        if held.is_attempting:
            await self._steward.withdraw_attempt(held.partition, held.position)
            held.is_attempting = False


def _crashed(attempts: int) -> Poison:
    told = f"{attempts} owners in a row ended while they handled this record alone"
    return Poison(told, reason=Reason.WORKER_CRASHED)
