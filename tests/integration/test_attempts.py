"""A record that ends its owner: what is remembered of the attempts at it, from owner to owner. On a real Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from consumers.failure import RetryPolicy
from consumers.loop import ConsumerLoop
from consumers.steward import Steward
from tests.integration.notes import Note, make_loop, note, noted, noted_ids, running, stands_at
from tidegate import Context
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel import logs
from tidegate_kernel.postgres import Pool

_ATTEMPTS = 2
_POLICY = RetryPolicy(crash_attempts=_ATTEMPTS)
# The first two deaths tell nothing of which record it was, the next one at most which of a group.
_MOST_DEATHS = 2 + 1 + _ATTEMPTS
_RECORDS = 20


class Deadly:
    """A handler that one event ends, with its process."""

    def __init__(self, event_id: str) -> None:
        self._event_id, self.was_begun = event_id, asyncio.Event()

    async def __call__(self, command: Note, ctx: Context[None]) -> None:
        if command.id == self._event_id:
            self.was_begun.set()
            await asyncio.sleep(3600)
        await note(command, ctx)


async def release_nothing(*_: object) -> None:
    """As a killed process does."""


@pytest.mark.timeout(90)
@pytest.mark.parametrize("deadly_offset", [0, 1, 9])
async def test_attempts_are_remembered_by_the_next_owner(
    deadly_offset: int, pool: Pool, database: str, unique_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1 and G6: counted in memory alone, a record that ends its process would end each one that takes it up."""
    broker, topic = MemoryBroker(), unique_name("deadly")
    broker.create_topic(topic, 1)
    for n in range(_RECORDS):
        broker.append(noted(topic, n))
    attempts = 0
    with monkeypatch.context() as killed:
        killed.setattr(Steward, "release", release_nothing)
        for _ in range(_MOST_DEATHS):
            if attempts < _ATTEMPTS:
                deadly = Deadly(f"e{deadly_offset}")
                await _die(await make_loop(pool, database, broker, topic, handler=deadly, retry=_POLICY), deadly)
                counted = "SELECT attempts FROM tidegate.position WHERE attempt_offset = $1"
                attempts = await pool.fetchval(counted, deadly_offset) or 0
    assert attempts == _ATTEMPTS, "each owner has counted from the start"

    async with running(await make_loop(pool, database, broker, topic, retry=_POLICY)):
        await stands_at(pool, _RECORDS)
    others = sorted(f"e{n}" for n in range(_RECORDS) if n != deadly_offset)
    assert await noted_ids(pool) == others, "handled once more than the policy allows"
    letters = await pool.fetch('SELECT "offset", reason FROM tidegate.dead_letter')
    assert [tuple(letter) for letter in letters] == [(deadly_offset, "worker_crashed")]


async def _die(loop: ConsumerLoop, deadly: Deadly) -> None:
    """The owner is gone in the middle of its work."""
    owner = asyncio.create_task(loop.run())
    await asyncio.wait_for(deadly.was_begun.wait(), 20)
    owner.cancel()
    await asyncio.gather(owner, return_exceptions=True)


async def test_a_false_suspicion_costs_a_few_batches_and_not_one_a_record(
    pool: Pool, database: str, unique_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines are switched off, too: thousands of records one by one, with all else waiting, would be an outage."""
    broker, topic = MemoryBroker(), unique_name("suspect")
    broker.create_topic(topic, 1)
    for n in range(200):
        broker.append(noted(topic, n))
    with monkeypatch.context() as killed:
        killed.setattr(Steward, "release", release_nothing)
        for _ in range(2):
            deadly = Deadly("e0")
            await _die(await make_loop(pool, database, broker, topic, handler=deadly), deadly)
    loop = await make_loop(pool, database, broker, topic)
    with capture_logs() as lines:
        async with running(loop):
            await stands_at(pool, 200)
    batches = [line for line in lines if line["event"] == logs.BATCH_SETTLED]
    assert any(line["event"] == logs.PARTITION_SUSPECT for line in lines)
    assert len(batches) == 8, "1 + 2 + 4 + … up to 200"
