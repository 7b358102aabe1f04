"""What moving a position by hand comes to, and what is refused: never a jump over anything that is not kept."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from consumers.obstacle import NO_TOPIC_ID
from tidegate.console.moves import AcceptGap, Adopt, Ask, Cause, SetTo, SkipTo, Stand, plan_move
from tidegate.jobs.checkpoints import Place
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.source import LogRange

P0 = TopicPartition("orders", 0)
NOW, FORMER = uuid4(), uuid4()
LOG = LogRange(500, 1000)


def stand(offset: int, topic_id: UUID = NOW, log_topic_id: UUID = NOW, log: LogRange = LOG) -> Stand:
    return Stand(P0, offset, topic_id, log, log_topic_id)


def test_skipping_keeps_every_offset_that_nobody_reads() -> None:
    """G1 rests on it: the range begins where the job stood and ends before where it goes on."""
    move = plan_move(stand(600), SkipTo(650))

    assert (move.before, move.after, move.first_skipped, move.skipped, move.cause) == (600, 650, 600, 50, Cause.SKIP)
    assert move.topic_id == NOW


def test_setting_forward_keeps_the_range_as_skipping_does() -> None:
    """A way round the range would be the silent jump that must not exist."""
    move = plan_move(stand(600), SetTo(1000))

    assert (move.first_skipped, move.skipped, move.cause) == (600, 400, Cause.SET)


def test_setting_back_warns_of_what_claims_have_forgotten() -> None:
    """Claims drop what they know; whatever is older than they are kept acts twice."""
    move = plan_move(stand(600), SetTo(500))

    assert (move.after, move.first_skipped, move.skipped) == (500, None, 0)
    assert "offsets 500 to 599 are read again" in move.warning


def test_gap_is_accepted_from_the_position_to_the_log_s_start() -> None:
    """Case 63: what retention took is named to the last offset and kept, and the job goes on at what is there."""
    move = plan_move(stand(100), AcceptGap())

    assert (move.after, move.first_skipped, move.skipped, move.cause) == (500, 100, 400, Cause.GAP)


@pytest.mark.parametrize(
    "start, after, first_skipped",
    [(Place.BEGINNING, 500, None), (Place.END, 1000, 500), (700, 700, 500)],
)
@pytest.mark.parametrize("was", [stand(600, FORMER), stand(1500)])
def test_adopting_reads_the_log_from_its_start_unless_told_otherwise(
    was: Stand, start: Place | int, after: int, first_skipped: int | None
) -> None:
    """Cases 64 and 65: offsets of the former topic say nothing about this one, so all of it is new; what is passed of
    it is kept under its own id."""
    move = plan_move(was, Adopt(start))

    assert (move.after, move.first_skipped, move.cause) == (after, first_skipped, Cause.ADOPT)
    assert (move.former_id, move.topic_id) == (was.topic_id, NOW)
    assert move.warning


@pytest.mark.parametrize("known, becomes", [(NO_TOPIC_ID, UUID(int=1)), (UUID(int=4), UUID(int=5)), (NOW, UUID(int=1))])
def test_adopting_counts_up_where_the_broker_has_no_ids(known: UUID, becomes: UUID) -> None:
    """Case 66: equal offsets of two topics of one name must stay two places, in claims and in dead letters."""
    assert plan_move(stand(1500, known, NO_TOPIC_ID), Adopt()).topic_id == becomes


@pytest.mark.parametrize(
    "was, ask, words",
    [
        (stand(600), SetTo(499), "outside the log, which holds 500 to 1000"),
        (stand(600), SetTo(1001), "outside the log"),
        (stand(600), SetTo(600), "stands there already"),
        (stand(600), SkipTo(1001), "outside the log"),
        (stand(600), SkipTo(600), "'tidegate offsets set' goes back"),
        (stand(100), SkipTo(400), "outside the log"),
        (stand(600), AcceptGap(), "no gap before it"),
        (stand(600), Adopt(), "nothing to adopt"),
        (stand(100), Adopt(), "nothing to adopt"),
        (stand(600, FORMER), Adopt(499), "outside the log"),
        (stand(600, FORMER), SetTo(700), "'tidegate offsets adopt'"),
        (stand(600, FORMER), SkipTo(700), "'tidegate offsets adopt'"),
        (stand(100, FORMER), AcceptGap(), "'tidegate offsets adopt'"),
    ],
)
def test_wrong_move_is_refused_with_the_right_one(was: Stand, ask: Ask, words: str) -> None:
    """Outside the log there is nothing to read, and each obstacle has its own way out."""
    with pytest.raises(Misconfigured, match=r"orders:0 at \d+") as refused:
        plan_move(was, ask)

    assert words in str(refused.value)
