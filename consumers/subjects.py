"""Whose data an event holds, as its job reads it: what an erasure looks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from consumers.decoding import Decoder
from tidegate_kernel.event import Event, Record

SubjectOf = Callable[[Event[Any]], str | None]
"""Pure: whose data the event holds, by one field; None for nobody's."""


class Sight(Enum):
    """What is known of a record."""

    SUBJECT = "subject"
    SOMEBODY_ELSE = "somebody else"
    UNKNOWN = "unknown"
    """It does not become an event, or its job's function failed."""


class SubjectSeeker:
    """Finds the records of one subject among those of a job."""

    def __init__(self, decoder: Decoder, subject_of: SubjectOf, subject: str) -> None:
        self._decoder, self._subject_of, self._subject = decoder, subject_of, subject

    def look(self, records: Sequence[Record]) -> Sequence[Sight]:
        """Returns what each of `records` is about; one of a topic that the job no longer reads is unknown."""
        decoded = self._decoder.decode([record for record in records if self._decoder.reads(record.topic)])
        seen = {id(arrival.record): self._sight(arrival.event) for arrival in decoded.events}
        return [seen.get(id(record), Sight.UNKNOWN) for record in records]

    def _sight(self, event: Event[Any]) -> Sight:
        try:
            found = self._subject_of(event)
        except Exception:
            # The user's code: what it cannot tell of one event must not end a search for a person's data.
            return Sight.UNKNOWN
        return Sight.SUBJECT if found == self._subject else Sight.SOMEBODY_ELSE
