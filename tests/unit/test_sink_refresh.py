"""When a store may call its writes visible: all of it took part. On clients that play the servers' answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from elasticsearch import AsyncElasticsearch

from projections.clickhouse import ClickHouse
from projections.clickhouse_connection import Connection
from projections.clickhouse_sink import ClickHouseSink
from projections.elasticsearch import Elasticsearch
from projections.elasticsearch_sink import ElasticsearchSink
from tidegate_kernel.errors import Transient
from tidegate_kernel.settings import Settings

INDEX = Elasticsearch(index="orders", mappings={"properties": {"id": {"type": "keyword"}}})
TABLE = ClickHouse(table="orders", columns={"id": "String"}, order_by=("id",))
STARTED, NOWHERE = {"state": "STARTED"}, {"state": "UNASSIGNED"}


def index_sink(shards: dict[str, int], copies: list[list[dict[str, str]]]) -> ElasticsearchSink:
    """An index whose refresh is answered by `shards`, and whose shards have these copies."""

    async def refresh(index: str) -> Any:
        return {"_shards": shards}

    async def search_shards(index: str) -> Any:
        return {"shards": copies}

    client = SimpleNamespace(indices=SimpleNamespace(refresh=refresh), search_shards=search_shards)
    return ElasticsearchSink(INDEX, cast("AsyncElasticsearch", client))


async def test_shard_that_did_not_refresh_makes_nothing_visible() -> None:
    """A reader may be answered by just that copy."""
    with pytest.raises(Transient, match="1 of 4 shard copies did not refresh"):
        await index_sink({"total": 4, "successful": 3, "failed": 1}, [[STARTED], [STARTED]]).refresh()


async def test_shard_that_is_nowhere_makes_nothing_visible() -> None:
    """The server counts a missing primary as no failure: what is in it is not seen by anybody."""
    for copies in ([[STARTED], []], [[STARTED], [NOWHERE]]):
        with pytest.raises(Transient, match="1 shards are on no node"):
            await index_sink({"total": 2, "successful": 1, "failed": 0}, copies).refresh()


async def test_missing_replica_keeps_nothing_invisible() -> None:
    """A cluster of one node would never be fresh: no reader is answered by a copy that is nowhere."""
    await index_sink({"total": 2, "successful": 1, "failed": 0}, [[STARTED, NOWHERE]]).refresh()


@pytest.mark.parametrize(
    "settings, expected",
    [
        (None, {"refresh_interval": "-1"}),
        ({"number_of_replicas": 0}, {"refresh_interval": "-1", "number_of_replicas": 0}),
        ({"refresh_interval": "5s"}, {"refresh_interval": "5s"}),
        ({"index.refresh_interval": "5s"}, {"index.refresh_interval": "5s"}),
        ({"index": {"refresh_interval": "5s"}}, {"index": {"refresh_interval": "5s"}}),
    ],
)
def test_server_refreshes_by_itself_only_where_that_was_declared(
    settings: dict[str, Any] | None, expected: dict[str, Any]
) -> None:
    """Two refreshers cost twice; who declares an interval has a reason."""
    declared = Elasticsearch(index="orders", mappings={"properties": {}}, settings=settings)

    assert declared.all_settings == expected


class _Table(Connection):
    """A table of this engine; keeps what was asked of it."""

    def __init__(self, engine: str) -> None:
        super().__init__(Settings())
        self._engine = engine
        self.asked: list[str] = []

    async def client(self) -> Any:
        return self

    async def command(self, text: str, parameters: object = None) -> str:
        self.asked.append(text)
        return self._engine if text.startswith("SELECT any(engine)") else ""


@pytest.mark.parametrize(
    "engine, synced", [("ReplacingMergeTree", 0), ("ReplicatedReplacingMergeTree", 2), ("SharedMergeTree", 0)]
)
async def test_only_a_replica_has_to_fetch_what_others_took(engine: str, synced: int) -> None:
    """On a single server an acknowledged insert is visible; its engine is asked for once."""
    table = _Table(engine)
    sink = ClickHouseSink(TABLE.versioned_table, TABLE.rows, table)

    await sink.refresh()
    await sink.refresh()

    assert sum("SYSTEM SYNC REPLICA `orders_g1` LIGHTWEIGHT" in text for text in table.asked) == synced
    assert len(table.asked) == synced + 1
