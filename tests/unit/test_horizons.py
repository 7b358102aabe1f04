"""How long a job remembers ids: at least as long as Kafka can bring a record back, unless somebody says otherwise."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from projections.memory import MemorySink
from tidegate import App, ClickHouse, CloudEvents, ConsumerJob, Event, Json, ProjectionJob, Topic, handle, on
from tidegate.horizons import horizon_of
from tidegate.jobs.declaration import Job
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.kafka_retention import Retention, retention_of

DAY = timedelta(days=1)
WEEK = Retention(7 * DAY, 7 * DAY)
MONTH = Retention(30 * DAY, 7 * DAY)
UNLIMITED = Retention(None, 7 * DAY)
COMPACTED = Retention(None, 7 * DAY, is_compacted=True)


class Noted(msgspec.Struct):
    n: int


def to_note(event: Event[Noted]) -> Noted:
    return event.data


def nothing(event: Event[Noted]) -> None:
    return None


def consumer(horizon: timedelta | None = None, *topics: str, accept: bool = False) -> ConsumerJob:
    return ConsumerJob(
        code="ledger",
        topics=[Topic(name, Json(), CloudEvents()) for name in topics or ("orders",)],
        unlisted="skip",
        runbook="-",
        events=[on("noted", Noted, to_note)],
        dedupe_horizon=horizon,
        accept_short_horizon=accept,
    )


def projection(horizon: timedelta | None = None) -> ProjectionJob:
    return ProjectionJob(
        code="search",
        topics=[Topic("orders", Json(), CloudEvents())],
        unlisted="skip",
        runbook="-",
        events=[on("noted", Noted, nothing)],
        sink=MemorySink(),
        freshness_sla=DAY,
        dedupe_horizon=horizon,
    )


def counting() -> ProjectionJob:
    """A projection of a table that feeds materialized views."""
    columns = {"id": "String"}
    return replace(projection(), sink=ClickHouse(table="t", columns=columns, order_by=("id",), stable_batches=True))


@pytest.mark.parametrize(
    "retention, horizon",
    [(Retention(DAY, DAY), 14 * DAY), (WEEK, 15 * DAY), (MONTH, 38 * DAY), (UNLIMITED, None), (COMPACTED, None)],
)
def test_without_a_word_ids_are_remembered_longer_than_records_live(
    retention: Retention, horizon: timedelta | None
) -> None:
    """Case 78: retention, the segment that may outlive it, a day; two weeks at least; for ever where Kafka keeps for
    ever."""
    assert horizon_of(consumer(), {"orders": retention}) == horizon


def test_projection_that_something_counts_remembers_as_long_as_records_live() -> None:
    """Case 97: its claims gate what is written, so one that is forgotten doubles a sum."""
    assert horizon_of(counting(), {"orders": MONTH}) == horizon_of(consumer(), {"orders": MONTH})
    with pytest.raises(Misconfigured, match="acts twice"):
        horizon_of(replace(counting(), dedupe_horizon=DAY), {"orders": WEEK})


def test_longest_topic_counts() -> None:
    """One claim serves all topics of the job."""
    job = consumer(None, "orders", "refunds")
    assert horizon_of(job, {"orders": WEEK, "refunds": MONTH}) == 38 * DAY
    assert horizon_of(job, {"orders": WEEK, "refunds": UNLIMITED}) is None
    assert horizon_of(job, {"orders": WEEK}) is None, "what could not be asked may be for ever"


@pytest.mark.parametrize(
    "retention, told",
    [
        (WEEK, "keeps records for 7 days"),
        (Retention(timedelta(hours=73), DAY), "keeps records for 3 days, 1:00:00"),
        (UNLIMITED, r"keeps records for ever \(retention.ms\)"),
        (COMPACTED, r"keeps records for ever \(it is compacted\)"),
    ],
)
def test_horizon_below_retention_is_refused_with_both_numbers(retention: Retention, told: str) -> None:
    """Case 78: offsets set back after a forgotten week would bill every order of that week twice."""
    with pytest.raises(
        Misconfigured, match=f"'ledger': its dedupe_horizon is 1 day, but topic 'orders' {told}"
    ) as error:
        horizon_of(consumer(DAY), {"orders": retention})
    assert "accept_short_horizon=True" in str(error.value)


@pytest.mark.parametrize(
    "job, horizon",
    [
        (consumer(7 * DAY), 7 * DAY),
        (consumer(DAY, accept=True), DAY),
        (consumer(timedelta.max), None),
        (projection(), 14 * DAY),
        (projection(DAY), DAY),
        (projection(timedelta.max), None),
    ],
)
def test_horizon_that_is_long_enough_accepted_or_a_projections_is_taken(job: Job, horizon: timedelta | None) -> None:
    """A projection applies twice without harm, so its claims need not outlive anything."""
    assert horizon_of(job, {"orders": WEEK}) == horizon


def test_horizon_that_cannot_be_compared_is_taken() -> None:
    """A client that may not read topic settings is told in the log; it is no reason not to work."""
    assert horizon_of(consumer(DAY), {}) == DAY


@pytest.mark.parametrize("horizon", [timedelta(0), -DAY])
def test_horizon_of_nothing_is_refused(horizon: timedelta) -> None:
    """It would forget every claim at the next midnight."""

    async def take(command: Noted, ctx: object) -> None:
        return None

    with pytest.raises(Misconfigured, match="'ledger': dedupe_horizon must be positive"):
        App(service="shop", owner="o", jobs=[consumer(horizon)], handlers=[handle(Noted, take)])


@pytest.mark.parametrize(
    "policy, milliseconds, kept, is_compacted",
    [
        ("delete", "604800000", 7 * DAY, False),
        ("delete", "-1", None, False),
        ("delete", str(2**63 - 1), None, False),
        ("compact", "604800000", None, True),
        ("compact,delete", "604800000", 7 * DAY, True),
        ("delete, compact", "-1", None, True),
        (None, "0", timedelta(0), False),
    ],
)
def test_topic_settings_come_to_a_retention(
    policy: str | None, milliseconds: str, kept: timedelta | None, is_compacted: bool
) -> None:
    """Compaction keeps the last record of a key for ever, unless records are deleted by age as well."""
    config = {"cleanup.policy": policy, "retention.ms": milliseconds, "segment.ms": "3600000"}
    assert retention_of(config) == Retention(kept, timedelta(hours=1), is_compacted)
