"""What a whole DLQ topic tells about each letter: the newest failure, and whether an outcome came after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from dlq.importing.told import Misfit, Told, ToldItem, ToldLetter, ToldOutcome
from dlq.states import LetterState


class Spot(NamedTuple):
    """Where a record stands in the DLQ topic."""

    partition: int
    offset: int


class Ending(NamedTuple):
    """A letter's newest outcome."""

    at: datetime
    state: LetterState


class _Failure(NamedTuple):
    at: datetime
    spot: Spot


class History:
    """Folds the records of a topic, in whatever order: of one letter the latest time counts, see `dlq.outcomes`.

    So it does not matter in which partitions they landed: a record without a key goes anywhere, and one with a key
    elsewhere than before once the topic was given more partitions. It holds no payload: a million letters, all of them
    ended, take half a gigabyte.
    """

    def __init__(self) -> None:
        self._failures: dict[UUID, _Failure] = {}
        self._endings: dict[UUID, Ending] = {}
        self.misfits: dict[Spot, str] = {}
        """Why, by where they stand."""
        self.items: set[UUID] = set()
        """Letters of items, which are not brought back."""

    def note(self, spot: Spot, told: Told) -> None:
        match told:
            case Misfit(why):
                self.misfits[spot] = why
            case ToldItem(letter):
                self.items.add(letter)
            case ToldOutcome(letter, state, at):
                known = self._endings.get(letter)
                if known is None or at >= known.at:
                    self._endings[letter] = Ending(at, state)
            case ToldLetter():
                failure = self._failures.get(told.id)
                if failure is None or told.last_failed_at >= failure.at:
                    self._failures[told.id] = _Failure(told.last_failed_at, spot)

    @property
    def letters(self) -> Set[UUID]:
        return self._failures.keys()

    def is_newest(self, letter: UUID, spot: Spot) -> bool:
        """Whether the record at `spot` is the one of the letter's that counts."""
        failure = self._failures.get(letter)
        return failure is not None and failure.spot == spot

    def ending(self, letter: UUID) -> Ending | None:
        """How the letter ended; None if it stands, also because it failed again afterwards."""
        ending, failure = self._endings.get(letter), self._failures.get(letter)
        return None if ending is None or (failure is not None and failure.at > ending.at) else ending

    def by_state(self) -> Mapping[LetterState, int]:
        """How many letters there are of each state; those that stand are `dead`."""
        endings = (self.ending(letter) for letter in self._failures)
        return Counter(LetterState.DEAD if ending is None else ending.state for ending in endings)
