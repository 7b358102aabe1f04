"""In which order things arrive: amendments before their orders, repeats long after, poison in between."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from operator import itemgetter
from typing import NamedTuple, Protocol

from examples.shop.demo.messages import Kind, Message, message
from examples.shop.demo.poison import POISON, poison
from examples.shop.demo.purchases import Purchase

# Distances in purchases. Each is longer than a batch, so that what belongs together is handled apart.
_AMENDED_AFTER, _CANCELLED_AFTER, _REDELIVERED_AFTER = 1200, 2400, 3600
_EARLY = 900
_REDELIVERED_EVERY = 20  # 5 %
_VIEWED_EVERY = 50


class Step(NamedTuple):
    """Something that is sent. A repeat is the very event of before, at a new offset."""

    kind: Kind | str
    purchase: Purchase | None
    is_repeat: bool = False


class Story:
    """All steps in the order of their sending; the same for the same purchases in the same order."""

    def __init__(self, purchases: Sequence[Purchase], *, poison: Collection[str] = tuple(POISON)) -> None:
        told = enumerate(purchases, start=1)
        placed = [(place, step) for number, purchase in told for place, step in _steps_of(number, purchase)]
        between = len(purchases) / (len(poison) + 1)
        placed += [(between * number, Step(kind, None)) for number, kind in enumerate(poison, start=1)]
        self.steps: Sequence[Step] = [step for _, step in sorted(placed, key=itemgetter(0))]


class Make(Protocol):
    """Makes the record that tells of `kind` happening to the purchase's order."""

    def __call__(self, kind: Kind, purchase: Purchase, sent_at: datetime, *, run_at: datetime) -> Message: ...


class Post:
    """Makes the messages of a story as they are sent. A repeat carries the bytes of the first time."""

    def __init__(self, run_at: datetime, make: Make = message) -> None:
        self._run_at, self._make = run_at, make
        self._to_repeat: dict[tuple[int, str], Message] = {}

    def message(self, step: Step, sent_at: datetime) -> Message:
        if step.purchase is None:
            return poison(step.kind, sent_at)
        place = (step.purchase.line, step.kind)
        if step.is_repeat:
            return self._to_repeat.pop(place)._replace(sent_at=sent_at)
        made = self._make(Kind(step.kind), step.purchase, sent_at, run_at=self._run_at)
        if is_redelivered(step.purchase, Kind(step.kind)):
            self._to_repeat[place] = made
        return made


def is_redelivered(purchase: Purchase, kind: Kind) -> bool:
    """Whether the event arrives twice. A cancellation has no event id; that of one order in twenty is repeated too."""
    return purchase.line % _REDELIVERED_EVERY == 0 and kind is not Kind.VIEWED


def _steps_of(number: int, purchase: Purchase) -> Iterator[tuple[float, Step]]:
    for place, kind in _happenings(number, purchase):
        yield place, Step(kind, purchase)
        if is_redelivered(purchase, kind):
            yield place + _REDELIVERED_AFTER, Step(kind, purchase, is_repeat=True)


def _happenings(number: int, purchase: Purchase) -> Iterator[tuple[float, Kind]]:
    """Where in the story, of which the purchase is the `number`th, and what."""
    yield number, Kind.PLACED
    is_backwards = purchase.is_amended and purchase.is_cancelled
    if purchase.is_amended:
        # Every second amendment is earlier than its order; with a cancellation all three arrive backwards.
        is_early = is_backwards or purchase.line % 2 == 0
        yield number - _EARLY if is_early else number + _AMENDED_AFTER, Kind.AMENDED
    if purchase.is_cancelled:
        yield number - 2 * _EARLY if is_backwards else number + _CANCELLED_AFTER, Kind.CANCELLED
    if purchase.line % _VIEWED_EVERY == 0:
        yield number + 0.5, Kind.VIEWED
