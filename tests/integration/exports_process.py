"""Processes that remove the shop's expired exports and die at a step.

Each line of standard input is `DSN DIRECTORY STEP`; the answer is how the process ended that was forked for it. One
that has imported everything forks in no time, where five that import it all would take half a minute.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.integration.shop_exports import ExportShop
from tidegate.jobs.clockwork import units
from tidegate_kernel.postgres import open_pool

STEPS = (
    "before the first file",
    "between two files",
    "after the files",
    "before the commit",
    "after the commit",
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(function: Callable[..., Any], *, after: int) -> Callable[..., Any]:
    """`function`, whose caller does not live to see it return for the `after`th time; 0: nor begin."""
    calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if after == 0:
            die()
        result = function(*args, **kwargs)
        if calls == after:
            die()
        return result

    return call


def dying_at_the_end(function: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        await function(*args, **kwargs)
        die()

    return call


def arm(step: str) -> None:
    match step:
        case "before the first file":
            os.unlink = dying(os.unlink, after=0)
        case "between two files":
            os.unlink = dying(os.unlink, after=2)
        case "after the files":
            os.fsync = dying(os.fsync, after=1)
        case "before the commit":
            name = "note_removal"  # the last statement before COMMIT
            setattr(units, name, dying_at_the_end(getattr(units, name)))
        case "after the commit":
            units.Units.do = dying_at_the_end(units.Units.do)  # type: ignore[method-assign]  # the process is to die


async def main(dsn: str, directory: str, step: str) -> None:
    async with open_pool(dsn, size=4) as pool:
        shop = ExportShop(pool, dsn, Path(directory))
        run = await shop.claim(holder="victim")
        arm(step)
        await shop.work_off(run)


if __name__ == "__main__":
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what it logs is no answer
            asyncio.run(main(*line.rstrip("\n").split(" ", 2)))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
