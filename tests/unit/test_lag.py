"""Lag as it is told: right when idle, behind, skewed, blocked, and absent for what is not ours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from projections.freshness import Lag, age_seconds, lag
from tidegate_kernel.metrics import LAG_BUCKETS, LagSample, Metrics

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def ago(**before: float) -> int:
    """A record's timestamp that long before NOW."""
    return int((NOW - timedelta(**before)).timestamp() * 1000)


@pytest.mark.parametrize(
    "known, expected",
    [
        pytest.param({"end": None}, None, id="end not known yet: no number, not zero"),
        pytest.param({"newest_settled": ago(hours=2)}, Lag(0, 0.0), id="idle for two hours and caught up (104)"),
        pytest.param({"next_offset": 0, "end": 0}, Lag(0, 0.0), id="empty log"),
        pytest.param({"next_offset": 101}, Lag(0, 0.0), id="end read before the position (107)"),
        pytest.param(
            {"next_offset": 90, "oldest_in_hand": ago(seconds=7)}, Lag(10, 7.0), id="a batch in hand tells its own age"
        ),
        pytest.param(
            {"oldest_in_hand": ago(seconds=7)}, Lag(1, 7.0), id="in hand and all fetched: still at least one record"
        ),
        pytest.param(
            {"next_offset": 90, "oldest_in_hand": ago(seconds=-30)}, Lag(10, 0.0), id="producer's clock ahead (107)"
        ),
        pytest.param(
            {"next_offset": 90, "newest_settled": ago(seconds=40)},
            Lag(10, 40.0),
            id="behind: age of the last settled",
        ),
        pytest.param(
            {"next_offset": 99, "newest_settled": ago(hours=1), "caught_up_at": NOW - timedelta(seconds=2)},
            Lag(1, 2.0),
            id="one new record after an idle hour is no hour of lag",
        ),
        pytest.param(
            {"next_offset": 99, "newest_settled": ago(seconds=1), "caught_up_at": NOW - timedelta(hours=1)},
            Lag(1, 1.0),
            id="caught up long ago, settled just now",
        ),
        pytest.param({"next_offset": 99, "newest_settled": 0}, Lag(1, 0.0), id="no timestamp at all: no age of 1970"),
    ],
)
def test_lag(known: dict[str, Any], expected: Lag | None) -> None:
    """Alerts and autoscaling act on these numbers (Cases 104, 107): each row is a situation that fooled somebody."""
    situation = {
        "next_offset": 100,
        "end": 100,
        "oldest_in_hand": None,
        "newest_settled": None,
        "caught_up_at": None,
        "now": NOW,
    }

    assert lag(**{**situation, **known}) == expected


def test_history_that_retention_removed_is_no_lag() -> None:
    """Case 105: log start 900, end 1000, nothing committed: the job begins at 900, so 100 records are to do."""
    told = lag(next_offset=900, end=1000, oldest_in_hand=None, newest_settled=None, caught_up_at=None, now=NOW)

    assert told == Lag(100, 0.0)


def test_the_age_of_the_last_event_is_another_number_than_lag() -> None:
    """Case 104: an idle topic's last event gets older while nobody is behind."""
    assert age_seconds(ago(hours=2), NOW) == 7200
    assert age_seconds(ago(seconds=-5), NOW) == 0
    assert age_seconds(None, NOW) is None


def test_only_watched_jobs_have_series_and_only_while_they_are_watched() -> None:
    """Case 103: removed, not zero and not the last value for ever."""
    metrics = Metrics()
    answers = [
        LagSample("job", "t", number, records, seconds, last_event_age=None, is_blocked=False)
        for number, records, seconds in ((0, 5, 1.5), (1, 0, 0.0))
    ]
    metrics.lags.watch("job", lambda: list(answers))
    assert series(metrics, "tidegate_records_behind") == {"0": 5, "1": 0}
    assert series(metrics, "tidegate_seconds_behind") == {"0": 1.5, "1": 0.0}

    del answers[1]
    assert series(metrics, "tidegate_records_behind") == {"0": 5}

    metrics.lags.unwatch("job")
    assert series(metrics, "tidegate_records_behind") == {}


def test_the_histogram_of_event_lag_has_no_gaps_and_no_negatives() -> None:
    """It is filled a batch at a time, by bisection: the sum over its buckets must still be the number of events."""
    metrics = Metrics()
    lags = sorted([0.0, 0.05, 0.06, 1.0, 59.9, 1e6])
    metrics.event_lag.observe_batch("job", lags)
    metrics.event_lag.observe_batch("job", [0.2])

    buckets = {
        sample.labels["le"]: sample.value
        for family in metrics.event_lag.collect()
        for sample in family.samples
        if sample.name.endswith("_bucket")
    }

    for bound in LAG_BUCKETS:
        assert buckets[str(bound)] == sum(each <= bound for each in [*lags, 0.2])
    assert buckets["+Inf"] == 7


def series(metrics: Metrics, name: str) -> dict[str, float]:
    """Values by partition."""
    families = [family for family in metrics.registry.collect() if family.name == name]
    return {sample.labels["partition"]: sample.value for family in families for sample in family.samples}
