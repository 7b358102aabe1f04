"""Says what happens: a live line for each piece of work on a terminal, plain lines elsewhere."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class Reporter(Protocol):
    """Is called from several threads at once and returns at once."""

    def say(self, work: str, text: str) -> None:
        """A person can read what this piece of work does now."""

    def count(self, work: str, text: str, done: int, total: int) -> None:
        """A person can read how far this piece of work has come."""


class Lines:
    """One plain line for each change, at most one in ten for counted work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def say(self, work: str, text: str) -> None:
        with self._lock:
            print(f"{work}: {text}", file=sys.stderr, flush=True)

    def count(self, work: str, text: str, done: int, total: int) -> None:
        step = max(1, total // 10)
        if done % step == 0 or done == total:
            self.say(work, f"{text} {done} of {total}")


class Bars:
    """One live line for each piece of work."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()

    def say(self, work: str, text: str) -> None:
        self._progress.update(self._task(work), description=f"{work}: {text}", total=None)

    def count(self, work: str, text: str, done: int, total: int) -> None:
        self._progress.update(self._task(work), description=f"{work}: {text}", completed=done, total=total)

    def _task(self, work: str) -> TaskID:
        with self._lock:
            if work not in self._tasks:
                self._tasks[work] = self._progress.add_task(work, total=None)
            return self._tasks[work]


class Silence:
    """For callers that have their own way to show what happens."""

    def say(self, work: str, text: str) -> None:
        """Says nothing."""

    def count(self, work: str, text: str, done: int, total: int) -> None:
        """Says nothing."""


@contextmanager
def reporter() -> Iterator[Reporter]:
    """Live bars on a terminal, plain lines on standard error elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines()
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield Bars(progress)
