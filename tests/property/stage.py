"""Plays schedules one after the other on one database, one event loop and one pool."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from unittest import mock

import asyncpg
import structlog
from pydantic import SecretStr

from tests.property.evidence import SCHEMA, gather_evidence
from tests.property.model import Expectations
from tests.property.player import Player
from tests.property.schedule import Schedule
from tests.property.virtual_time import LockWatch, VirtualLoop
from tests.property.world import Ground, World
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.settings import Settings

_CONNECTIONS = 40
_DRAIN_TIMEOUT = timedelta(seconds=3)
# A lane without work looks for some this often: five times as often, as in production, costs turns and shows nothing.
_LOOK_SECONDS = 0.1
# A schedule has a handful of letters, and a run shall have several batches.
_LETTERS_AT_ONCE = 3
# Rows of earlier schedules are in nobody's way, but job numbers are a smallint.
_SCHEDULES_BEFORE_CLEANING = 5_000
_CLEAN = "TRUNCATE tidegate.job RESTART IDENTITY CASCADE"


class Stage:
    """`played` and `struck` tell what all schedules together came to."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._numbers = itertools.count(1)
        self.played = 0
        self.struck: Counter[str] = Counter()
        self.restarts: Counter[str] = Counter()

    @property
    def loop(self) -> VirtualLoop:
        return self._ground.loop

    def play(self, schedule: Schedule) -> None:
        """Raises AssertionError where a guarantee did not hold, Unsettled where the work never ended."""
        self._ground.loop.run_until_complete(self._play(schedule))

    async def _play(self, schedule: Schedule) -> None:
        number = next(self._numbers)
        if number % _SCHEDULES_BEFORE_CLEANING == 0:
            await self._ground.loop.statement(lambda: self._ground.pool.execute(_CLEAN))
        world = World(f"s{number}", schedule.kind, self._ground)
        player = Player(world)

        async def is_writable(_: str) -> bool:
            return not world.postgres.is_down

        try:
            with (
                mock.patch("tidegate.assembly.is_writable", is_writable),
                mock.patch("consumers.lane._NOTHING_OWNED_SECONDS", _LOOK_SECONDS),
                mock.patch("consumers.replay._LARGEST_BATCH", _LETTERS_AT_ONCE),
            ):
                await player.play(schedule)
        finally:
            await world.end()
        self.played += 1
        self.struck += player.struck
        self.restarts.update(type(error).__name__ for error in world.restarts)
        self.struck.update(f"postgres {fault.how.value}" for fault in world.postgres.struck)
        evidence = await gather_evidence(world)
        self.struck.update(f"letter {verdict.outcome}" for verdict in evidence.verdicts)
        expectations = Expectations(world, evidence)
        expectations.check()
        if schedule.is_made_good:
            expectations.check_made_good()


@contextmanager
def opened_stage(dsn: str) -> Iterator[Stage]:
    """Yields a stage on the (migrated, otherwise empty) database at `dsn`."""
    locks = LockWatch(dsn)
    loop = VirtualLoop(locks)
    told = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        pool = loop.run_until_complete(loop.statement(lambda: _open(dsn)))
        with ThreadPoolExecutor(1) as threads:
            settings = Settings(postgres_dsn=SecretStr(dsn)).model_copy(
                update={"drain_timeout": _DRAIN_TIMEOUT, "lanes": 2}
            )
            yield Stage(Ground(loop, pool, settings, Metrics(), threads))
        pool.terminate()
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        structlog.configure(**told)
        locks.close()
        loop.close()


async def _nothing(_: object) -> None:
    """A transaction left open is rolled back all the same; there is no other state to reset."""


async def _open(dsn: str) -> asyncpg.Pool[asyncpg.Record]:
    pool: asyncpg.Pool[asyncpg.Record] = await asyncpg.create_pool(
        dsn,
        min_size=0,
        max_size=_CONNECTIONS,
        max_inactive_connection_lifetime=0,
        max_queries=1_000_000_000,
        # Virtual minutes pass in real milliseconds: nothing grows old.
        max_cached_statement_lifetime=0,
        statement_cache_size=500,
        command_timeout=90,
        reset=_nothing,
        # A schedule tests what a crash of ours does, not of the machine's disk.
        server_settings={"timezone": "UTC", "synchronous_commit": "off", "jit": "off"},
    )
    await pool.execute(SCHEMA)
    return pool
