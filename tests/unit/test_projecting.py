"""A batch is encoded at once; where something in it cannot be, the rest is as if it had never been there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec
import pytest

from consumers.batch import Batch
from consumers.claims import claims_of
from consumers.decoding import Decoder
from consumers.envelopes import CloudEvents
from consumers.formats import Json
from consumers.projecting import Projected, project
from consumers.routes import on
from consumers.topics import Tombstone, Topic
from inbox.identity import ClaimRule
from projections.clickhouse import ClickHouse
from projections.clickhouse_connection import Connection
from projections.clickhouse_rows import Rows
from projections.clickhouse_sink import ClickHouseSink
from projections.memory import MemorySink
from projections.sink import Sink
from projections.writes import Delete, Upsert, Write
from tests.unit.records import StoredRecord, cloud_event
from tidegate_kernel.event import LIVE, Event, Fence, JobId
from tidegate_kernel.settings import Settings

TABLE = ClickHouse(table="t", columns={"id": "String", "n": "Int8"}, order_by=("id",))
NO_COLUMN = 300
NO_FUNCTION = 13


class Numbers(msgspec.Struct):
    ns: list[int]


def written(event: Event[Numbers]) -> Sequence[Upsert] | Upsert | None:
    """A write for each number, as a function returns none, one or several."""
    if NO_FUNCTION in event.data.ns:
        raise ArithmeticError
    writes = [write(int(event.id.removeprefix("event-")), n) for n in event.data.ns]
    return writes if len(writes) > 1 else writes[0] if writes else None


def write(offset: int, n: int) -> Upsert:
    return Upsert(f"{offset}-{n}", 1, {"id": f"{offset}-{n}", "n": n})


def deleted(tombstone: Tombstone) -> Delete:
    return Delete((tombstone.key or b"").decode(), 1)


TOPIC = Topic("shop.orders", format=Json(), envelope=CloudEvents(), tombstone=deleted)


def projected_of(sink: Sink, *records: list[int] | str) -> Projected:
    """An event of each list of numbers, and a tombstone of each key, in this order."""
    stored = [_stored(offset, each) for offset, each in enumerate(records)]
    batch = Batch(Fence(JobId(1), LIVE, TOPIC.name, 0, 1, 0), UUID(int=7), stored, len(stored))
    decoded = Decoder({TOPIC.name: TOPIC}, [on("numbers", Numbers, written)], "skip").decode(stored)
    return project(batch, decoded, claims_of(ClaimRule(), batch, decoded.events), sink)


def _stored(offset: int, told: list[int] | str) -> StoredRecord:
    if isinstance(told, str):
        return replace(cloud_event(None, offset=offset), key=told.encode())
    return cloud_event(msgspec.json.encode(Numbers(told)), type_="numbers", offset=offset)


def columns() -> ClickHouseSink:
    return ClickHouseSink(TABLE.versioned_table, TABLE.rows, Connection(Settings()))


def offsets(projected: Projected) -> list[int]:
    return [projected.offset_of(owner) for owner in projected.owners]


def failed(projected: Projected) -> list[int]:
    return [each.record.offset for each in (*projected.failed_events, *projected.failed_tombstones)]


@pytest.fixture(params=[MemorySink, columns])
def sink(request: pytest.FixtureRequest) -> Any:
    return request.param()


def test_every_write_has_its_owner(sink: Sink) -> None:
    """A refusal or a stale write is told of the record that it came from."""
    projected = projected_of(sink, [1], [2, 3], [], "k", [4])

    expected: list[Write] = [write(0, 1), write(1, 2), write(1, 3), write(4, 4)]
    assert list(projected.encoded)[:4] == [sink.encode(each) for each in expected]
    assert offsets(projected) == [0, 1, 1, 4, 3]
    assert not projected.has_failures


def test_event_that_cannot_be_encoded_takes_nothing_with_it() -> None:
    """One dead letter: the batch's other events are written, and of its own writes none."""
    sink = columns()

    projected = projected_of(sink, [1], [2, NO_COLUMN], [NO_COLUMN], [5])

    assert list(projected.encoded) == [sink.encode(write(0, 1)), sink.encode(write(3, 5))]
    assert offsets(projected) == [0, 3]
    assert failed(projected) == [1, 2]


def test_function_that_raises_takes_nothing_with_it(sink: Sink) -> None:
    """Nor does it keep the others from being encoded at once."""
    projected = projected_of(sink, [1], [NO_FUNCTION, 2], [3])

    assert list(projected.encoded) == [sink.encode(write(0, 1)), sink.encode(write(2, 3))]
    assert offsets(projected) == [0, 2]
    assert failed(projected) == [1]


def test_tombstone_that_cannot_be_encoded_is_a_dead_letter(sink: Sink) -> None:
    """A key that is no id: no write, and none of the others is lost."""
    projected = projected_of(sink, [1], "", "k")

    assert offsets(projected) == [0, 2]
    assert len(projected.encoded) == 2
    assert failed(projected) == [1]


def test_batch_of_upserts_is_made_by_columns() -> None:
    """What makes ClickHouse fast: a row by itself costs several times as much."""
    assert isinstance(projected_of(columns(), [1], [2, 3]).encoded, Rows)


def test_batch_without_writes_is_empty(sink: Sink) -> None:
    """A sink is asked to apply it all the same."""
    projected = projected_of(sink, [], [])

    assert list(projected.encoded) == []
    assert not projected.has_failures
