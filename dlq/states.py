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
