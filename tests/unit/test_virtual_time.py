"""The event loop of the property tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from unittest import mock

import pytest

from tests.property.virtual_time import LockWatch, VirtualLoop

# Less than a timer can wait for, as what is left of a time after sums of floats.
_REST_SECONDS = 5e-10


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop(mock.create_autospec(LockWatch))
    yield made
    made.close()


@pytest.mark.timeout(20)
def test_who_waits_for_the_rest_of_a_time_gets_to_its_end(loop: VirtualLoop) -> None:
    """A schedule must not hang because two sources that wait for the same moment keep each other awake before it."""

    async def wait() -> None:
        until = loop.time() + _REST_SECONDS
        while (left := until - loop.time()) > 0:
            await asyncio.sleep(left)

    async def play() -> None:
        waiting = asyncio.create_task(wait())
        while not waiting.done():
            await asyncio.sleep(0)

    loop.run_until_complete(play())
