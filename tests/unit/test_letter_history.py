"""What a DLQ topic tells of a letter, in whatever order its records are read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import permutations
from uuid import UUID

import pytest

from dlq.importing.history import Ending, History, Spot
from dlq.importing.told import Misfit, Told, ToldLetter, ToldOutcome
from dlq.states import LetterState

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LETTER = UUID(int=1)


def failed(minute: int, letter: UUID = LETTER) -> ToldLetter:
    at = NOW + timedelta(minutes=minute)
    return ToldLetter(
        id=letter, topic="t", topic_id=UUID(int=7), partition=0, offset=0, timestamp=0, key=None, value=b"", headers=(),
        event_id=None, event_type=None, claim=None, tenant="", brand="", correlation_id=None, traceparent=None,
        reason="rejected", error_class="", error_message="", stack="", fingerprint="", handler="", service_version="",
        attempts=1, occurrences=1, replay_count=0, backfill=False, first_failed_at=at, last_failed_at=at,
        has_payload=True, omitted=None,
    )  # fmt: skip


def ended(minute: int, state: LetterState = LetterState.RESOLVED) -> ToldOutcome:
    return ToldOutcome(LETTER, state, NOW + timedelta(minutes=minute))


@pytest.mark.parametrize(
    "told, ending",
    [
        ([failed(0)], None),
        ([failed(0), ended(1)], Ending(NOW + timedelta(minutes=1), LetterState.RESOLVED)),
        ([failed(0), ended(1), failed(2)], None),
        ([failed(0), ended(1), failed(2), ended(3, LetterState.DISCARDED)], Ending(
            NOW + timedelta(minutes=3), LetterState.DISCARDED)),
    ],
)  # fmt: skip
def test_the_latest_time_counts_in_whatever_order_it_is_read(told: list[Told], ending: Ending | None) -> None:
    """Records of one letter may lie in several partitions, and those are read one after the other."""
    for order in permutations(list(enumerate(told))):
        history = History()
        for place, one in order:
            history.note(Spot(place, 0), one)
        newest = max(place for place, one in enumerate(told) if isinstance(one, ToldLetter))
        assert history.ending(LETTER) == ending
        assert [place for place in range(len(told)) if history.is_newest(LETTER, Spot(place, 0))] == [newest]
        assert history.by_state() == {ending.state if ending else LetterState.DEAD: 1}


def test_a_repeat_of_the_relay_is_no_second_letter() -> None:
    """It publishes at least once; one of the two copies counts."""
    history = History()
    for offset in range(2):
        history.note(Spot(0, offset), failed(0))

    assert [history.is_newest(LETTER, Spot(0, offset)) for offset in range(2)] == [False, True]
    assert history.letters == {LETTER}


def test_an_outcome_without_its_letter_and_a_misfit_are_no_letters() -> None:
    """Retention takes the letter first; a misfit has nobody's id."""
    history = History()
    history.note(Spot(0, 0), ended(0))
    history.note(Spot(0, 1), Misfit("no"))

    assert history.letters == set()
    assert history.by_state() == {}
    assert history.misfits == {Spot(0, 1): "no"}
