"""How far readers are behind, and how long each event took to be seen, from what a worker has settled."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from projections.freshness import Lag
from projections.visibility import Point, Shown
from projections.visibility_sla import ErrorBudget
from projections.visibility_unseen import Unseen
from tidegate_kernel.event import Fence, JobId, RunId, TopicPartition

ORDERS, ANEW = UUID(int=7), UUID(int=8)
PLACE = TopicPartition("orders", 0)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
CAUGHT_UP = Lag(0, 0.0)


def at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


def ms(second: float) -> int:
    return int(at(second).timestamp() * 1000)


def settle(unseen: Unseen, first: int, *written: float, now: float, epoch: int = 1, topic_id: UUID = ORDERS) -> None:
    """A batch of records written at these seconds, from offset `first` on."""
    fence = Fence(JobId(1), RunId(0), *PLACE, epoch, first)
    unseen.add(fence, Point(topic_id, first + len(written)), array("q", map(ms, written)), at(now))


def shown(
    offset: int, *, ago: float = 0.0, topic_id: UUID = ORDERS, trouble_seconds: float = 0.0
) -> dict[TopicPartition, Shown]:
    trouble = "the store is away" if trouble_seconds else None
    return {PLACE: Shown(Point(topic_id, offset), ago, None, trouble, trouble_seconds)}


def behind(unseen: Unseen, position: int, *, now: float, lag: Lag | None = CAUGHT_UP) -> float | None:
    return unseen.seconds_behind(PLACE, Point(ORDERS, position), lag, at(now))


def test_event_is_measured_from_its_time_to_when_it_was_seen() -> None:
    """Not to when this worker heard of it: that may be a second later."""
    unseen = Unseen()
    settle(unseen, 0, 0.0, 1.0, now=1.5)

    seen = unseen.pass_to(shown(2, ago=0.5), at(3))

    assert seen.seconds == pytest.approx([1.5, 2.5])


def test_only_what_readers_see_is_measured_and_only_once() -> None:
    """A batch that is behind the visible offset by one record is not seen as a whole."""
    unseen = Unseen()
    settle(unseen, 0, 0.0, now=0)
    settle(unseen, 1, 1.0, now=1)

    counts = [len(unseen.pass_to(shown(offset), at(2)).seconds) for offset in (0, 1, 1, 2, 2)]

    assert counts == [0, 1, 0, 1, 0]


def test_event_dated_in_the_future_took_no_time() -> None:
    """Case 107: a histogram never receives a negative; the skew was counted when it was settled."""
    unseen = Unseen()
    settle(unseen, 0, 30.0, now=0)

    assert unseen.pass_to(shown(1), at(2)).seconds == [0.0]


def test_records_without_a_time_are_not_measured() -> None:
    """A timestamp of 0 or -1 says nothing; as an age it would be half a century."""
    unseen = Unseen()
    unseen.add(Fence(JobId(1), RunId(0), *PLACE, 1, 0), Point(ORDERS, 2), array("q", [-1, 0]), at(0))

    assert unseen.pass_to(shown(2), at(1)).seconds == []


def test_caught_up_and_visible_is_zero_however_old_the_last_event_is() -> None:
    """Case 104: a quiet night is no lag, for readers neither."""
    unseen = Unseen()
    settle(unseen, 0, 0.0, now=0)
    unseen.pass_to(shown(1), at(1))

    assert behind(unseen, 1, now=7200) == 0.0


def test_settled_and_not_visible_is_behind_by_the_age_of_its_first_record() -> None:
    """The consumer is caught up, and readers are not: the figure is theirs."""
    unseen = Unseen()
    settle(unseen, 0, 0.0, now=0)
    unseen.pass_to(shown(1), at(1))
    settle(unseen, 1, 2.0, 4.0, now=4)

    assert behind(unseen, 3, now=10) == pytest.approx(8.0)


def test_what_is_not_settled_counts_for_readers_too() -> None:
    """A visible offset at the position does not mean that readers are up to date."""
    unseen = Unseen()
    settle(unseen, 0, 0.0, now=0)
    unseen.pass_to(shown(1), at(1))

    assert behind(unseen, 1, now=10, lag=Lag(5, 6.5)) == 6.5
    assert behind(unseen, 1, now=10, lag=None) is None


def test_nothing_is_said_before_it_was_told_what_is_visible() -> None:
    """0 would be a promise, and any number a false alarm."""
    assert behind(Unseen(), 5, now=0) is None


def test_offsets_without_records_are_not_waited_for() -> None:
    """A transaction marker moves the position; until the next refresh nothing is there that a reader could miss."""
    unseen = Unseen()
    settle(unseen, 0, 0.0, now=0)
    unseen.pass_to(shown(1), at(1))

    assert behind(unseen, 2, now=100) == 0.0


def test_new_owner_counts_from_when_it_noticed() -> None:
    """What the last owner settled has a time that this process does not know; an idle hour before it is no lag."""
    unseen = Unseen()
    unseen.pass_to(shown(1, ago=3600), at(0))

    assert behind(unseen, 5, now=1) == pytest.approx(1.0)

    settle(unseen, 5, 1.0, now=1)
    unseen.pass_to(shown(1, ago=3602), at(2))
    assert behind(unseen, 6, now=2) == pytest.approx(2.0)


def test_new_owner_knows_how_long_the_store_has_not_refreshed() -> None:
    """A deployment in the middle of an outage must not begin to count anew."""
    unseen = Unseen()

    unseen.pass_to(shown(1, ago=900, trouble_seconds=600), at(0))

    assert behind(unseen, 5, now=1) == pytest.approx(600.0)


def test_after_a_rewind_the_old_samples_are_gone() -> None:
    """Case 107: measured by the new pass over the same offsets they would be measured twice, and wrongly."""
    unseen = Unseen()
    settle(unseen, 0, 0.0, now=0)
    settle(unseen, 1, 1.0, now=1)
    unseen.pass_to(shown(1), at(1))

    settle(unseen, 0, 0.0, now=100, epoch=2)
    seen = unseen.pass_to(shown(2), at(101))

    assert seen.seconds == pytest.approx([101.0])


def test_topic_made_anew_is_not_taken_for_the_old_one() -> None:
    """Offset 1 of the new topic is not seen because offset 100 of the old one was."""
    unseen = Unseen()
    settle(unseen, 0, 0.0, now=0, topic_id=ANEW)

    assert unseen.pass_to(shown(100, topic_id=ORDERS), at(1)).seconds == []
    assert unseen.visible(PLACE, ANEW) == 0
    assert unseen.pass_to(shown(1, topic_id=ANEW), at(2)).seconds == pytest.approx([2.0])


def test_too_many_are_counted_instead_of_kept() -> None:
    """With a store that does not refresh for a day, memory stays what it is, and the oldest keep their times."""
    unseen = Unseen(most_times=2)
    settle(unseen, 0, 0.0, 0.0, now=0)
    for n in range(2, 50):
        settle(unseen, n, float(n), now=n)

    assert behind(unseen, 50, now=50) is None
    unseen.pass_to(shown(0), at(50))
    assert behind(unseen, 50, now=50) == pytest.approx(50.0)
    unseen.pass_to(shown(2), at(51))
    assert behind(unseen, 50, now=51) == pytest.approx(49.0)
    assert len(unseen._settled[PLACE]) == 1
    seen = unseen.pass_to(shown(50), at(60))
    assert (seen.seconds, seen.unmeasured) == ([], 0)
    settle(unseen, 50, 60.0, 60.0, now=60)
    assert len(unseen.pass_to(shown(52), at(61)).seconds) == 2


def test_what_was_not_kept_is_counted() -> None:
    """A histogram that leaves out what took longest has to say so."""
    unseen = Unseen(most_times=1)
    settle(unseen, 0, 0.0, 0.0, now=0)

    assert unseen.pass_to(shown(0), at(1)).unmeasured == 2
    assert unseen.pass_to(shown(0), at(1)).unmeasured == 0


def test_burn_of_one_uses_the_budget_up_just_as_it_grows() -> None:
    """1 % late is what 99 % allows; everything late burns a hundred times as fast."""
    budget = ErrorBudget(0.99)
    for second in range(300):
        budget.add(good=0.99, bad=0.01, now=float(second))

    assert budget.burn("5m", 299.0) == pytest.approx(1.0)

    late = ErrorBudget(0.99)
    late.add(good=0, bad=10, now=0.0)
    assert late.burn("1h", 0.0) == pytest.approx(100.0)


def test_burn_forgets_what_is_older_than_its_window() -> None:
    """The short window tells that it is over, the long one that it was."""
    budget = ErrorBudget(0.9)
    for second in range(60):
        budget.add(good=0.0, bad=1.0, now=float(second))
    for second in range(60, 600):
        budget.add(good=1.0, bad=0.0, now=float(second))

    assert budget.burn("5m", 599.0) == 0.0
    assert budget.burn("1h", 599.0) == pytest.approx(1.0)
    assert len(budget._sums) < 70


def test_nothing_to_judge_burns_nothing() -> None:
    """A worker without partitions, or with paused ones, is not late."""
    budget = ErrorBudget(0.99)
    budget.add(good=0, bad=0, now=0.0)

    assert (budget.burn("5m", 1.0), budget.burn("1h", 1.0)) == (0.0, 0.0)
