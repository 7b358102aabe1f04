"""A SIGTERM that comes before a worker has begun anything."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from types import FrameType

# What these are to do is not done yet: a 0 would say that it is.
_HAVE_AN_END = ("--backfill", "--check")


def end_well_until_begun(arguments: Sequence[str]) -> None:
    """From here on SIGTERM ends a live worker with 0, until `run_until_signal` takes over: nothing is left undone.

    Imports take a good part of a second, in which Python's own way to end looks like a failure to whoever scales down.
    """
    if arguments[:1] == ["run"] and not any(option in arguments for option in _HAVE_AN_END):
        signal.signal(signal.SIGTERM, _end)


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)
