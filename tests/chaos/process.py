"""Processes that the chaos suite starts, signals and starts again. None of them outlives it."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from signal import SIGKILL, Signals

_MORTAL = Path(__file__).with_name("mortal.py")
# Below the kernel's range for outgoing connections (from 32768): whoever knocks at a stopped server's port again and
# again would at last connect to itself, and the server could not come back.
_PORTS = range(20_000, 32_000)
# A port stays free until its server is up: two of our own must not be told the same one.
_TOLD: set[int] = set()


@dataclass(frozen=True)
class Command:
    """How to start a process: where, as whom, with which environment (the starter's own unless given)."""

    arguments: Sequence[str]
    folder: Path
    log_file: Path
    user: str = ""
    environment: Mapping[str, str] | None = None


@dataclass
class Child:
    """One process at a time, by one command. Its output is appended to its log file."""

    command: Command
    process: asyncio.subprocess.Process | None = field(default=None, init=False)

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        """It runs; it may not answer yet."""
        starter = [sys.executable, "-I", "-S", str(_MORTAL), str(os.getpid()), self.command.user]
        with self.command.log_file.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *starter,
                *self.command.arguments,
                cwd=self.command.folder,
                env=self.command.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def signal(self, number: Signals) -> None:
        """The signal is sent, if there is still somebody to get it."""
        if self.is_alive:
            os.kill(self.pid, number)

    async def end(self, number: Signals, *, grace_seconds: float) -> int:
        """It is gone: by the signal, or killed after the grace. Returns its exit code, negative for a signal."""
        if self.process is None:
            return 0
        self.signal(number)
        try:
            return await asyncio.wait_for(self.process.wait(), grace_seconds)
        except TimeoutError:
            self.signal(SIGKILL)
            return await self.process.wait()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nothing listens on, none of them told before."""
    found: list[int] = []
    while len(found) < count:
        port = SystemRandom().choice(_PORTS)
        if port not in _TOLD and _is_free(port):
            _TOLD.add(port)
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
