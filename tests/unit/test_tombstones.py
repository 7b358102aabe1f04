"""How long a tombstone is needed: as long as Kafka can bring what it has to hold off."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tidegate.jobs.tombstones import needed_for
from tidegate_kernel.kafka_retention import Retention

DAY = timedelta(days=1)
WEEK = Retention(7 * DAY, segment=DAY)
MONTH = Retention(30 * DAY, segment=2 * DAY)


def test_longest_retention_of_all_topics_counts() -> None:
    """The delete may come from one topic, the older upsert from another."""
    assert needed_for(["a", "b"], {"a": WEEK, "b": MONTH}) == timedelta(days=30 + 2 + 1)


@pytest.mark.parametrize(
    "found",
    [
        {"a": WEEK, "b": Retention(None, segment=DAY)},
        {"a": WEEK, "b": Retention(7 * DAY, segment=DAY, is_compacted=True)},
        {"a": WEEK},
    ],
    ids=["kept for ever", "compacted", "may not be asked about"],
)
def test_tombstone_stays_for_ever_where_its_events_may(found: dict[str, Retention]) -> None:
    """The last record of a key in a compacted topic outlives every clock: a backfill in ten years would bring it."""
    assert needed_for(["a", "b"], found) is None
