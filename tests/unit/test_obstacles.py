"""What keeps a partition from being read on, and the command that whoever reads of it should type."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID, uuid4

import pytest

from consumers.obstacle import NO_TOPIC_ID, Obstacle, ObstacleKind, find_obstacle, is_same_topic
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.source import LogRange

P0 = TopicPartition("orders", 0)
NOW = uuid4()


class Stand(NamedTuple):
    next_offset: int
    topic_id: UUID = NOW


@pytest.mark.parametrize("offset", [500, 700, 1000])
def test_position_in_the_log_is_no_obstacle(offset: int) -> None:
    """From the first kept record to the next one to be written, both ends included: nothing is missing."""
    assert find_obstacle(P0, Stand(offset), LogRange(500, 1000), NOW) is None


@pytest.mark.parametrize(
    "stand, kind, words, command",
    [
        (Stand(100), ObstacleKind.GAP, "offsets 100 to 499", "tidegate offsets accept-gap ledger orders:0"),
        (Stand(1001), ObstacleKind.BEYOND_END, "beyond the log's end 1000", "tidegate offsets adopt ledger orders:0"),
        (Stand(700, uuid4()), ObstacleKind.RECREATED, "another id", "tidegate offsets adopt ledger orders:0"),
        (Stand(100, uuid4()), ObstacleKind.RECREATED, "another id", "tidegate offsets adopt ledger orders:0"),
    ],
)
def test_each_obstacle_is_told_apart_and_names_its_command(
    stand: Stand, kind: ObstacleKind, words: str, command: str
) -> None:
    """Cases 63 to 65: records that retention took, and offsets of another topic, are resolved by different commands;
    of a re-created topic the offsets may well look valid."""
    found = find_obstacle(P0, stand, LogRange(500, 1000), NOW)

    assert found is not None
    assert found.kind is kind
    assert words in found.what
    assert f"'tidegate pause ledger --reason …', then '{command} --reason …'" in found.told("ledger")


def test_a_backfill_is_not_sent_to_the_live_positions() -> None:
    """Its own command has an answer to a gap; moving the live consumer would not help it."""
    found = find_obstacle(P0, Stand(100), LogRange(500, 1000), NOW)

    assert found is not None
    assert "tidegate" not in found.told(None)


def test_what_no_position_resolves_names_no_command() -> None:
    """A topic that does not exist is for whoever deleted it."""
    missing = Obstacle(ObstacleKind.MISSING, P0, "the topic does not exist")

    assert missing.told("ledger") == "the topic does not exist"


@pytest.mark.parametrize(
    "known, now, is_same",
    [
        (NOW, NOW, True),
        (NOW, uuid4(), False),
        (NO_TOPIC_ID, NO_TOPIC_ID, True),
        (UUID(int=3), NO_TOPIC_ID, True),
        (NOW, NO_TOPIC_ID, False),
        (UUID(int=3), NOW, False),
    ],
)
def test_incarnations_stand_for_ids_where_the_broker_has_none(known: UUID, now: UUID, is_same: bool) -> None:
    """An old broker cannot say that the topic is another one; an operator did, and must not be asked again."""
    assert is_same_topic(known, now) is is_same
