"""Why a partition must not be read on from its position, and the command that resolves it. One rule for all who ask."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from tidegate_kernel.event import TopicPartition
from tidegate_kernel.source import LogRange

NO_TOPIC_ID = UUID(int=0)
"""What a broker says that is too old to have topic ids."""

# Numbers below this are no ids that Kafka makes (those are random), but incarnations counted by `offsets adopt`.
_INCARNATIONS = 2**32


class ObstacleKind(StrEnum):
    """What is in the way."""

    GAP = "gap"
    """Retention removed records before they were handled."""
    BEYOND_END = "beyond the end"
    """The log ends before the position: it is another log, or lost its end."""
    RECREATED = "re-created"
    """The topic has another id: its offsets mean other records."""
    UNREADABLE = "unreadable"
    """What stands at the position cannot be read by any client."""
    MISSING = "missing"
    """There is no such topic or partition."""


class Standing(Protocol):
    """A position, as far as it matters here."""

    @property
    def next_offset(self) -> int: ...
    @property
    def topic_id(self) -> UUID: ...


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What is in the way of a partition."""

    kind: ObstacleKind
    partition: TopicPartition
    what: str

    def told(self, job: str | None) -> str:
        """What it is and, for the live consumer of `job`, the commands that resolve it."""
        if job is None or (command := self.resolving_command(job)) is None:
            return self.what
        return f"{self.what}; 'tidegate pause {job} --reason …', then '{command} --reason …' resolves it"

    def resolving_command(self, job: str) -> str | None:
        """The command to type once the job is paused; None where no position resolves it."""
        where = f"{job} {self.partition}"
        match self.kind:
            case ObstacleKind.GAP:
                return f"tidegate offsets accept-gap {where}"
            case ObstacleKind.BEYOND_END | ObstacleKind.RECREATED:
                return f"tidegate offsets adopt {where}"
            case ObstacleKind.UNREADABLE:
                return f"tidegate offsets skip {where} --to N"
            case ObstacleKind.MISSING:
                return None


def is_same_topic(known: UUID, now: UUID) -> bool:
    """Whether a position under the topic id `known` still means the topic that has the id `now`.

    Of a broker without ids nobody can tell; `known` counts the times that an operator said it is another one.
    """
    return now == known or (now == NO_TOPIC_ID and known.int < _INCARNATIONS)


def find_obstacle(partition: TopicPartition, position: Standing, log: LogRange, topic_id: UUID) -> Obstacle | None:
    """Why `partition`, whose log and topic id of now are given, must not be read from `position`. Never a jump."""
    if not is_same_topic(position.topic_id, topic_id):
        return recreated(partition, position)
    if position.next_offset < log.start:
        what = f"gap: retention removed offsets {position.next_offset} to {log.start - 1} before they were handled"
        return Obstacle(ObstacleKind.GAP, partition, what)
    if position.next_offset > log.end:
        what = f"re-created: position {position.next_offset} lies beyond the log's end {log.end}"
        return Obstacle(ObstacleKind.BEYOND_END, partition, what)
    return None


def recreated(partition: TopicPartition, position: Standing) -> Obstacle:
    """The topic was deleted and made anew under its name."""
    what = (
        f"re-created: topic {partition.topic!r} has another id than when position {position.next_offset} was reached; "
        "its offsets mean other records now"
    )
    return Obstacle(ObstacleKind.RECREATED, partition, what)
