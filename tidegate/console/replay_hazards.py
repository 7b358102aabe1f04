"""What may surprise whoever replays or discards some letters: each hazard with its count, and what can be done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

from dlq.runs import RunKind
from dlq.states import LetterState


class HazardCode(StrEnum):
    """A closed set: what a plan warns of."""

    LOOSE = "loose"
    PARKED = "parked"
    HELD = "held"
    BEHIND = "behind"
    REPLAYING = "replaying"
    QUARANTINED = "quarantined"
    DECIDED = "decided"
    LATER_PASSED = "later_passed"
    NEWEST_WINS = "newest_wins"
    CLAIM_FORGOTTEN = "claim_forgotten"
    HANDLED_SINCE = "handled_since"
    NO_PAYLOAD = "no_payload"
    UNREAD_TOPIC = "unread_topic"
    PASSED_BY = "passed_by"
    EDITED = "edited"
    REPLAYED_BEFORE = "replayed_before"
    LAST_TRY = "last_try"
    UNCLAIMED = "unclaimed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """`count` letters (parked events for `parked` and `held`, keys for `loose`) are so.

    `remedy` says what can be done, if anything. `sample`: one of the letters, or the earlier one that stands in their
    way.
    """

    code: HazardCode
    count: int
    sentence: str
    remedy: str = ""
    sample: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """What else stands in the sequences of a plan's letters.

    `free`: parked events that will be handled too, `held`: those that will not. `behind`: how many of the letters stand
    behind `earlier` ones that are not among them, of which `need_force` are quarantined.
    """

    free: int = 0
    held: int = 0
    behind: int = 0
    earlier: int = 0
    earlier_first: Sequence[UUID] = ()
    need_force: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the hazards of a plan are told from. `states`: letters that were asked for and are not in it.

    `facts`: counts and samples of its letters by name; `most_replays`: after how many failures one is quarantined.
    `loose`: keys of the job whose sequences begin with a parked event.
    """

    job: str
    kind: RunKind
    order: str
    is_forced: bool
    letters: int
    most_replays: int
    sequences: Sequences
    facts: Mapping[str, Any]
    states: Mapping[LetterState, int] = field(default_factory=dict)
    runs: Sequence[int] = ()
    loose: int = 0


def command_of(kind: RunKind) -> str:
    """How a run of the kind is asked for."""
    return f"tidegate dlq {kind}"
