"""What a rehearsal finds out: what would become of letters, and how those would fail that still do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

from consumers.replay_verdicts import STAYS
from consumers.replay_work import Entry
from dlq.cause import Cause
from dlq.runs import Outcome
from tidegate_kernel.errors import Reason


@dataclass(slots=True, kw_only=True)
class RehearsedFailure:
    """Letters and parked events that would fail in the same way. The sample is the first: a letter's id, or of a parked
    event only its place."""

    reason: Reason
    cause: Cause
    handler: str
    place: str
    sample: UUID | None
    letters: int = 0
    parked: int = 0


@dataclass(slots=True)
class Rehearsed:
    """What would become of the letters, and of the parked events that were reached: `passed` or `failed`."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    passed: int = 0
    failed: int = 0
    failures: dict[tuple[str, str], RehearsedFailure] = field(default_factory=dict)

    def add(self, other: Rehearsed) -> None:
        self.outcomes += other.outcomes
        self.passed += other.passed
        self.failed += other.failed
        for kind, failure in other.failures.items():
            mine = self.failures.setdefault(kind, failure)
            if mine is not failure:
                mine.letters += failure.letters
                mine.parked += failure.parked

    def fail(self, entry: Entry, reason: Reason, cause: Cause, handler: str) -> None:
        record = entry.record
        failure = self.failures.setdefault(
            (reason, cause.fingerprint),
            RehearsedFailure(
                reason=reason,
                cause=cause,
                handler=handler,
                place=f"{record.topic}:{record.partition}:{record.offset}",
                sample=entry.letter,
            ),
        )
        failure.letters += entry.letter is not None
        failure.parked += entry.letter is None

    def note(self, entry: Entry, outcome: Outcome) -> None:
        if entry.letter is not None:
            self.outcomes[outcome] += 1
        elif outcome in STAYS:
            self.failed += 1
        else:
            self.passed += 1
