"""SIGTERM and Ctrl-C ask for an orderly end that waits for nobody for ever; a second Ctrl-C ends at once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

import structlog
import uvloop

from tidegate_kernel import logs

T = TypeVar("T")

_log = structlog.get_logger(__name__)


# Beyond the drain: leaving the groups, the outbox's rest, closing connections. With the default drain it ends inside
# the 30 s that Kubernetes waits before it kills.
_CLOSING = timedelta(seconds=8)


def run_until_signal(
    work: Callable[[asyncio.Event], Coroutine[Any, Any, T]], *, drain: timedelta | None = None, late_code: int = 0
) -> T:
    """Runs `work(stop)` to its end; a signal sets `stop`, after which work in hand is finished.

    A platform may send SIGTERM more than once; it means no more than the first. A second Ctrl-C is a person who does
    not want to wait: the process ends on the spot with 130. Nothing is lost by that: what has not been settled is read
    again. So it is when `work` has not ended some seconds after `drain`, because a server does not answer or a handler
    blocks: the process ends with `late_code`.
    """

    async def main() -> T:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        ending = _Ending(loop, stop, drain, late_code)
        former = {number: signal.signal(number, ending.ask) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            return await work(stop)
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


class _Ending:
    """What signals have asked for. They are heard where they arrive, not by the event loop: it may be what hangs."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, stop: asyncio.Event, drain: timedelta | None, late_code: int
    ) -> None:
        self._loop, self._stop, self._drain, self._late_code = loop, stop, drain, late_code
        self._is_asked = False

    def ask(self, number: int, _frame: FrameType | None) -> None:
        """The handler of a signal: runs between two instructions of whatever the main thread does."""
        if self._is_asked:
            if number == signal.SIGINT:
                os._exit(128 + number)
            return
        self._is_asked = True
        if self._drain is not None:
            late = threading.Timer((self._drain + _CLOSING).total_seconds(), _end_late, [self._late_code])
            late.daemon = True
            late.start()
        self._loop.call_soon_threadsafe(self._begin, signal.Signals(number).name)

    def _begin(self, name: str) -> None:
        _log.info(logs.STOP_ASKED, signal=name, hint="work in hand is finished; a second Ctrl-C ends at once")
        self._stop.set()


def _end_late(code: int) -> None:
    _log.warning(logs.STOP_CUT_SHORT, hint="something did not answer; what was not settled is read again")
    os._exit(code)
