"""What a provider says of itself, and how a run's question is kept: pure functions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.jobs.clockwork.provider.cursor import SyncCursor
from tidegate.jobs.clockwork.provider.pulling import LONGEST_ETAG, Pulled
from tidegate.jobs.clockwork.provider.question import LONGEST_PAGE, Question, Way
from tidegate.jobs.clockwork.provider.retry_after import LEAST, LONGEST, UNSAID, http_date, pause_seconds
from tidegate_kernel.errors import Rejected

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    "header, seconds",
    [
        ("120", 120.0),
        (" 7 ", 7.0),
        ("0", LEAST),
        ("Fri, 01 May 2026 12:02:00 GMT", 120.0),
        ("Friday, 01-May-26 12:02:00 GMT", 120.0),  # two of the forms of RFC 9110 that are old
        ("Fri May  1 12:02:00 2026", 120.0),
        ("Fri, 01 May 2026 14:02:00 +0200", 120.0),
        ("Fri, 01 May 2026 11:00:00 GMT", LEAST),  # has passed
        ("Fri, 01 May 2099 12:00:00 GMT", LONGEST),
        ("31536000", LONGEST),
        ("9" * 400, LONGEST),
        (None, UNSAID),
        ("", UNSAID),
        ("-5", UNSAID),
        ("1.5", UNSAID),
        ("1e9", UNSAID),
        ("inf", UNSAID),
        ("nan", UNSAID),
        ("१२", UNSAID),
        ("soon", UNSAID),
        ("Fri, 99 May 2026 12:02:00 GMT", UNSAID),
        ("Fri, 01 May 0000 12:02:00 GMT", LEAST),  # two digits of a year, or none, are of this century
        ("Mon, 01 Jan 9999 23:59:59 -1400", LONGEST),
        ("Fri, 31 Dec 9999 23:59:59 -1400", UNSAID),
        ("120, 60", UNSAID),
    ],
)
def test_retry_after_is_read_in_both_forms_and_bounded(header: str | None, seconds: float) -> None:
    """A provider's mistake must neither stop the service for a year nor let it ask at once."""
    assert pause_seconds(header, now=NOW) == seconds


@given(
    st.text() | st.from_regex(r"[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [A-Z+-]\w{2,4}", fullmatch=True)
)
def test_no_header_raises_or_leaves_the_bounds(header: str) -> None:
    """Whatever stands there was written by somebody else."""
    assert LEAST <= pause_seconds(header, now=NOW) <= LONGEST
    at = http_date(header)
    assert at is None or at.tzinfo is UTC


def question(**fields: Any) -> Question:
    told: dict[str, Any] = {"based_on": 3, "asked_at": NOW, "began_at": NOW, "since": NOW - HOUR}
    return Question(**told | fields)


@given(since=st.none() | st.datetimes(timezones=st.just(UTC)), page=st.none() | st.text(min_size=1, max_size=40))
def test_question_is_read_as_it_was_kept(since: datetime | None, page: str | None) -> None:
    """A retry goes on with the very question of the run before it, at the page where that stopped."""
    asked = question(since=since, page=page)

    assert Question.read(asked.spelled()) == asked


@pytest.mark.parametrize("text", [None, "", "o042", "{}", '{"based_on": "x"}', "[1]"])
def test_what_is_no_question_is_asked_anew(text: str | None) -> None:
    """A checkpoint of another kind of job under this code."""
    assert Question.read(text) is None


def test_question_begins_at_the_earlier_of_both_clocks() -> None:
    """The provider stamps by its own clock what changes while we ask: one behind ours would hide it from the next run,
    and one before ours is not believed."""
    assert question().not_later_than(NOW - HOUR).began_at == NOW - HOUR
    assert question().not_later_than(NOW + HOUR).began_at == NOW
    assert question().not_later_than(None).began_at == NOW


def test_page_that_leads_nowhere_is_refused() -> None:
    """The run would go round for ever, or keep a name that nothing bounds."""
    with pytest.raises(Rejected, match="as the next one"):
        question(page="p2").at("p2")
    with pytest.raises(Rejected, match="longer than"):
        question().at("p" * (LONGEST_PAGE + 1))


@pytest.mark.parametrize(
    "begun, names", [(None, ["a", "b", "a"]), ("a", ["b", "c", "a"]), (None, ["a", "b", "c", "b"])]
)
def test_pages_that_go_round_are_refused(begun: str | None, names: list[str]) -> None:
    """Also where the run has begun in the midst of them, and however many there are."""
    asked, way = question(page=begun), Way(question(page=begun))
    *new, last = names
    for name in new:
        following = way.behind(asked, name)
        assert following is not None
        assert following.page == name
        asked = following

    with pytest.raises(Rejected, match="already answered with"):
        way.behind(asked, last)
    assert way.behind(asked, None) is None


@pytest.mark.parametrize("etag", ['"a"', 'W/"a!z"', '""', '"' + "e" * (LONGEST_ETAG - 2) + '"'])
def test_etag_is_kept_as_it_was_told(etag: str) -> None:
    """Sent back in any other form it would stand for nothing."""
    assert Pulled(etag=etag).usable_etag == etag


@pytest.mark.parametrize(
    "etag", [None, "", "*", "abc", '"caf\udce9"', '"é"', '"a\0b"', '"a b"', '"a"\n', '"' + "e" * LONGEST_ETAG + '"']
)
def test_etag_that_cannot_be_kept_and_sent_back_is_none(etag: str | None) -> None:
    """It only spares a page. One that no database takes would end the run, and `*` would hide all that is new."""
    assert Pulled(etag=etag).usable_etag is None


def cursor(**fields: Any) -> SyncCursor:
    told: dict[str, Any] = {"run": 3, "now": NOW, "has_failed": False}
    nothing = dict.fromkeys(("synced_until", "asked_since", "etag", "lost_since"))
    return SyncCursor(**told | nothing | fields)


def test_next_question_reaches_back_from_the_last_success() -> None:
    """Case 119: from its start, and a reach_back before that; everything where there was none yet."""
    assert cursor().question(HOUR).since is None
    assert cursor(synced_until=NOW - HOUR).question(HOUR).since == NOW - 2 * HOUR
    assert cursor(synced_until=datetime(1970, 1, 1, tzinfo=UTC)).question(timedelta(days=10**6)).since is not None


def test_question_whose_answer_held_nothing_new_is_asked_again_with_its_etag() -> None:
    """An etag belongs to one question: with another it could say that nothing has changed when all has."""
    kept = cursor(synced_until=NOW, asked_since=NOW - HOUR, etag='"a"').question(HOUR)

    assert (kept.since, kept.etag) == (NOW - HOUR, '"a"')
    assert kept.at("p2").since == kept.since


def test_what_failed_is_asked_for_without_an_etag() -> None:
    """304 would keep it from being met again."""
    known: dict[str, Any] = {
        "synced_until": NOW,
        "asked_since": NOW - HOUR,
        "etag": '"a"',
        "lost_since": NOW - 5 * HOUR,
    }

    asked = cursor(**known, has_failed=True).question(HOUR)

    assert (asked.since, asked.etag) == (NOW - 5 * HOUR, None)
    assert cursor(**known, has_failed=True).is_met_by(asked)
    assert not cursor(**known).is_met_by(question())
