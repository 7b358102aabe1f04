"""A position that somebody moves by hand under a running worker: noticed within a look, taken up without a restart."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from consumers.intents import Intent, IntentKind
from consumers.positions import Position
from tests.unit.loop_rig import P0, Rig, running
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import TopicPartition

PAUSE = Intent(1, IntentKind.PAUSE, None, None, None, "offsets", "anna", datetime(2026, 3, 1, tzinfo=UTC), None, None)


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.fill(P0, 5)
    return made


def move(rig: Rig, next_offset: int) -> None:
    """As `tidegate offsets` does: elsewhere, under the next epoch."""
    row = rig.rows.rows[P0]
    rig.rows.rows[P0] = replace(row, next_offset=next_offset, epoch=row.epoch + 1)


def handled(rig: Rig) -> list[int]:
    return [offset for partition, offsets in rig.work.calls if partition == 0 for offset in offsets]


async def test_a_paused_worker_resumes_where_its_position_was_moved_to(rig: Rig) -> None:
    """Not one record is read from where it stood before, although the pause ends at the very moment of the move: a
    projection would write it before its settle finds the newer epoch."""
    rig.wishes.stand = [PAUSE]
    async with running(rig.loop()):
        await rig.until(lambda: P0 in rig.rows.rows and rig.rows.rows[P0].epoch == 1)
        move(rig, 3)
        rig.wishes.stand = []
        await rig.stands_at(P0, 5)

    assert handled(rig) == [3, 4]


async def test_a_position_moved_back_is_read_again_without_a_new_record(rig: Rig) -> None:
    """A worker that is caught up settles nothing that could tell it: it has to look."""
    async with running(rig.loop()):
        await rig.stands_at(P0, 5)
        move(rig, 2)
        await rig.until(lambda: handled(rig)[5:] == [2, 3, 4])
        await rig.stands_at(P0, 5)


async def test_a_blocked_partition_is_looked_at_again_once_its_position_was_moved(rig: Rig) -> None:
    """What resolved it was typed elsewhere; nobody should have to restart workers for it."""
    rig.rows.rows[P0] = Position(0, 99, rig.broker.topic_id("t"))
    loop = rig.loop()
    async with running(loop):
        await rig.until(lambda: (held := loop.holdings.get(P0)) is not None and held.blocked is not None)
        move(rig, 1)
        await rig.stands_at(P0, 5)

    assert handled(rig) == [1, 2, 3, 4]


async def test_nothing_is_resumed_before_its_position_was_looked_at(rig: Rig) -> None:
    """The pause is known to have ended and the position is not known: the partition rests until both are."""
    rig.wishes.stand = [PAUSE]
    looks = []

    async def no_answer() -> dict[TopicPartition, Position]:
        looks.append(1)
        raise Transient("away")

    loop = rig.loop()
    async with running(loop):
        await rig.until(lambda: loop.holdings.get(P0) is not None)
        answer, rig.rows.all = rig.rows.all, no_answer  # type: ignore[method-assign]  # the database is away
        rig.wishes.stand = []
        move(rig, 3)
        await rig.until(lambda: len(looks) >= 2)
        assert handled(rig) == []
        rig.rows.all = answer  # type: ignore[method-assign]  # and back
        await rig.stands_at(P0, 5)

    assert handled(rig) == [3, 4]


async def test_what_the_former_owner_settled_meanwhile_is_no_position_beyond_the_end(rig: Rig) -> None:
    """The log is looked at first, then the row is waited for: its former owner may settle records that are newer than
    that look, and a partition blocked for it would wait for a person for nothing."""
    rig.rows.rows[P0] = Position(0, 5, rig.broker.topic_id("t"))
    take_over = rig.rows.take_over

    async def after_the_former_owner(partition: TopicPartition) -> Position | None:
        if partition == P0 and rig.rows.rows[P0].next_offset == 5:
            rig.fill(P0, 3)
            rig.rows.rows[P0] = replace(rig.rows.rows[P0], next_offset=8)
        return await take_over(partition)

    rig.rows.take_over = after_the_former_owner  # type: ignore[method-assign]  # it is in the middle of a batch
    loop = rig.loop()
    async with running(loop):
        await rig.until(lambda: loop.holdings.get(P0) is not None)
        rig.fill(P0, 1)
        await rig.until(lambda: handled(rig) == [8] or any(held.blocked for held in loop.holdings.all()))

    assert handled(rig) == [8]
