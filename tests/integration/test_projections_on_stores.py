"""A projection's batch on the real stores: killed between a store's answer and the settle; fed with odd payloads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from projections.clickhouse import ClickHouse
from projections.clickhouse_connection import Connection
from projections.elasticsearch import Elasticsearch
from projections.elasticsearch_sink import connect
from projections.sink import Applied, Sink, SinkDeclaration
from tests.integration.road import MakeRoad, SentRecord, record
from tidegate import CloudEvents, Delete, Event, Json, ProjectionJob, Tombstone, Topic, Upsert, on
from tidegate.stack.names import StackAddresses
from tidegate_kernel.errors import Reason
from tidegate_kernel.settings import Settings

pytestmark = pytest.mark.servers


class Counted(msgspec.Struct):
    key: str
    n: int | float


def document(event: Event[Counted]) -> Upsert:
    return Upsert(event.data.key, version=1, document={"key": event.data.key, "n": event.data.n})


def removed(tombstone: Tombstone) -> Delete:
    return Delete((tombstone.key or b"").decode(), version=2)


COUNTS = Topic("orders", format=Json(), envelope=CloudEvents(), tombstone=removed)


def job(declared: SinkDeclaration) -> ProjectionJob:
    return ProjectionJob(
        code="counts",
        topics=[COUNTS],
        unlisted="skip",
        runbook="-",
        events=[on("noted", Counted, document)],
        sink=declared,
        freshness_sla=timedelta(seconds=5),
    )


def count(offset: int, key: str, n: str) -> SentRecord:
    return record(offset, b'{"key":"%s","n":%s}' % (key.encode(), n.encode()))


@dataclass
class Store:
    """A declaration, and what its readers see."""

    declared: Elasticsearch | ClickHouse
    settings: Settings

    async def rows(self) -> dict[str, int]:
        return await (
            self._documents() if isinstance(self.declared, Elasticsearch) else self._table_rows(self.declared.name)
        )

    async def _documents(self) -> dict[str, int]:
        async with connect(self.settings) as client:
            await client.indices.refresh(index=self.declared.name)
            found = await client.search(index=self.declared.name, size=100)
        return {hit["_source"]["key"]: hit["_source"]["n"] for hit in found["hits"]["hits"]}

    async def _table_rows(self, table: str) -> dict[str, int]:
        async with _reader(self.settings) as client:
            rows = (await client.query(f"SELECT key, n FROM {table}")).result_rows
        shown: dict[str, int] = dict(rows)
        assert len(shown) == len(rows), "a reader sees a row twice"
        return shown

    async def drop(self) -> None:
        if isinstance(self.declared, Elasticsearch):
            async with connect(self.settings) as elasticsearch:
                await elasticsearch.indices.delete(index=self.declared.physical, ignore_unavailable=True)
                await elasticsearch.indices.delete_index_template(name=f"tidegate-{self.declared.physical}")
            return
        async with _reader(self.settings) as clickhouse:
            await clickhouse.command(f"DROP VIEW IF EXISTS {self.declared.name}")
            await clickhouse.command(f"DROP TABLE IF EXISTS {self.declared.versioned_table.physical}")


@asynccontextmanager
async def _reader(settings: Settings) -> AsyncIterator[Any]:
    connection = Connection(settings)
    try:
        yield await connection.client()
    finally:
        await connection.close()


@pytest.fixture(params=["elasticsearch", "clickhouse"])
async def store(
    request: pytest.FixtureRequest, stack: StackAddresses, unique_name: Callable[[str], str]
) -> AsyncIterator[Store]:
    settings = Settings(elasticsearch_url=stack.elasticsearch_url, clickhouse_url=stack.clickhouse_url)
    name = unique_name("counts")
    declared: Elasticsearch | ClickHouse = Elasticsearch(
        index=name,
        mappings={"properties": {"key": {"type": "keyword"}, "n": {"type": "long"}}},
        settings={"number_of_replicas": 0},
    )
    if request.param == "clickhouse":
        columns = {"key": "String", "n": "Int64"}
        declared = ClickHouse(table=name.replace("-", "_"), columns=columns, order_by=("key",))
    made = Store(declared, settings)
    yield made
    await made.drop()


class Killed(BaseException):
    """The process is gone: nothing of ours catches this."""


class KilledAfterApply:
    """The store has taken the batch; nobody is left to hear it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    async def apply(self, encoded: Sequence[Any]) -> Applied:
        await self._sink.apply(encoded)
        raise Killed


async def test_killed_after_the_store_took_the_batch(store: Store, make_road: MakeRoad) -> None:
    """G2 and G3: nothing was settled, so the next owner applies all of it again, with the same versions; readers see
    each document once, and the position passes the batch once."""
    batch = [count(n, f"k{n}", str(n)) for n in range(5)]
    async with store.declared.open(store.settings) as sink:
        await sink.prepare()
        dying = await make_road(job(store.declared), sink=KilledAfterApply(sink))
        with pytest.raises(Killed):
            await dying.handle(batch)
        assert len(await store.rows()) == 5
        assert await dying.stored_offset() == 0

        successor = await make_road(job(store.declared), sink=sink)
        outcome = await successor.handle(batch)

    assert (outcome.applied, outcome.duplicates, outcome.stale) == (5, 0, 0)
    assert await successor.stored_offset() == 5
    assert await store.rows() == {f"k{n}": n for n in range(5)}


async def test_odd_payloads_cost_only_themselves(store: Store, make_road: MakeRoad) -> None:
    """Cases 28, 30 and 34: what no store takes is a dead letter with its exact reason, a tombstone deletes, and every
    neighbour in the same batch is written."""
    odd = {
        1: ("NaN", Reason.INVALID_NUMBER),
        2: ("1e999", Reason.INVALID_NUMBER),
        3: (str(2**63), Reason.INVALID_DOCUMENT),
        4: ("12345678901234567890123", Reason.INVALID_DOCUMENT),
        5: ('"seven"', Reason.INVALID_EVENT),
    }
    records = [count(0, "gone", "0"), *(count(n, "odd", text) for n, (text, _) in odd.items())]
    records += [count(6, "largest", str(2**63 - 1)), SentRecord(7, None, [], key=b"gone"), count(8, "last", "8")]
    async with store.declared.open(store.settings) as sink:
        await sink.prepare()
        road = await make_road(job(store.declared), sink=sink)
        outcome = await road.handle(records)

    assert await store.rows() == {"largest": 2**63 - 1, "last": 8}
    letters = {row["offset"]: row["reason"] for row in await road.dead_letters()}
    assert letters == {offset: reason for offset, (_, reason) in odd.items()}
    assert outcome.applied == len(records) - len(odd)
    assert await road.stored_offset() == 9
