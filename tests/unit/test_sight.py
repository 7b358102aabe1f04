"""What a waiter is told, from what one look finds."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidegate.console.sight import Found, Question, Sight, judge
from tidegate_kernel.event import TopicPartition

SEARCH = Question("search", TopicPartition("orders", 3), 10, has_readers=True)
LEDGER = Question("ledger", TopicPartition("orders", 3), 10, has_readers=False)
LETTER = UUID(int=5)
ORDERS, ANEW = UUID(int=7), UUID(int=8)


def found(**what: object) -> Found:
    return Found(**{"has_started": True, "topic_id": ORDERS, **what})  # type: ignore[arg-type]  # fields by their names


def test_settled_is_not_visible_for_a_job_with_readers() -> None:
    """G11: the position is the consumer's; readers see what was refreshed."""
    answer = judge(SEARCH, found(position=11, visible=10))

    assert (answer.sight, answer.is_final) == (Sight.PENDING, False)
    assert "settled, and not visible yet: readers see up to 10" in answer.told
    assert judge(SEARCH, found(position=11, visible=11)).sight is Sight.VISIBLE


def test_settled_is_visible_for_a_job_without_readers() -> None:
    """Its effects committed with the position."""
    assert judge(LEDGER, found(position=11)).sight is Sight.VISIBLE
    assert judge(LEDGER, found(position=10)).sight is Sight.PENDING


@pytest.mark.parametrize("state", ["dead", "quarantined", "discarded"])
def test_dead_record_is_told_at_once_with_its_letter(state: str) -> None:
    """The visible offset passes it all the same: waiting longer would end in a promise that is not kept."""
    answer = judge(SEARCH, found(position=20, visible=20, letter=LETTER, letter_state=state, letter_reason="rejected"))

    assert (answer.sight, answer.is_final, answer.letter) == (Sight.DEAD, True, LETTER)
    assert str(LETTER) in answer.told


@pytest.mark.parametrize("state", ["resolved", "superseded", "already_processed"])
def test_letter_that_was_replayed_is_as_good_as_none(state: str) -> None:
    """What it says has been applied, here or by a newer event."""
    answer = judge(SEARCH, found(position=20, visible=20, letter=LETTER, letter_state=state, letter_reason="rejected"))

    assert answer.sight is Sight.VISIBLE


def test_letter_in_a_replay_is_waited_for() -> None:
    """It will be resolved or dead again in a moment."""
    answer = judge(SEARCH, found(position=20, visible=20, letter=LETTER, letter_state="replaying", letter_reason="x"))

    assert (answer.sight, answer.is_final) == (Sight.PENDING, False)


def test_parked_event_is_told_with_the_letter_before_it() -> None:
    """Its position is passed, and it has not been handled."""
    answer = judge(LEDGER, found(position=20, is_parked=True, behind=LETTER))

    assert (answer.sight, answer.is_final, answer.letter) == (Sight.PARKED, True, LETTER)


def test_skipped_record_is_no_visible_one() -> None:
    """Somebody had the job pass it unread."""
    assert judge(SEARCH, found(position=20, visible=20, is_skipped=True)).sight is Sight.SKIPPED


def test_topic_made_anew_is_not_answered_by_the_old_offsets() -> None:
    """A worker notices within ten seconds; until then its position would promise what it never read."""
    answer = judge(LEDGER, found(position=20), topic_id=ANEW)

    assert answer.sight is Sight.PENDING
    assert "made anew" in answer.told


def test_pending_says_how_far_it_is() -> None:
    """Never started, not begun, not reached, not refreshed and why: each has another next step."""
    told = [
        judge(SEARCH, each).told
        for each in (
            Found(has_started=False),
            found(topic_id=None),
            found(position=4, visible=4),
            found(position=11),
            found(position=11, visible=4, trouble="index 'orders': ConnectionTimeout"),
        )
    ]

    assert told == [
        "the job was never started",
        "the job has no position in this partition yet",
        "not handled yet: position 4, 6 offsets before it",
        "settled, and not visible yet: nothing was made visible yet",
        "settled, and not visible yet: readers see up to 4; index 'orders': ConnectionTimeout",
    ]
