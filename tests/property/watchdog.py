"""Ends a process whose schedule does not end, with all that tells why: a hang says nothing by itself."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# A schedule takes a quarter of a second on a quiet machine; drawing and shrinking others is not counted.
_PATIENCE_SECONDS = 120.0
_EXIT_CODE = 70


@contextmanager
def ended_if_it_hangs(loop: asyncio.AbstractEventLoop, what: object) -> Iterator[None]:
    """The process dies inside the block if that takes too long; `what` it was, its threads and tasks are on stderr."""
    timer = threading.Timer(_PATIENCE_SECONDS, _end, [loop, what])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(loop: asyncio.AbstractEventLoop, what: object) -> None:
    print(f"after {_PATIENCE_SECONDS:.0f} s not at its end: {what!r}", file=sys.stderr, flush=True)
    faulthandler.dump_traceback(sys.stderr)
    for task in asyncio.all_tasks(loop):
        task.print_stack(file=sys.stderr)
    sys.stderr.flush()
    os._exit(_EXIT_CODE)
