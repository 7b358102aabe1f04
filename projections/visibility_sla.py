"""How much of its error budget a job burns: seconds in which readers were further behind than promised."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

WINDOWS: Mapping[str, float] = {"5m": 300.0, "1h": 3600.0}
"""Two, so that an alert can ask for both: the long one says that it matters, the short one that it still goes on."""

# Sums are kept this fine: 360 of them for an hour.
_GRAIN_SECONDS = 10.0


class _Sum(NamedTuple):
    since: float
    good: float
    bad: float


class ErrorBudget:
    """Good and bad seconds of one job's partitions in this process. `objective` is the part that has to be good."""

    def __init__(self, objective: float) -> None:
        self._allowed = 1.0 - objective
        self._sums: deque[_Sum] = deque()

    def add(self, good: float, bad: float, now: float) -> None:
        """Partitions were fresh for `good` seconds and late for `bad`, ending at `now` (monotonic)."""
        if self._sums and now - self._sums[-1].since < _GRAIN_SECONDS:
            last = self._sums.pop()
            self._sums.append(_Sum(last.since, last.good + good, last.bad + bad))
        else:
            self._sums.append(_Sum(now, good, bad))
        longest = max(WINDOWS.values())
        while now - self._sums[0].since > longest:
            self._sums.popleft()

    def burn(self, window: str, now: float) -> float:
        """1.0 uses the budget up just as it grows; 0 without any late second, or without anything to judge."""
        since = now - WINDOWS[window]
        recent = [each for each in self._sums if each.since >= since]
        bad, good = sum(each.bad for each in recent), sum(each.good for each in recent)
        return bad / (bad + good) / self._allowed if bad else 0.0
