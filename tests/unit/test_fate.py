"""What is said of an event or a record follows from what was found of it, and from nothing else."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import pytest

from tidegate.console.fate import (
    Claim,
    Content,
    Fate,
    Letter,
    Place,
    Reading,
    SkippedRange,
    Standing,
    Traces,
    fate_of_event,
    fate_of_key,
    fate_of_place,
)

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
CLAIM = Claim(UUID(int=1), date(2026, 2, 28), date(2026, 3, 1))
LETTER = Letter(
    UUID(int=9),
    "orders",
    0,
    7,
    "e7",
    "",
    "",
    "rejected",
    "Rejected",
    3,
    1,
    "dead",
    first_failed_at=AT,
    last_failed_at=AT,
)
RANGE = SkippedRange(5, 9, "skip", "anna", "poisoned by the import", AT)
PASSED, BEHIND = Standing(100), Standing(3)
EVENT = Content(event_id="e7", event_type="noted")


def place(**known: Any) -> Place:
    """The record at offset 7, which the job has passed unless told otherwise."""
    return Place(**{"offset": 7, "reading": Reading.READ, "standing": PASSED, "content": EVENT, **known})


def test_claimed_event_tells_when() -> None:
    """The first thing that whoever misses an effect asks."""
    verdict = fate_of_event(Traces(claims=[CLAIM]), lacking=None)

    assert (verdict.fate, verdict.told) == (Fate.CLAIMED, "claimed on 2026-03-01 (bucket 2026-02-28)")


def test_claim_of_a_projection_promises_no_more_than_is_known() -> None:
    """Applied is not visible: an event id alone does not tell how far readers see, and whoever reads this must know."""
    told = fate_of_event(Traces(claims=[CLAIM], is_projection=True), lacking=None).told

    assert "applied" in told
    assert "'tidegate wait-for' and its place tell whether readers see it" in told


@pytest.mark.parametrize(
    "visible, words",
    [
        (8, "applied; readers see it"),
        (7, "applied; readers do not see it yet, but up to 7"),
        (None, "applied; up to where readers see is not known yet"),
    ],
)
def test_place_of_a_projection_tells_whether_readers_see_it(visible: int | None, words: str) -> None:
    """G11: whoever misses a document asks for this first."""
    traces = Traces(claims=[CLAIM], is_projection=True, visible=visible, offset=7)

    assert fate_of_place(traces, place()).told.endswith(words)


def test_dead_letter_counts_more_than_the_claim_it_keeps() -> None:
    """A record that a handler refused keeps its claim: to call it claimed would say that it was applied."""
    verdict = fate_of_event(Traces(claims=[CLAIM], letters=[LETTER]), lacking=None)

    assert verdict.fate is Fate.DEAD_LETTER
    assert f"{LETTER.id}: dead, rejected after 3 attempts" in verdict.told


def test_letter_tells_its_state_and_whether_its_topic_has_it() -> None:
    """Resolved is not dead, and a letter in the outbox is not in the DLQ topic yet."""
    letters = [LETTER._replace(state="resolved", is_waiting=True), LETTER]

    told = fate_of_event(Traces(letters=letters), lacking=None).told

    assert "the newest of 2: resolved" in told
    assert "on its way to the DLQ topic" in told


@pytest.mark.parametrize(
    "traces, lacking, words",
    [
        (Traces(), "add --source", "add --source"),
        (Traces(has_started=False), None, "never started"),
        (Traces(), None, "neither claimed nor a dead letter"),
        (Traces(claims_since=date(2026, 1, 1)), None, "claimed before 2026-01-01, of which not all claims are kept"),
    ],
)
def test_what_is_not_known_is_called_unknown(traces: Traces, lacking: str | None, words: str) -> None:
    """No claim does not mean not applied to it: a skipped type has none either."""
    verdict = fate_of_event(traces, lacking=lacking)

    assert verdict.fate is Fate.UNKNOWN
    assert words in verdict.told


def test_key_knows_its_dead_letters_only() -> None:
    """Claims hold ids, not keys: silence about a key is no proof."""
    assert fate_of_key(Traces(letters=[LETTER])).fate is Fate.DEAD_LETTER
    assert fate_of_key(Traces()).fate is Fate.UNKNOWN


@pytest.mark.parametrize(
    "traces, known, fate, words",
    [
        (Traces(claims=[CLAIM]), {}, Fate.CLAIMED, "claimed on 2026-03-01"),
        (Traces(letters=[LETTER]), {}, Fate.DEAD_LETTER, str(LETTER.id)),
        (Traces(letters=[LETTER]), {"standing": BEHIND}, Fate.DEAD_LETTER, "dead"),
        (Traces(skipped=RANGE), {}, Fate.SKIPPED, "5 to 9, passed unread by anna on 2026-03-01 12:00Z (skip: poisoned"),
        (Traces(), {"standing": BEHIND}, Fate.NOT_REACHED, "position 3, 4 offsets before it"),
        (Traces(claims=[CLAIM]), {"standing": BEHIND}, Fate.NOT_REACHED, "will be dropped as a duplicate"),
        (Traces(), {"standing": Standing(7)}, Fate.NOT_REACHED, "0 offsets before it"),
        (Traces(), {"standing": BEHIND, "reading": Reading.NOT_WRITTEN}, Fate.NOT_REACHED, "nothing is written there"),
        (Traces(), {"standing": None, "log_start": 5}, Fate.NOT_REACHED, "begin at the log's start"),
        (Traces(), {"standing": Standing(100, is_other_topic=True)}, Fate.UNKNOWN, "re-created"),
        (Traces(), {"content": Content(event_type="other", is_unlisted=True)}, Fate.SKIPPED, "type 'other'"),
        (Traces(), {"content": Content(is_tombstone=True)}, Fate.SKIPPED, "without a value"),
        (Traces(is_projection=True), {"content": Content(is_tombstone=True)}, Fate.SETTLED, "tombstone"),
        (Traces(), {"content": Content(refusal="undecodable: no JSON")}, Fate.SETTLED, "today it would become one"),
        (Traces(), {"reading": Reading.GONE}, Fate.SETTLED, "retention has removed"),
        (Traces(), {"reading": Reading.NO_RECORD}, Fate.SETTLED, "no record stands there"),
        (Traces(), {"reading": Reading.UNREADABLE}, Fate.SETTLED, "cannot be read"),
        (Traces(), {"reading": Reading.MISSING}, Fate.SETTLED, "no such partition"),
        (Traces(), {}, Fate.SETTLED, "its id is not claimed"),
    ],
)
def test_record_at_its_coordinates(traces: Traces, known: dict[str, Any], fate: Fate, words: str) -> None:
    """Each row is something that an operator meets, and none may be taken for another: the next step differs."""
    verdict = fate_of_place(traces, place(**known))

    assert verdict.fate is fate
    assert words in verdict.told


@pytest.mark.parametrize(
    "known, count", [({"standing": BEHIND}, 4), ({"standing": None, "log_start": 5}, 2), ({}, None)]
)
def test_records_before_it_are_counted_where_it_is_not_reached(known: dict[str, Any], count: int | None) -> None:
    """How long will it take is the next question."""
    assert fate_of_place(Traces(), place(**known)).records_before == count
