"""A run over dead letters: what it is, what its letters come to, and in whose hands it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from tidegate_kernel.event import JobId, ReplayId

LEASE_SECONDS = 30.0
"""A runner that is not heard of for so long is taken for dead. Above the default time limit of a handler."""


class RunKind(StrEnum):
    """What a run does with its letters. Events parked behind them are handled either way."""

    REPLAY = "replay"
    DISCARD = "discard"


class RunState(StrEnum):
    """`waiting`: for a second person. A `stopped` run can be resumed."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPED = "stopped"
    DONE = "done"


class Outcome(StrEnum):
    """What became of a letter in a run. After the first four it has come to its end."""

    RESOLVED = "resolved"
    ALREADY_PROCESSED = "already_processed"
    SUPERSEDED = "superseded"
    DISCARDED = "discarded"
    FAILED = "failed"
    REFUSED = "refused"
    BEHIND = "behind"
    NOT_TRIED = "not_tried"


ENDED = (Outcome.RESOLVED, Outcome.ALREADY_PROCESSED, Outcome.SUPERSEDED, Outcome.DISCARDED)
"""With each of these a letter has come to its end."""

LEFT = (Outcome.BEHIND, Outcome.NOT_TRIED)
"""Resuming tries these again: nothing was found out about them."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A run in the hands of a runner."""

    job: JobId
    run: ReplayId
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody wants to be done with some letters of a job."""

    kind: RunKind
    letters: Sequence[UUID]
    digest: str
    reason: str
    asked_by: str
    is_forced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as it stands. `is_stalled`: it has a runner that has not been heard of for too long.

    `parked`: events behind its letters that were dealt with, of which `failed_events` are dead letters now.
    """

    id: ReplayId
    job: str
    kind: RunKind
    state: RunState
    digest: str
    letters: int
    parked: int
    failed_events: int
    is_forced: bool
    reason: str
    asked_by: str
    approved_by: str | None
    stop_asked_by: str | None
    holder: str | None
    created_at: datetime
    finished_at: datetime | None
    is_stalled: bool
    outcomes: Mapping[Outcome, int]

    @property
    def undecided(self) -> int:
        """How many of its letters nothing has become of yet; with the outcomes they add up to `letters`."""
        return self.letters - sum(self.outcomes.values())

    @property
    def left(self) -> int:
        """How many letters a resumed run would still try."""
        return self.undecided + sum(self.outcomes.get(outcome, 0) for outcome in LEFT)

    @property
    def is_clean(self) -> bool:
        """Whether every letter has come to its end, and nothing behind them has failed."""
        return sum(self.outcomes.get(outcome, 0) for outcome in ENDED) == self.letters and not self.failed_events


class Place(NamedTuple):
    """An outstanding letter, and where its record stands."""

    letter: UUID
    topic: str
    topic_id: UUID
    partition: int
    offset: int


class FailureGroup(NamedTuple):
    """Letters of a run that failed again in the same way; the error is that of the `sample`."""

    reason: str
    fingerprint: str
    error_class: str
    error_message: str
    letters: int
    sample: UUID
