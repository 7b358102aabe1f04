"""Somebody who replays and discards the ledger's dead letters while everything is struck: `tidegate dlq`, as processes.

The runner has an application in which some of what was refused can be handled, as after a deployment. It is killed like
a worker now and then, and its run taken up by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from signal import SIGKILL

import asyncpg

from tests.chaos.process import Child, Command

_PAUSE_SECONDS = 1.5
_LOOK_SECONDS = 0.1
# From the moment it has its run. At twenty a second a run over what some seconds of a story leave takes so long.
_LATEST_KILL_SECONDS = 2.0
_SLOWLY = ("--rate", "20")
_PATIENCE_SECONDS = 120.0
# What is done in a run of faults. The index keeps its letters: a replay of what nobody has mended fails again.
_DEEDS: Sequence[Sequence[str]] = (
    ("replay", "--job", "ledger", "--failed-for", "rejected"),
    ("replay", "--job", "ledger", "--failed-for", "rejected"),
    ("replay", "--job", "ledger"),
    ("discard", "--job", "ledger", "--failed-for", "undecodable", "--tenant", "north"),
    ("replay", "--job", "search", "--failed-for", "undecodable"),
)
_EVERYTHING = ("replay", "--job", "ledger", "--force")
_DO_IT = ("--yes", "--reason", "chaos")

# A killed runner holds its run for the rest of its lease, which outlasts a short run; it is dead for certain.
_UNFINISHED = """
WITH ended AS (UPDATE tidegate.replay SET lease_until = now() WHERE state = 'running')
SELECT id, kind FROM tidegate.replay WHERE state = 'running' ORDER BY id LIMIT 1
"""
_AT_WORK = "SELECT id FROM tidegate.replay WHERE state = 'running' LIMIT 1"


@dataclass
class Replays:
    """Runs commands one after the other. `ends` counts how they ended: by their exit code, or killed by us."""

    folder: Path
    environment: Mapping[str, str]
    postgres: str
    ends: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def go_on(self, chance: Random) -> None:
        """Until it is told to stop, and then no longer than the command in hand takes."""
        while not self._stopping.is_set():
            chosen = chance.choice(_DEEDS)
            deed = await self._unfinished() or chosen
            kill_after = chance.uniform(0, _LATEST_KILL_SECONDS) if chance.random() < 0.5 else None
            await self._do(deed, kill_after=kill_after)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _PAUSE_SECONDS)

    def stop(self) -> None:
        self._stopping.set()

    async def finish(self) -> None:
        """All is well: what was left of runs is done, and then everything that can be replayed is."""
        while (unfinished := await self._unfinished()) is not None:
            await self._do(unfinished)
        await self._do(_EVERYTHING)

    async def _unfinished(self) -> Sequence[str] | None:
        """What takes up the oldest run whose runner is gone; None where there is none, or Postgres is away."""
        row = await self._ask(_UNFINISHED)
        return None if row is None else (row["kind"], "--resume", str(row["id"]))

    async def _ask(self, query: str) -> asyncpg.Record | None:
        with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection = await asyncpg.connect(self.postgres, timeout=5)
            try:
                return await connection.fetchrow(query)
            finally:
                connection.terminate()
        return None

    async def _do(self, deed: Sequence[str], *, kill_after: float | None = None) -> None:
        self.starts += 1
        pace = _SLOWLY if kill_after is not None else ()
        arguments = [sys.executable, "-m", "tidegate", "dlq", *deed, *pace, *_DO_IT]
        log_file = self.folder / f"replay-{self.starts:03d}.log"
        child = Child(Command(arguments, self.folder, log_file, environment=self.environment))
        await child.start()
        assert child.process is not None
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                if kill_after is not None:
                    await self._kill_at_work(child, kill_after)
                code = await child.process.wait()
            self.ends[f"{deed[0]} killed at work" if code == -SIGKILL else f"{deed[0]} ended with {code}"] += 1
        except TimeoutError:
            self.ends[f"{deed[0]} hung"] += 1
        finally:
            await child.end(SIGKILL, grace_seconds=5)

    async def _kill_at_work(self, child: Child, seconds: float) -> None:
        """The runner is killed so long after it has got its run, if it has not ended by then."""
        assert child.process is not None
        while child.is_alive and await self._ask(_AT_WORK) is None:
            await asyncio.sleep(_LOOK_SECONDS)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.process.wait(), seconds)
        child.signal(SIGKILL)

    @property
    def complaints(self) -> Sequence[str]:
        """Of what must not happen: a command that hangs, or is refused. One that finds a server away ends with 2."""
        bad = [end for end in self.ends if "hung" in end or end.endswith(" 3")]
        return [f"{self.ends[end]} × {end}" for end in sorted(bad)]


@contextlib.asynccontextmanager
async def replaying(replays: Replays, chance: Random) -> AsyncIterator[None]:
    """Inside, letters are replayed and discarded; the command in hand has ended afterwards."""
    task = asyncio.create_task(replays.go_on(chance), name="replays")
    try:
        yield
        replays.stop()
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
