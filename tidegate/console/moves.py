"""What moving a position by hand comes to: decided from where it stands and what the log holds, without doing it.

Never a silent jump: whatever a move passes unread is part of it, as a range that is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias
from uuid import UUID

from consumers.obstacle import NO_TOPIC_ID, Obstacle, find_obstacle, is_same_topic
from tidegate.jobs.checkpoints import Place
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.permissions import Action
from tidegate_kernel.source import LogRange


class Cause(StrEnum):
    """Why offsets were passed unread."""

    GAP = "gap"
    SKIP = "skip"
    SET = "set"
    ADOPT = "adopt"


@dataclass(frozen=True, slots=True)
class SetTo:
    """The position stands at `offset`, before or behind where it is now."""

    offset: int


@dataclass(frozen=True, slots=True)
class SkipTo:
    """The records before `offset` are given up."""

    offset: int


@dataclass(frozen=True, slots=True)
class AcceptGap:
    """What retention removed is given up."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """The log that is there now is the job's, read from `start`: an end of it, or an offset."""

    start: Place | int = Place.BEGINNING


Ask: TypeAlias = SetTo | SkipTo | AcceptGap | Adopt

ACTIONS = {
    SetTo: Action.OFFSETS_SET,
    SkipTo: Action.OFFSETS_SKIP,
    AcceptGap: Action.OFFSETS_ACCEPT_GAP,
    Adopt: Action.OFFSETS_ADOPT,
}


class Stand(NamedTuple):
    """A position, and the log and topic id that Kafka has now."""

    partition: TopicPartition
    next_offset: int
    topic_id: UUID
    log: LogRange
    log_topic_id: UUID

    @property
    def obstacle(self) -> Obstacle | None:
        return find_obstacle(self.partition, self, self.log, self.log_topic_id)

    def __str__(self) -> str:
        return f"{self.partition} at {self.next_offset}"


class Move(NamedTuple):
    """A position's way from `before` to `after`. Offsets from `first_skipped` up to `after` are never read, if set.

    `former_id` and `topic_id`: of the topics whose offsets the position counts before and afterwards; the skipped range
    is one of the latter.
    """

    partition: TopicPartition
    cause: Cause
    before: int
    after: int
    former_id: UUID
    topic_id: UUID
    first_skipped: int | None = None
    warning: str = ""

    @property
    def skipped(self) -> int:
        """How many offsets are passed unread; some of them may hold no record."""
        return 0 if self.first_skipped is None else self.after - self.first_skipped


def plan_move(stand: Stand, ask: Ask) -> Move:
    """Returns what `ask` would do. Raises Misconfigured, with the command that would, where it is the wrong one."""
    match ask:
        case SetTo(offset):
            return _set(stand, offset)
        case SkipTo(offset):
            return _skip(stand, offset)
        case AcceptGap():
            return _accept_gap(stand)
        case Adopt(start):
            return _adopt(stand, start)


def _set(stand: Stand, offset: int) -> Move:
    _require_same_topic(stand)
    _require_in_log(stand, offset)
    if offset == stand.next_offset:
        raise Misconfigured(f"{stand} stands there already")
    if offset > stand.next_offset:
        return _forward(stand, Cause.SET, offset)
    warning = (
        f"offsets {offset} to {stand.next_offset - 1} are read again: claims drop what they still know of, and "
        "whatever was claimed longer ago than claims are kept is handled a second time"
    )
    return Move(stand.partition, Cause.SET, stand.next_offset, offset, stand.topic_id, stand.topic_id, warning=warning)


def _skip(stand: Stand, offset: int) -> Move:
    _require_same_topic(stand)
    if offset <= stand.next_offset:
        raise Misconfigured(f"{stand}: --to {offset} skips nothing; 'tidegate offsets set' goes back")
    _require_in_log(stand, offset)
    return _forward(stand, Cause.SKIP, offset)


def _accept_gap(stand: Stand) -> Move:
    _require_same_topic(stand)
    if stand.next_offset >= stand.log.start:
        raise Misconfigured(f"{stand} has no gap before it: its log begins at {stand.log.start}")
    return _forward(stand, Cause.GAP, stand.log.start)


def _adopt(stand: Stand, start: Place | int) -> Move:
    is_same = is_same_topic(stand.topic_id, stand.log_topic_id)
    if is_same and stand.next_offset <= stand.log.end:
        raise Misconfigured(
            f"{stand} belongs to the topic that is there, and lies in or before its log; nothing to adopt"
        )
    match start:
        case Place.BEGINNING:
            offset = stand.log.start
        case Place.END:
            offset = stand.log.end
        case _:
            offset = start
    _require_in_log(stand, offset)
    first = stand.log.start if offset > stand.log.start else None
    return Move(
        stand.partition,
        Cause.ADOPT,
        stand.next_offset,
        offset,
        stand.topic_id,
        _adopted_id(stand),
        first,
        _lost_end(stand) if is_same and stand.log_topic_id != NO_TOPIC_ID else _lost_topic(stand),
    )


def _lost_topic(stand: Stand) -> str:
    return (
        f"what the former topic held from offset {stand.next_offset} on was never read; nobody can tell how much it was"
    )


def _lost_end(stand: Stand) -> str:
    return (
        f"the topic is the same and its log ends at {stand.log.end}: it lost what stood before offset "
        f"{stand.next_offset}; what is read again is dropped as far as claims know of it"
    )


def _adopted_id(stand: Stand) -> UUID:
    """Kafka's id; from a broker without ids the next number, so that equal offsets of two topics stay two places."""
    if stand.log_topic_id != NO_TOPIC_ID:
        return stand.log_topic_id
    is_numbered = is_same_topic(stand.topic_id, NO_TOPIC_ID)
    return UUID(int=stand.topic_id.int + 1 if is_numbered else 1)


def _forward(stand: Stand, cause: Cause, offset: int) -> Move:
    return Move(stand.partition, cause, stand.next_offset, offset, stand.topic_id, stand.topic_id, stand.next_offset)


def _require_same_topic(stand: Stand) -> None:
    if not is_same_topic(stand.topic_id, stand.log_topic_id):
        raise Misconfigured(
            f"{stand} counts the offsets of another topic of this name, which was deleted; take the one that is there "
            "with 'tidegate offsets adopt'"
        )


def _require_in_log(stand: Stand, offset: int) -> None:
    if not stand.log.start <= offset <= stand.log.end:
        raise Misconfigured(
            f"{stand}: offset {offset} lies outside the log, which holds {stand.log.start} to {stand.log.end} "
            "(the next to be written)"
        )
