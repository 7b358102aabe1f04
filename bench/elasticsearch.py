"""Real Elasticsearch: an index of one run, written to by our sink, and by hand through the store's own client."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
from elasticsearch import AsyncElasticsearch

from bench.stub import Stopwatch
from bench.to_store import contestants
from projections.elasticsearch import Elasticsearch
from projections.elasticsearch_sink import ElasticsearchSink, connect
from projections.sink import Applied, SinkDeclaration
from projections.writes import Upsert
from tidegate_kernel.settings import Settings

_KEYWORDS = ("order_id", "tenant", "customer_id", "currency", "channel")
_NUMBERS = ("total_cents", "items", "version")
_FIELDS = {name: {"type": "keyword"} for name in _KEYWORDS} | {name: {"type": "long"} for name in _NUMBERS}
_NDJSON = {"accept": "application/json", "content-type": "application/x-ndjson"}

_encode = msgspec.json.Encoder().encode


class Index:
    """Declaration and way by hand. `settings` are the index's own."""

    def __init__(self, stopwatch: Stopwatch, **settings: Any) -> None:
        self._stopwatch = stopwatch
        self._declared = Elasticsearch(
            index=f"bench-{secrets.token_hex(4)}",
            mappings={"properties": _FIELDS},
            settings={"number_of_replicas": 0, **settings},
        )
        self.name, self.store = self._declared.name, self._declared.store
        self.batch_size = self._declared.batch_size

    @property
    def declaration(self) -> SinkDeclaration:
        return self

    def where(self, settings: Settings) -> str:
        return self._declared.where(settings)

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[TimedSink]:
        async with connect(settings) as client:
            yield TimedSink(self._declared, client, self._stopwatch)

    @asynccontextmanager
    async def by_hand(self, settings: Settings) -> AsyncIterator[BulkByHand]:
        async with AsyncElasticsearch(settings.elasticsearch_url) as client:
            yield BulkByHand(client, self._declared.physical, self._stopwatch)

    async def drop(self, settings: Settings) -> None:
        async with connect(settings) as client:
            await client.indices.delete(index=self._declared.physical)
            await client.indices.delete_index_template(name=f"tidegate-{self._declared.physical}")


class TimedSink(ElasticsearchSink):
    """The sink as it is; each batch that is in is told to the stopwatch."""

    def __init__(self, declared: Elasticsearch, client: Any, stopwatch: Stopwatch) -> None:
        super().__init__(declared, client)
        self._stopwatch = stopwatch

    async def apply(self, encoded: Sequence[bytes]) -> Applied:
        applied = await super().apply(encoded)
        self._stopwatch.passed(len(encoded))
        return applied


class BulkByHand:
    """Lines put together by hand, one bulk request a batch, and of its answer the one word that matters."""

    def __init__(self, client: AsyncElasticsearch, index: str, stopwatch: Stopwatch) -> None:
        self._client, self._stopwatch = client, stopwatch
        self._path = f"/{index}/_bulk?filter_path=errors"

    def form(self, write: Upsert) -> bytes:
        action = b'{"index":{"_id":"%b","version":%d,"version_type":"external_gte"}}\n'
        return b"%b%b\n" % (action % (write.id.encode(), write.version), _encode(write.document))

    def body(self, formed: Sequence[bytes]) -> bytes:
        return b"".join(formed)

    async def send(self, formed: Sequence[bytes]) -> None:
        await self.post(self.body(formed), len(formed))

    async def post(self, body: bytes, rows: int) -> None:
        answer = await self._client.perform_request("POST", self._path, headers=_NDJSON, body=body)
        if answer["errors"]:
            raise RuntimeError("Elasticsearch refused some of a request")
        self._stopwatch.passed(rows)


# Tidegate refreshes its index once a second; the others' does it by itself.
CONTESTANTS = contestants("elasticsearch", ours=Index, theirs=partial(Index, refresh_interval="1s"))
