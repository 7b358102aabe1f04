"""Which partitions begin together, and which wait for others: decided by the rows that there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

import pytest

from consumers.newcomers import Newcomers
from consumers.positions import Position, Positions
from tidegate.testing.memory_source import MemorySource
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.source import LogRange

P0, P1, P2 = (TopicPartition("t", n) for n in range(3))
NOW, BEFORE = UUID(int=7), UUID(int=6)


class Rows(Positions):
    """Remembers what was begun, and behind what."""

    def __init__(self, known: Mapping[TopicPartition, Position]) -> None:
        self.known = dict(known)
        self.begun: set[TopicPartition] = set()
        self.behind: Mapping[TopicPartition, int] = {}

    async def all(self) -> dict[TopicPartition, Position]:
        return dict(self.known)

    async def begin(self, starts: Mapping[TopicPartition, Position]) -> None:
        self.begun |= starts.keys()

    async def begin_newcomers(
        self, starts: Mapping[TopicPartition, Position], *, behind: Mapping[TopicPartition, int]
    ) -> None:
        self.begun |= starts.keys()
        self.behind = behind

    async def waiting_newcomers(self) -> Mapping[TopicPartition, str]:
        return {}


class Source(MemorySource):
    """Each log ends at ten times its number and one; `heard_of` is what the client knows of the topic."""

    def __init__(self, *heard_of: TopicPartition) -> None:
        self._heard_of = frozenset(heard_of)

    async def partitions_of(self, topic: str) -> frozenset[TopicPartition]:
        return self._heard_of

    async def ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        return {each: LogRange(0, 10 * (each.partition + 1)) for each in partitions}


def standing(topic_id: UUID, *partitions: TopicPartition) -> dict[TopicPartition, Position]:
    return dict.fromkeys(partitions, Position(1, 5, topic_id))


@pytest.mark.parametrize("heard_of", [(P0, P1, P2), (P0, P1)], ids=["the client knows", "it has not heard yet"])
async def test_what_was_added_waits_for_all_that_there_were(heard_of: tuple[TopicPartition, ...]) -> None:
    """G4: also where the group's leader has heard of a partition before our own client did."""
    rows = Rows(standing(NOW, P0, P1))
    await Newcomers(rows).waiting(Source(*heard_of), [P2], {"t": NOW})
    assert rows.begun == {P2}
    assert rows.behind == {P0: 10, P1: 20}


async def test_all_partitions_of_a_new_topic_begin_together() -> None:
    """Whoever comes second must not take the first one's for older."""
    rows = Rows({})
    await Newcomers(rows).waiting(Source(P0, P1, P2), [P1], {"t": NOW})
    assert rows.begun == {P0, P1, P2}
    assert rows.behind == {}


async def test_another_incarnation_holds_nobody_up() -> None:
    """Its offsets mean other records: to wait for them would be to wait for ever."""
    rows = Rows(standing(BEFORE, P0))
    await Newcomers(rows).waiting(Source(P0, P1), [P1], {"t": NOW})
    assert rows.begun == {P1}
    assert rows.behind == {}
