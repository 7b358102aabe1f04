"""Whether readers of a job see a record, or why they will not: decided from one look, asking nobody anything."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from tidegate_kernel.event import TopicPartition

_DECIDED_WELL = frozenset({"resolved", "already_processed", "superseded"})


class Sight(StrEnum):
    """What a waiter is told. A closed set: programs act on it."""

    VISIBLE = "visible"
    PENDING = "pending"
    DEAD = "dead"
    PARKED = "parked"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Question:
    """A record of a job, by its place. `has_readers`: the job fills a store; of others what is settled is visible."""

    job: str
    partition: TopicPartition
    offset: int
    has_readers: bool

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What Postgres knows of it. `topic_id` is that of the topic whose offsets `position` and `visible` count."""

    has_started: bool
    topic_id: UUID | None = None
    position: int | None = None
    visible: int | None = None
    trouble: str | None = None
    letter: UUID | None = None
    letter_state: str | None = None
    letter_reason: str | None = None
    behind: UUID | None = None
    is_parked: bool = False
    is_skipped: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """`told` says it in a sentence. `letter` is its own, or the one that it is parked behind."""

    question: Question
    sight: Sight
    told: str
    position: int | None = None
    visible: int | None = None
    letter: UUID | None = None

    @property
    def is_final(self) -> bool:
        """Whether waiting longer would not change it."""
        return self.sight is not Sight.PENDING

    def plain(self, waited_seconds: float) -> dict[str, Any]:
        """The answer for programs."""
        topic, partition = self.question.partition
        return {
            "job": self.question.job,
            "topic": topic,
            "partition": partition,
            "offset": self.question.offset,
            "state": self.sight,
            "is_visible": self.sight is Sight.VISIBLE,
            "told": self.told,
            "position": self.position,
            "visible": self.visible,
            "letter": None if self.letter is None else str(self.letter),
            "waited_seconds": round(waited_seconds, 3),
        }


def judge(question: Question, found: Found, *, topic_id: UUID | None = None) -> Answer:
    """The answer as of one look. `topic_id`: the topic's as Kafka has it, where that was asked."""
    position, visible = found.position, found.visible if question.has_readers else found.position
    if topic_id is not None and found.topic_id is not None and topic_id != found.topic_id:
        told = "the topic was made anew, and the job's position still counts the offsets of the old one"
        return Answer(question, Sight.PENDING, told)
    sight, told, letter = _verdict(question, found, visible)
    return Answer(question, sight, told, position, visible, letter)


def _verdict(question: Question, found: Found, visible: int | None) -> tuple[Sight, str, UUID | None]:
    if found.is_parked:
        before = "other parked events of its key" if found.behind is None else f"dead letter {found.behind}"
        told = f"parked behind {before}: not handled until somebody has replayed or discarded what is before it"
        return Sight.PARKED, told, found.behind
    if found.letter is not None and found.letter_state not in _DECIDED_WELL:
        return _of_letter(found, found.letter)
    if found.is_skipped and found.position is not None and found.position > question.offset:
        return Sight.SKIPPED, "passed unread by somebody's decision; 'tidegate find' says by whose", None
    if visible is not None and visible > question.offset:
        return Sight.VISIBLE, _told_visible(question, visible), None
    return Sight.PENDING, _told_pending(question, found), None


def _of_letter(found: Found, letter: UUID) -> tuple[Sight, str, UUID]:
    told = f"dead letter {letter}: {found.letter_state}, {found.letter_reason}"
    if found.letter_state == "replaying":
        return Sight.PENDING, f"{told}; a replay is at it", letter
    return Sight.DEAD, told, letter


def _told_visible(question: Question, visible: int) -> str:
    return f"readers see it, up to {visible}" if question.has_readers else f"handled; position {visible}"


def _told_pending(question: Question, found: Found) -> str:
    if not found.has_started:
        return "the job was never started"
    if found.position is None:
        return "the job has no position in this partition yet"
    if found.position <= question.offset:
        return f"not handled yet: position {found.position}, {question.offset - found.position} offsets before it"
    upto = "nothing was made visible yet" if found.visible is None else f"readers see up to {found.visible}"
    return f"settled, and not visible yet: {upto}" + (f"; {found.trouble}" if found.trouble else "")
