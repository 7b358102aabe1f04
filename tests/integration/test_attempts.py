"""A record that ends its owner: what is remembered of the attempts at it, from owner to owner. On a real Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from consumers.failure import RetryPolicy
from consumers.loop import ConsumerLoop
from consumers.steward import Steward
from tests.integration.notes import Note, make_loop, note, noted, noted_ids, running, stands_at
from tidegate import Context
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.postgres import Pool

_ATTEMPTS = 2
_POLICY = RetryPolicy(crash_attempts=_ATTEMPTS)
# The first deaths tell nothing of which record it was.
_MOST_DEATHS = 2 + _ATTEMPTS


class Deadly:
    """A handler that event e1 ends, with its process."""

    def __init__(self) -> None:
        self.was_begun = asyncio.Event()

    async def __call__(self, command: Note, ctx: Context[None]) -> None:
        if command.id == "e1":
            self.was_begun.set()
            await asyncio.sleep(3600)
        await note(command, ctx)


async def release_nothing(*_: object) -> None:
    """As a killed process does."""


@pytest.mark.timeout(90)
async def test_attempts_are_remembered_by_the_next_owner(
    pool: Pool, database: str, unique_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1 and G6: counted in memory alone, a record that ends its process would end each one that takes it up."""
    broker, topic = MemoryBroker(), unique_name("deadly")
    broker.create_topic(topic, 1)
    for n in range(3):
        broker.append(noted(topic, n))
    attempts = 0
    with monkeypatch.context() as killed:
        killed.setattr(Steward, "release", release_nothing)
        for _ in range(_MOST_DEATHS):
            if attempts < _ATTEMPTS:
                deadly = Deadly()
                await _die(await make_loop(pool, database, broker, topic, handler=deadly, retry=_POLICY), deadly)
                attempts = await pool.fetchval("SELECT attempts FROM tidegate.position WHERE attempt_offset = 1") or 0
    assert attempts == _ATTEMPTS, "each owner has counted from the start"

    async with running(await make_loop(pool, database, broker, topic, retry=_POLICY)):
        await stands_at(pool, 3)
    assert await noted_ids(pool) == ["e0", "e2"], "handled once more than the policy allows"
    letters = await pool.fetch('SELECT "offset", reason FROM tidegate.dead_letter')
    assert [tuple(letter) for letter in letters] == [(1, "worker_crashed")]


async def _die(loop: ConsumerLoop, deadly: Deadly) -> None:
    """The owner is gone in the middle of its work."""
    owner = asyncio.create_task(loop.run())
    await asyncio.wait_for(deadly.was_begun.wait(), 20)
    owner.cancel()
    await asyncio.gather(owner, return_exceptions=True)
