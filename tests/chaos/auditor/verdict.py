"""What is wrong, by kind of wrong, each thing as one sentence."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Wrong(StrEnum):
    """In the order in which they are told."""

    LOST = "lost"
    DOUBLED = "doubled"
    STALE = "stale"
    RESURRECTED = "resurrected"
    OUT_OF_ORDER = "out of order"
    UNEXPLAINED = "unexplained"  # there, and nothing that was written accounts for it


@dataclass
class Verdict:
    """Differences between what was written and what was found. `events` were to be applied, once each."""

    events: int = 0
    records: int = 0
    letters: Counter[str] = field(default_factory=Counter)
    """Dead letters of all jobs, by what became of them."""
    differences: dict[Wrong, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, wrong: Wrong, sentences: Iterable[str]) -> None:
        self.differences[wrong] += sentences

    @property
    def is_clean(self) -> bool:
        return not any(self.differences.values())

    @property
    def summary(self) -> str:
        """As in `lost 0, doubled 0, stale 0, …`."""
        return ", ".join(f"{wrong} {len(self.differences[wrong])}" for wrong in Wrong)

    def first(self, count: int) -> Sequence[str]:
        """The first differences of every kind."""
        return [f"{wrong}: {sentence}" for wrong in Wrong for sentence in self.differences[wrong][:count]]
