"""Who is alone in a process: what ends it then is known to be at fault."""

from __future__ import annotations

import asyncio

import pytest

from consumers.caution import Solitude


class Deadly(SystemExit):
    """Ends the process."""


async def test_nothing_is_begun_while_a_process_ends() -> None:
    """Its tasks still run on for a moment: an attempt that they begin then would count against an innocent record."""
    solitude, begun = Solitude(), asyncio.Event()
    waiting: list[asyncio.Task[None]] = []

    async def begin() -> None:
        async with solitude.alone():
            begun.set()

    async def end_the_process() -> None:
        async with solitude.alone():
            waiting.append(asyncio.create_task(begin()))
            await asyncio.sleep(0)
            raise Deadly

    with pytest.raises(Deadly):
        await end_the_process()
    for _ in range(5):
        await asyncio.sleep(0)

    assert not begun.is_set()
    waiting[0].cancel()


@pytest.mark.parametrize("error", [KeyError("n"), asyncio.CancelledError()])
async def test_the_next_may_begin_after_a_failure(error: BaseException) -> None:
    """A lane that fails, or is stopped, must not hold up the others for ever."""
    solitude = Solitude()
    with pytest.raises(type(error)):
        async with solitude.alone():
            raise error

    async with asyncio.timeout(5), solitude.alone():
        pass
