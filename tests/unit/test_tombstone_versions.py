"""A record without a value has a version that was declared, or is a dead letter: a delete is never guessed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from projections.memory import MemorySink
from projections.writes import MAX_VERSION
from tidegate import (
    App,
    CloudEvents,
    Delete,
    Event,
    Json,
    ProjectionJob,
    RecordTime,
    Tombstone,
    Topic,
    Upsert,
    VersionHeader,
    on,
)
from tidegate_kernel.errors import Misconfigured, Poison, Reason


@dataclass
class Record:
    """As much of a record as a version may come from."""

    timestamp: int = 1_704_067_200_123
    headers: Sequence[tuple[str, bytes | None]] = ()
    key: bytes | None = b"k"
    value: bytes | None = None
    topic: str = "orders"
    partition: int = 0
    offset: int = 7


def tombstone(version_from: VersionHeader | RecordTime | None, **record: Any) -> Tombstone:
    return Tombstone(Record(**record), datetime(2024, 1, 1, tzinfo=UTC), version_from)


@pytest.mark.parametrize("digits,version", [(b"0", 0), (b"42", 42), (str(MAX_VERSION).encode(), MAX_VERSION)])
def test_declared_header_is_the_version(digits: bytes, version: int) -> None:
    """Bounds included; of repeated headers the last counts, as everywhere."""
    headers = [("v", b"1"), ("v", digits)]

    assert tombstone(VersionHeader("v"), headers=headers).version == version


@pytest.mark.parametrize(
    "value", [None, b"", b"-1", b"1.5", b" 1", b"1_0", b"0x1", b"\xd9\xa1", str(MAX_VERSION + 1).encode(), b"9" * 5000]
)
def test_header_that_is_no_version_is_a_dead_letter(value: bytes | None) -> None:
    """int() takes blanks, signs and other scripts' digits; one that is misread wins, or loses, for ever."""
    with pytest.raises(Poison, match="header 'v'") as refused:
        _ = tombstone(VersionHeader("v"), headers=[("v", value)]).version

    assert refused.value.reason is Reason.NO_VERSION


def test_missing_header_is_a_dead_letter() -> None:
    """Case 29: nothing orders it against the upserts."""
    with pytest.raises(Poison, match=r"header 'v', .* is not there"):
        _ = tombstone(VersionHeader("v")).version


@pytest.mark.parametrize(
    "unit,version",
    [
        (timedelta(milliseconds=1), 1_704_067_200_123),
        (timedelta(microseconds=1), 1_704_067_200_123_000),
        (timedelta(seconds=1), 1_704_067_200),
    ],
)
def test_record_time_is_told_in_the_unit_of_the_other_versions(unit: timedelta, version: int) -> None:
    """Milliseconds beside microseconds would lose every time."""
    assert tombstone(RecordTime(unit)).version == version


@pytest.mark.parametrize("timestamp", [-1, 0])
def test_record_without_a_time_is_a_dead_letter(timestamp: int) -> None:
    """-1 is Kafka's word for none: as version 0 the delete would lose against everything, unseen."""
    with pytest.raises(Poison, match="no timestamp") as refused:
        _ = tombstone(RecordTime(), timestamp=timestamp).version

    assert refused.value.reason is Reason.NO_VERSION


def test_topic_that_declares_no_version_has_none() -> None:
    """A function that asks for it all the same is told what to declare."""
    with pytest.raises(Poison, match="declares no tombstone_version"):
        _ = tombstone(None).version


class Noted(msgspec.Struct):
    n: int


def document(event: Event[Noted]) -> Upsert:
    return Upsert(str(event.data.n), version=1, document={"n": event.data.n})


def removed(gone: Tombstone) -> Delete:
    return Delete((gone.key or b"").decode(), version=gone.version)


def app(job: ProjectionJob) -> App:
    return App(service="shop", owner="tests", jobs=[job])


JOB = ProjectionJob(
    code="search",
    topics=[Topic("orders", format=Json(), envelope=CloudEvents(), tombstone=removed, tombstone_version=RecordTime())],
    unlisted="skip",
    runbook="-",
    events=[on("noted", Noted, document)],
    sink=MemorySink(),
    freshness_sla=timedelta(seconds=5),
)


def test_record_time_needs_the_word_that_all_versions_are_times() -> None:
    """Versions 1, 2, 3 beside a delete at 1,704,067,200,123: the document could never come back."""
    with pytest.raises(Misconfigured, match=r"job 'search': topic 'orders' .* versions_are_times=True"):
        app(JOB)

    app(replace(JOB, versions_are_times=True))
