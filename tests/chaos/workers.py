"""Worker processes: `tidegate run`, several of them, each started again when it ends, as a cluster does it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.chaos.process import Child, Command

_AGAIN_SECONDS = 0.5
# A second by itself; servers may still be coming back, and two cores may do other things.
_READY_SECONDS = 180.0
_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Ended:
    """How one incarnation of a worker came to its end."""

    worker: str
    code: int
    cause: str
    """What we did to it; empty if it ended by itself."""
    seconds: float
    """From our signal to its end."""


@dataclass
class Worker:
    """One replica. Each start is another process with another log file."""

    name: str
    folder: Path
    environment: Mapping[str, str]
    child: Child | None = None
    starts: int = 0
    is_wanted: bool = True
    is_frozen: bool = False
    doom: str = ""
    doomed_at: float = 0.0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def owner(self) -> str:
        """What it writes into the positions that it owns."""
        assert self.child is not None
        return f"{socket.gethostname()}:{self.child.pid}"

    @property
    def is_up(self) -> bool:
        """Whether it has started consuming: from then on it knows what to do with signals."""
        return self.child is not None and self.child.is_alive and "worker.started" in self.log

    @property
    def log(self) -> str:
        """What its present incarnation has logged so far."""
        return "" if self.child is None else self.child.command.log_file.read_text(errors="replace")

    async def start(self) -> None:
        self.starts += 1
        log_file = self.folder / f"{self.name}-{self.starts:03d}.log"
        arguments = [sys.executable, "-m", "tidegate", "run", "--all"]
        self.doom, self.is_frozen = "", False
        self.ended.clear()
        self.child = Child(Command(arguments, self.folder, log_file, environment=self.environment))
        await self.child.start()

    def signal(self, number: signal.Signals) -> None:
        assert self.child is not None
        if number in (signal.SIGKILL, signal.SIGTERM) and not self.doom:
            self.doom, self.doomed_at = number.name, asyncio.get_running_loop().time()
        if number in (signal.SIGSTOP, signal.SIGCONT):
            self.is_frozen = number is signal.SIGSTOP
        self.child.signal(number)


class Fleet:
    """Keeps as many workers running as are wanted, and remembers how each one ended."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self.workers: dict[str, Worker] = {}
        self.ends: list[Ended] = []
        self._starts: Counter[str] = Counter()

    async def set_size(self, count: int) -> None:
        """So many workers are wanted: new ones have been started, surplus ones told to stop."""
        names = [f"worker-{number}" for number in range(1, count + 1)]
        for name in names:
            if name not in self.workers:
                self._add(name)
        for name in [each for each in self.workers if each not in names]:
            worker = self.workers.pop(name)
            worker.is_wanted = False
            worker.signal(signal.SIGTERM)

    async def pick(self, chance: Random) -> Worker:
        """One of those that are up and not frozen. Waits for one; raises TimeoutError if none comes."""
        async with asyncio.timeout(_READY_SECONDS):
            while not (up := [worker for worker in self.workers.values() if worker.is_up and not worker.is_frozen]):
                await asyncio.sleep(_LOOK_SECONDS)
        return chance.choice(up)

    async def all_up(self) -> None:
        """Every wanted worker is up. Raises TimeoutError if that takes too long."""
        async with asyncio.timeout(_READY_SECONDS):
            while not all(worker.is_up for worker in self.workers.values()):
                await asyncio.sleep(_LOOK_SECONDS)

    async def stop(self) -> None:
        """All have been told to stop and are gone."""
        await self.set_size(0)
        await asyncio.gather(*self._keepers.values())

    async def kill(self) -> None:
        """None runs on, whatever it does."""
        for keeper in self._keepers.values():
            keeper.cancel()
        await asyncio.gather(*self._keepers.values(), return_exceptions=True)

    def _add(self, name: str) -> None:
        worker = self.workers[name] = Worker(name, self._folder, self._environment, starts=self._starts[name])
        # A name may come back while its former bearer still stops.
        self._keepers[f"{name}#{len(self._keepers)}"] = asyncio.create_task(self._keep(worker), name=name)

    async def _keep(self, worker: Worker) -> None:
        loop = asyncio.get_running_loop()
        try:
            while worker.is_wanted:
                await worker.start()
                # Another bearer of the name must not be taken for up by what this one has logged.
                self._starts[worker.name] = worker.starts
                assert worker.child is not None
                assert worker.child.process is not None
                code = await worker.child.process.wait()
                seconds = loop.time() - worker.doomed_at if worker.doom else 0.0
                self.ends.append(Ended(worker.child.command.log_file.name, code, worker.doom, seconds))
                worker.ended.set()
                if worker.is_wanted:
                    await asyncio.sleep(_AGAIN_SECONDS)
        finally:
            if worker.child is not None:
                await worker.child.end(signal.SIGKILL, grace_seconds=5)


@contextlib.asynccontextmanager
async def fleet(folder: Path, environment: Mapping[str, str], *, size: int) -> AsyncIterator[Fleet]:
    """`size` workers are up inside; none is left afterwards."""
    made = Fleet(folder, environment)
    try:
        await made.set_size(size)
        await made.all_up()
        yield made
    finally:
        await made.kill()
