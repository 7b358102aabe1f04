"""One projection into two stores, one of which is stopped: the other goes on, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from projections.clickhouse_connection import Connection
from projections.elasticsearch_sink import connect
from tests.chaos import servers
from tests.chaos.servers import OwnServer
from tidegate import App, ClickHouse, CloudEvents, Elasticsearch, Event, Json, ProjectionJob, Topic, Upsert, on, testing
from tidegate.stack import elasticsearch
from tidegate.stack.names import StackAddresses
from tidegate.testing import Driver
from tidegate_kernel.settings import Settings

pytestmark = [
    pytest.mark.servers,
    pytest.mark.timeout(420),
    pytest.mark.skipif(bool(servers.missing()), reason="the chaos suite starts servers of its own from packages"),
]

_DEADLINE_SECONDS = 90.0
_CLAIMS = "SELECT j.code, count(*) AS n FROM tidegate.inbox AS i JOIN tidegate.job AS j ON j.id = i.job GROUP BY 1"


class Counted(msgspec.Struct):
    key: str
    n: int


def document(event: Event[Counted]) -> Upsert:
    return Upsert(event.data.key, version=event.data.n, document={"key": event.data.key, "n": event.data.n})


@pytest.fixture
async def own_elasticsearch(tmp_path: Path) -> AsyncIterator[OwnServer]:
    server = await servers.from_packages(elasticsearch.Elasticsearch(), tmp_path)
    async with servers.running([server]):
        yield server


async def test_one_sink_down_does_not_stop_the_other(
    own_elasticsearch: OwnServer,
    stack: StackAddresses,
    database: str,
    unique_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G2, G5: Elasticsearch is stopped and ClickHouse goes on; then Elasticsearch catches up, each event once."""
    monkeypatch.setenv("TIDEGATE_ELASTICSEARCH_URL", own_elasticsearch.address)
    monkeypatch.setenv("TIDEGATE_CLICKHOUSE_URL", stack.clickhouse_url)
    settings = Settings(elasticsearch_url=own_elasticsearch.address, clickhouse_url=stack.clickhouse_url)
    table = unique_name("counts").replace("-", "_")
    app = _app(table)
    try:
        async with testing.run(app, db=database, real_sinks=True, deadline=timedelta(seconds=_DEADLINE_SECONDS)) as t:
            await t.send("counts", Counted("before", 1), key="before")
            await own_elasticsearch.stop()
            for n in range(1, 11):
                sending = asyncio.create_task(t.send("counts", Counted(f"k{n % 3}", n), key=f"k{n % 3}"))
                await asyncio.sleep(0)
                _forget(sending)
            await _until(lambda: _rows(settings, table), {"before": 1, "k1": 10, "k2": 8, "k0": 9})
            behind = await _settled(t)
            await own_elasticsearch.start()
            await t.settled()
            caught_up = await _settled(t)
            found = await _documents(settings)
            claims = await t.db.fetch(_CLAIMS)
            letters = t.dead_letters
    finally:
        await _drop(settings, table)

    assert behind == {"counts.search": 1, "counts.analytics": 11}
    assert caught_up == {"counts.search": 11, "counts.analytics": 11}
    assert found == {"before": 1, "k1": 10, "k2": 8, "k0": 9}
    assert {row["code"]: row["n"] for row in claims} == {"counts.search": 11, "counts.analytics": 11}
    assert letters == []


def _app(table: str) -> App:
    mappings = {"properties": {"key": {"type": "keyword"}, "n": {"type": "long"}}}
    job = ProjectionJob(
        code="counts",
        topics=[Topic("counts", format=Json(), envelope=CloudEvents())],
        unlisted="skip",
        runbook="-",
        events=[on("counted", Counted, document)],
        sinks={
            "search": Elasticsearch(index="counts", mappings=mappings, settings={"number_of_replicas": 0}),
            "analytics": ClickHouse(table=table, columns={"key": "String", "n": "Int64"}, order_by=("key",)),
        },
        freshness_sla=timedelta(seconds=5),
    )
    return App(service="several", owner="tests", jobs=[job])


def _forget(sending: asyncio.Task[Any]) -> None:
    """Its record is written; whether all jobs settle it is looked at otherwise."""
    sending.cancel()


async def _settled(t: Driver) -> dict[str, int]:
    rows = await t.db.fetch(
        "SELECT j.code, sum(p.next_offset)::bigint AS settled FROM tidegate.position AS p "
        "JOIN tidegate.job AS j ON j.id = p.job GROUP BY 1"
    )
    return {row["code"]: row["settled"] for row in rows}


async def _until(read: Callable[[], Any], wanted: object) -> None:
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while await read() != wanted:
            await asyncio.sleep(0.1)  # a store tells nobody of its rows


async def _rows(settings: Settings, table: str) -> dict[str, int]:
    connection = Connection(settings)
    try:
        client = await connection.client()
        rows: Sequence[Any] = (await client.query(f"SELECT key, n FROM {table}")).result_rows
        return dict(rows)
    finally:
        await connection.close()


async def _documents(settings: Settings) -> dict[str, int]:
    async with connect(settings) as client:
        await client.indices.refresh(index="counts")
        found = await client.search(index="counts", size=100)
    return {hit["_source"]["key"]: hit["_source"]["n"] for hit in found["hits"]["hits"]}


async def _drop(settings: Settings, table: str) -> None:
    connection = Connection(settings)
    try:
        client = await connection.client()
        await client.command(f"DROP VIEW IF EXISTS {table}")
        tables = (await client.query(f"SHOW TABLES LIKE '{table}%'")).result_rows
        for (name,) in tables:
            await client.command(f"DROP TABLE IF EXISTS {name}")
    finally:
        await connection.close()
