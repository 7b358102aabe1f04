"""A run in the hands of its runner: its lease is kept while it works, and given back however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog

from consumers.ledger import Ledger
from consumers.replay import Replay
from dlq.runs import LEASE_SECONDS, Hold, RunState, give_back, hold
from tidegate_kernel import logs
from tidegate_kernel.errors import LeaseLost, TidegateError, Transient

_log = structlog.get_logger(__name__)

_LEAVE_SECONDS = 5.0


@asynccontextmanager
async def left_resumable(ledger: Ledger, held: Hold) -> AsyncIterator[None]:
    """However the block fails, the run has stopped; where Postgres does not take that, its lease runs out."""
    is_over = False
    try:
        yield
        is_over = True
    except LeaseLost:
        is_over = True  # another has it
        raise
    finally:
        if not is_over:
            await _leave(ledger, held)


async def _leave(ledger: Ledger, held: Hold) -> None:
    _log.warning(logs.REPLAY_LEFT, job=ledger.origin.job_code, run=held.run, hint="it can be resumed")
    with suppress(TidegateError, TimeoutError):
        async with asyncio.timeout(_LEAVE_SECONDS), ledger.transaction() as connection:
            await give_back(connection, held, RunState.STOPPED)


@asynccontextmanager
async def leased(ledger: Ledger, held: Hold, replay: Replay) -> AsyncIterator[None]:
    """Inside, the run stays this runner's also while a batch takes longer than a lease lasts."""
    keeper = asyncio.create_task(_keep(ledger, held, replay), name="replay-lease")
    try:
        yield
    finally:
        keeper.cancel()


async def _keep(ledger: Ledger, held: Hold, replay: Replay) -> None:
    while True:
        await ledger.clock.sleep(LEASE_SECONDS / 3)
        try:
            async with ledger.statement() as connection:
                if await hold(connection, held) is not None:
                    replay.stop()
        except Transient:
            continue  # whether the run is still ours shows when Postgres is back
        except LeaseLost:
            return  # the runner finds out by its own next statement
