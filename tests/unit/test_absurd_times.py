"""Timestamps as brokers really hold them: none (-1), 0, microseconds, the year 58692, the limits of their field."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from consumers.batch import Attempts, Batch, Outcome
from consumers.decoding import Decoder
from consumers.envelopes import CloudEvents, PlainJson
from consumers.formats import Json
from consumers.meter import Meter
from consumers.ownership import Holding
from consumers.positions import Position
from consumers.routes import on
from consumers.topics import Tombstone, Topic, record_time
from dlq.letters import Failure, Origin, _arguments, _letters
from inbox.identity import CONSTANT_BUCKET, ClaimRule
from projections.freshness import age_seconds, lag
from tests.unit.records import NOON, StoredRecord, cloud_event
from tidegate.commands.moments import instant
from tidegate_kernel.errors import Misconfigured, Reason
from tidegate_kernel.event import LIVE, Event, Fence, JobCode, JobId, TopicPartition
from tidegate_kernel.metrics import Metrics

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW = datetime.fromtimestamp(NOON / 1000, UTC) + timedelta(seconds=7)
MICROSECONDS = NOON * 1000
YEAR_58692 = 1_790_000_000_000_000
YEAR_9999 = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000)
ABSURD = [-(2**63), -1, 0, MICROSECONDS, YEAR_58692, 2**63 - 1]
BY_DAY = ClaimRule(bucket_by_event_time=True)


class StoppedClock:
    """Always NOW."""

    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        return None


def nothing(event: Event[Any]) -> None:
    return None


def batch_of(records: Sequence[StoredRecord]) -> Batch:
    fence = Fence(JobId(1), LIVE, "shop.orders", 0, 1, 0)
    return Batch(fence, UUID(int=7), records, len(records), Attempts())


def decode(record: StoredRecord, envelope: Any = None) -> Any:
    topic = Topic("shop.orders", Json(), envelope or CloudEvents())
    return Decoder({topic.name: topic}, [on("order.placed", dict, nothing)], "skip").decode([record])


@pytest.mark.parametrize("timestamp", ABSURD)
def test_event_dated_by_an_absurd_record_is_of_1970_and_claimed_where_ids_without_a_day_are(timestamp: int) -> None:
    """The record is good: it is handled, and a second delivery with a sane timestamp finds its claim."""
    absurd = StoredRecord(b"{}", headers=cloud_event(b"{}").headers, timestamp=timestamp)
    sane = StoredRecord(b"{}", headers=cloud_event(b"{}").headers, timestamp=NOON)

    (first,), (second,) = decode(absurd).events, decode(sane).events

    assert (first.event.occurred_at, first.event.has_own_time) == (EPOCH, False)
    assert record_time(absurd) == Tombstone(absurd, record_time(absurd)).occurred_at == EPOCH
    assert BY_DAY.key(first.event) == BY_DAY.key(second.event)
    assert BY_DAY.key(first.event).bucket == CONSTANT_BUCKET


@pytest.mark.parametrize(
    "told, occurred_at",
    [
        (-1, EPOCH - timedelta(milliseconds=1)),
        (0, EPOCH),
        (YEAR_9999, datetime(9999, 12, 31, tzinfo=UTC)),
        (-62_135_596_800_000, datetime(1, 1, 1, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
        ("9999-12-31T23:59:59Z", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (MICROSECONDS, None),
        (YEAR_58692, None),
        (2**63 - 1, None),
        (-(2**63), None),
        (10**30, None),
        ("58692-01-01T00:00:00Z", None),
        ("9999-12-31T23:59:59-01:00", None),
        ("0001-01-01T00:00:00+01:00", None),
    ],
)
def test_envelope_time_that_is_no_date_is_a_dead_letter_and_all_others_count(
    told: int | str, occurred_at: datetime | None
) -> None:
    """A producer that writes microseconds for milliseconds learns which field it is; nothing is guessed, nothing
    crashes."""
    value = msgspec.json.encode({"event_id": "e1", "type": "order.placed", "at": told})

    batch = decode(StoredRecord(value), PlainJson(occurred_at="at"))

    if occurred_at is None:
        assert [failure.error.reason for failure in batch.failures] == [Reason.INVALID_ENVELOPE]
        assert "at" in str(batch.failures[0].error)
    else:
        (arrival,) = batch.events
        assert arrival.event.occurred_at == occurred_at
        assert BY_DAY.key(arrival.event).bucket == occurred_at.date()


@pytest.mark.parametrize(
    "timestamp, recorded_at", [*((each, EPOCH if each == 0 else None) for each in ABSURD), (NOON, record_time)]
)
def test_dead_letter_says_when_its_record_was_written_or_nothing(timestamp: int, recorded_at: Any) -> None:
    """A letter must be kept whatever the timestamp; the exact number stands in the DLQ topic's header."""
    record = StoredRecord(b"{", timestamp=timestamp)
    origin = Origin(
        job=JobId(1), job_code="j", service="s", group="g", service_version="", dlq_topic="s.j.dlq", backfill=False
    )
    failure = Failure(record=record, topic_id=UUID(int=7), reason=Reason.UNDECODABLE, error=ValueError())

    columns = _arguments(origin, _letters(origin, [failure]), NOW)

    expected = recorded_at(record) if callable(recorded_at) else recorded_at
    times = [column[0] for column in columns if isinstance(column, list) and column and _is_time(column[0])]
    assert times == ([] if expected is None else [expected])


