"""What has become of a dead letter."""

from __future__ import annotations

from enum import StrEnum


class LetterState(StrEnum):
    """A closed set. Every letter begins as `dead`; the others belong to replay, discard and rebuild."""

    DEAD = "dead"
    REPLAYING = "replaying"
    QUARANTINED = "quarantined"
    RESOLVED = "resolved"
    ALREADY_PROCESSED = "already_processed"
    SUPERSEDED = "superseded"
    DISCARDED = "discarded"


class LetterKind(StrEnum):
    """What a letter is of: a record that a consumer could not handle, or an item of a job by the clock."""

    RECORD = "record"
    ITEM = "item"


FINAL = (LetterState.RESOLVED, LetterState.ALREADY_PROCESSED, LetterState.SUPERSEDED, LetterState.DISCARDED)
"""The letter has come to its end: nothing of it is left to be done, and nothing waits behind it."""

MOST_REPLAYS = 5
"""A letter that has failed in so many replays is quarantined, unless the caller counts otherwise."""

QUARANTINED_WHY = "quarantined after too many failed replays"
FORCE_HELPS = "--force includes them"
"""What whoever asks for such a letter is told, and what to do about it."""

UNRESOLVED = tuple(state for state in LetterState if state not in FINAL)
"""Somebody has yet to decide about the letter: its keys are blocked, and it is kept until then."""
