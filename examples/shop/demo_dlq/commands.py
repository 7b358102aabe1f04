"""What an operator types: the real command line, shown as it is typed, with its exit code and its words."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass
from typing import Any

from examples.shop.demo.place import Place, TrialFailed
from examples.shop.demo.screen import Screen
from examples.shop.demo.workers import TIDEGATE


@dataclass(frozen=True, slots=True)
class Typed:
    """A command that has ended: `printed` went to standard output, `said` to standard error."""

    code: int
    printed: str
    said: str

    @property
    def as_json(self) -> Any:
        """Raises TrialFailed where it printed none."""
        try:
            return json.loads(self.printed)
        except ValueError:
            raise TrialFailed(f"no JSON but {self.printed[:500]!r}, exit {self.code}: {self.said[-2000:]}") from None


@dataclass(frozen=True, slots=True)
class Console:
    """Types commands in a place, and shows them."""

    place: Place
    screen: Screen

    async def type(self, *words: str) -> Typed:
        """The command has ended, however it did."""
        return await ended(await self.begin(*words))

    async def begin(self, *words: str) -> Process:
        """The command runs."""
        self.screen.say(f"$ {shlex.join(('tidegate', *words))}")
        return await asyncio.create_subprocess_exec(
            TIDEGATE, *words, env=self.place.environment, stdout=PIPE, stderr=PIPE
        )

    def show(self, text: str) -> None:
        """Its words, indented."""
        for line in text.rstrip().splitlines():
            self.screen.say(f"  {line.rstrip()}")


async def ended(process: Process) -> Typed:
    """Waits for its end."""
    printed, said = await process.communicate()
    return Typed(process.returncode or 0, printed.decode(), said.decode())


def owner_of(process: Process) -> str:
    """What stands in the names of its connections."""
    return f"{socket.gethostname()}:{process.pid}"