def _is_time(value: object) -> bool:
    return isinstance(value, datetime)


@pytest.mark.parametrize("timestamp, seconds", [(-1, []), (0, []), (NOON, [7.0]), (MICROSECONDS, [0.0])])
def test_histogram_of_lag_counts_no_event_of_1970(timestamp: int, seconds: list[float]) -> None:
    """One record without a timestamp would add 56 years to the mean of an hour."""
    metrics = Metrics()
    meter = Meter(JobCode("job"), metrics, StoppedClock())

    meter.settled(batch_of([StoredRecord(b"", timestamp=timestamp)]), Outcome(), seconds=0.1)

    read = metrics.registry.get_sample_value
    assert read("tidegate_event_lag_seconds_count", {"job": "job"}) == len(seconds)
    assert read("tidegate_event_lag_seconds_sum", {"job": "job"}) == sum(seconds)
    assert read("tidegate_clock_skew_events_total", {"job": "job"}) == (1 if timestamp > NOON else 0)


@pytest.mark.parametrize("timestamp", ABSURD)
def test_absurd_record_in_hand_or_settled_makes_no_absurd_lag(timestamp: int) -> None:
    """G11: alerts and autoscaling act on seconds behind; 56 years would start every replica there may be, and a date
    far ahead would hide a backlog for ever."""
    held = Holding(TopicPartition("shop.orders", 0), Position(0, 0, UUID(int=7)), lane=0)
    batch = batch_of([StoredRecord(b"", timestamp=timestamp)])

    held.begin(batch, 0.0)
    in_hand = lag(
        next_offset=0, end=9, oldest_in_hand=held.oldest_in_hand, newest_settled=None, caught_up_at=None, now=NOW
    )
    held.settle(batch)
    behind = lag(
        next_offset=1,
        end=9,
        oldest_in_hand=None,
        newest_settled=held.newest_settled,
        caught_up_at=NOW - timedelta(seconds=40),
        now=NOW,
    )

    assert in_hand == (9, 0.0)
    assert behind == (8, 40.0), "the moment we were caught up bounds it"
    assert age_seconds(held.newest_settled, NOW) == (0.0 if timestamp > 0 else None)


@pytest.mark.parametrize(
    "text", ["58692-01-01T00:00:00Z", "1700000000000", "1700000000000000", "-1", "2026-02-30", "10000-01-01", ""]
)
def test_time_on_the_command_line_that_is_no_date_is_refused(text: str) -> None:
    """`--from-time` with a number of some unit, or an impossible date: named, not guessed."""
    with pytest.raises(Misconfigured, match="--from-time"):
        instant("--from-time", text)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "1969-12-31T23:59:59.999Z", "9999-12-31T23:59:59Z"])
def test_times_at_the_ends_of_the_calendar_are_taken(text: str) -> None:
    """Before 1970 means all of the log (the port says so), the far future nothing of it."""
    assert instant("--from-time", text).timestamp() * 1000 < 2**63
