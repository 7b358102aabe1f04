"""Cancellations that an error has taken the place of."""

from __future__ import annotations

import asyncio


def raise_if_cancelled(error: BaseException) -> None:
    """Raises CancelledError, from `error`, where the current task is being cancelled.

    For whoever catches an error to wait and try again. Leaving a transaction whose connection broke raises the
    driver's error instead of CancelledError, and `asyncio.gather` that of whichever part failed first.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError from error
