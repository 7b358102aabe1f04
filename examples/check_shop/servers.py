"""What is there: every row, document and record, read from the servers without any code of the shop."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import asyncpg
from aiokafka import AIOKafkaConsumer

_PAGE = 10_000  # Elasticsearch's own limit of a page


@dataclass(frozen=True)
class Addresses:
    """Where the servers are: the environment that the shop itself runs in."""

    kafka: str
    postgres: str
    elasticsearch: str
    clickhouse: str

    @classmethod
    def of_environment(cls) -> Addresses:
        names = ("KAFKA_BOOTSTRAP", "POSTGRES_DSN", "ELASTICSEARCH_URL", "CLICKHOUSE_URL")
        return cls(*(os.environ[f"TIDEGATE_{name}"] for name in names))


@dataclass(frozen=True)
class FoundRecord:
    """A record of a topic, byte for byte."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]

    def header(self, name: str) -> str | None:
        return next((value.decode("utf-8", "replace") for each, value in self.headers if each == name), None)


class Servers:
    """Open connections to all four."""

    def __init__(self, addresses: Addresses, postgres: Any, http: aiohttp.ClientSession) -> None:
        self._addresses, self._postgres, self._http = addresses, postgres, http

    async def rows(self, query: str, *arguments: object) -> list[Mapping[str, Any]]:
        """Rows of Postgres."""
        return [dict(row) for row in await self._postgres.fetch(query, *arguments)]

    async def documents(self, alias: str, *, sorted_by: str) -> dict[str, dict[str, Any]]:
        """All documents that readers of the alias see, by id."""
        base = f"{self._addresses.elasticsearch}/{alias}"
        await self._json("POST", f"{base}/_refresh", None)
        found: dict[str, dict[str, Any]] = {}
        after: list[Any] | None = None
        while True:
            query = {"size": _PAGE, "sort": [{sorted_by: "asc"}], "track_total_hits": False}
            query |= {"search_after": after} if after else {}
            hits = (await self._json("POST", f"{base}/_search", query))["hits"]["hits"]
            if not hits:
                return found
            found |= {hit["_id"]: hit["_source"] for hit in hits}
            after = hits[-1]["sort"]

    async def table(self, view: str) -> list[dict[str, Any]]:
        """All rows that readers of the ClickHouse view see."""
        query = f"SELECT * FROM `{view}` FORMAT JSONEachRow"  # noqa: S608  # the view's name is an argument of ours
        async with self._http.post(self._addresses.clickhouse, data=query.encode()) as answer:
            text = await answer.text()
            if answer.status != 200:
                raise RuntimeError(f"ClickHouse refused to read {view!r}: {answer.status} {text[:200]}")
        return [json.loads(line) for line in text.splitlines()]

    async def log_ends(self, topic: str) -> dict[int, int]:
        """The next offset of every partition."""
        async with self._reading(topic) as consumer:
            ends = await consumer.end_offsets(consumer.assignment())
        return {place.partition: end for place, end in ends.items()}

    async def records(self, topic: str) -> list[FoundRecord]:
        """Every record of the topic."""
        async with self._reading(topic) as consumer:
            ends = await consumer.end_offsets(consumer.assignment())
            found: list[FoundRecord] = []
            while any([await consumer.position(place) < end for place, end in ends.items()]):
                for batch in (await consumer.getmany(timeout_ms=500)).values():
                    found += map(_found, batch)
            return found

    @asynccontextmanager
    async def _reading(self, topic: str) -> AsyncIterator[Any]:
        """A reader without a group: it has all partitions."""
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=self._addresses.kafka, auto_offset_reset="earliest")
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()

    async def _json(self, method: str, url: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        async with self._http.request(method, url, json=body) as answer:
            found: dict[str, Any] = await answer.json()
            if answer.status != 200:
                raise RuntimeError(f"Elasticsearch refused {method} {url}: {answer.status}")
            return found


@asynccontextmanager
async def connected(addresses: Addresses) -> AsyncIterator[Servers]:
    """Yields the servers; everything is closed afterwards."""
    async with AsyncExitStack() as opened:
        http = await opened.enter_async_context(aiohttp.ClientSession())
        postgres = await asyncpg.connect(addresses.postgres)
        opened.push_async_callback(postgres.close)
        yield Servers(addresses, postgres, http)


def _found(record: Any) -> FoundRecord:
    return FoundRecord(record.topic, record.partition, record.offset, record.key, record.value, tuple(record.headers))
