"""What a person sees while the trial runs: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

_LINE_EVERY_SECONDS = 3.0


class Screen(Protocol):
    """Shows counts towards one total, and remarks between them."""

    def show(self, counts: Mapping[str, int], dead_letters: int) -> None:
        """How far everything is now."""

    def say(self, text: str) -> None:
        """Something happened."""


class Lines:
    """A plain line for each remark, and for the counts every few seconds."""

    def __init__(self, total: int) -> None:
        self._total, self._started, self._shown_at = total, time.monotonic(), 0.0
        self._shown: object = None

    def show(self, counts: Mapping[str, int], dead_letters: int) -> None:
        now = time.monotonic()
        if now - self._shown_at >= _LINE_EVERY_SECONDS and self._shown != (state := (dict(counts), dead_letters)):
            self._shown_at, self._shown = now, state
            told = "  ".join(f"{name} {count:,}" for name, count in counts.items())
            self.say(f"of {self._total:,}: {told}  dead letters {dead_letters}")

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._started:5.1f} s  {text}", flush=True)


class Bars:
    """A bar for each count; remarks scroll above them."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total = progress, total
        self._tasks: dict[str, TaskID] = {}

    def show(self, counts: Mapping[str, int], dead_letters: int) -> None:
        for name, count in counts.items():
            if name not in self._tasks:
                self._tasks[name] = self._progress.add_task(name, total=self._total, letters="")
            letters = f"dead letters of all jobs: {dead_letters}" if name == "sent" else ""
            self._progress.update(self._tasks[name], completed=count, letters=letters)

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False)


@contextmanager
def screen(total: int) -> Iterator[Screen]:
    """Yields the screen that fits standard output."""
    console = Console()
    if not console.is_terminal:
        yield Lines(total)
        return
    columns = (
        TextColumn("{task.description:16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[letters]}"),
    )
    with Progress(*columns, console=console) as progress:
        yield Bars(progress, total)
