"""A store that wants few and large batches gets them while there is nothing to catch up with."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from consumers.batch import Batch
from consumers.host import LaneSettings
from consumers.loop import ConsumerLoop
from tests.unit.loop_rig import P0, Rig, running


def lingering(rig: Rig, linger: timedelta) -> ConsumerLoop:
    loop = rig.loop()
    settings = loop.settings
    loop.settings = LaneSettings(
        lanes=1,
        batch_size=settings.batch_size,
        drain_timeout=settings.drain_timeout,
        retry=settings.retry,
        linger=linger,
    )
    return loop


async def test_events_that_trickle_in_are_gathered_for_the_linger() -> None:
    """Case 101: a thousand events in a second must not become a thousand inserts."""
    rig = Rig()
    rig.fill(P0, 1)
    async with running(lingering(rig, timedelta(seconds=0.3))):
        await rig.stands_at(P0, 1)
        for _ in range(9):
            rig.fill(P0, 1)
            await asyncio.sleep(0)
        await rig.stands_at(P0, 10)

    assert [len(offsets) for _, offsets in rig.work.calls] == [1, 9]


async def test_backlog_does_not_wait() -> None:
    """Catching up is as fast as ever: only whoever has nothing more to read waits for more."""
    rig = Rig()
    rig.fill(P0, 35)
    async with running(lingering(rig, timedelta(hours=1))):
        await rig.stands_at(P0, 35)

    assert [len(offsets) for _, offsets in rig.work.calls] == [10, 10, 10, 5]


async def test_batch_that_waits_for_another_try_is_not_held_back_by_the_linger() -> None:
    """A retry is due when its policy says so."""
    rig, tries = Rig(), iter([True, False])

    async def fail_once(_: Batch) -> None:
        from tidegate_kernel.errors import Transient

        if next(tries, False):
            raise Transient("away")

    rig.work.trouble = fail_once
    rig.fill(P0, 1)
    async with running(lingering(rig, timedelta(hours=1))):
        await rig.stands_at(P0, 1)

    assert len(rig.work.calls) == 2
