"""What the application's code raises is blamed on the event that it was called for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from consumers.decoding import Arrival
from consumers.dispatch import HandlerFailed
from tidegate_kernel.errors import TidegateError


class HandlerCancelled(TidegateError):
    """A handler let out the CancelledError of something else, such as a task of its own."""


class HandlerExited(TidegateError):
    """A handler called sys.exit, or let out a group of exceptions that holds more than errors."""


class Blaming:
    """Raises HandlerFailed, naming the arrival in hand, for whatever the application's code raises inside."""

    def __init__(self, current: Callable[[], Arrival], translate: Callable[[Exception], Exception]) -> None:
        self._current, self._translate = current, translate

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # CancelledError is no Exception: where it was asked for, it leaves as it is.
        if isinstance(error, asyncio.CancelledError) and not _is_asked_to_end():
            raise HandlerFailed(self._current(), HandlerCancelled("a cancellation that nobody asked for")) from error
        if isinstance(error, SystemExit | BaseExceptionGroup) and not isinstance(error, Exception):
            raise HandlerFailed(self._current(), HandlerExited(type(error).__name__)) from error
        if isinstance(error, Exception):
            raise HandlerFailed(self._current(), self._translate(error)) from error


def _is_asked_to_end() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
