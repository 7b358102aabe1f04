"""SIGTERM and Ctrl-C: the first asks for an orderly end, the second ends at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog
import uvloop

from tidegate_kernel import logs

T = TypeVar("T")

_log = structlog.get_logger(__name__)


def run_until_signal(work: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T:
    """Runs `work(stop)` to its end; a signal sets `stop`, after which work in hand is finished.

    A second signal ends the process on the spot with 128 + its number. Nothing is lost by that either: what has not
    been settled is read again.
    """

    async def main() -> T:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _ask_to_stop, stop, number)
        return await work(stop)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def _ask_to_stop(stop: asyncio.Event, number: signal.Signals) -> None:
    if stop.is_set():
        os._exit(128 + number)
    _log.info(logs.STOP_ASKED, signal=number.name, hint="work in hand is finished; once more ends at once")
    stop.set()
