"""The open Elasticsearch sink: its client, and writes applied through the bulk road."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from elastic_transport import AiohttpHttpNode
from elasticsearch import ApiError, AsyncElasticsearch, TransportError

from projections.at_once import encode_at_once
from projections.authority import authority_file
from projections.concurrency import Concurrency
from projections.elasticsearch_answers import BulkSerializer
from projections.elasticsearch_bulk import Answer, BulkWriter
from projections.elasticsearch_errors import translated
from projections.elasticsearch_index import DeclaredIndex, PhysicalIndex
from projections.elasticsearch_lines import bulk_lines, bulk_lines_at_once
from projections.elasticsearch_purge import purge_tombstones
from projections.sink import Applied
from projections.writes import Upsert, Write
from tidegate_kernel.clock import Clock, SystemClock
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.settings import Settings

_REQUEST_TIMEOUT_SECONDS = 30.0
# How long the server itself waits for a missing primary shard; its default of a minute would outlive our own deadline.
_SHARD_TIMEOUT = "10s"
_BULK_QUERY = f"require_alias=true&timeout={_SHARD_TIMEOUT}&filter_path=took,errors,error,items.*.error,items.*.status"
_BULK_HEADERS = {"accept": "application/json", "content-type": "application/x-ndjson"}
_STREAMED_FROM_BYTES = 1024 * 1024


@asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator[AsyncElasticsearch]:
    """A client that retries nothing by itself: what may be repeated is decided here, item by item."""
    options: dict[str, Any] = {}
    if key := settings.elasticsearch_api_key.get_secret_value():
        options["api_key"] = key
    elif settings.elasticsearch_user:
        # Encoded here: the client knows Latin-1 only.
        login = f"{settings.elasticsearch_user}:{settings.elasticsearch_password.get_secret_value()}"
        options["basic_auth"] = b64encode(login.encode()).decode()
    if authority := authority_file(settings.elasticsearch_ca_file, setting="TIDEGATE_ELASTICSEARCH_CA_FILE"):
        options["ca_certs"] = authority
    try:
        client = AsyncElasticsearch(
            settings.elasticsearch_url,
            max_retries=0,
            retry_on_timeout=False,
            request_timeout=_REQUEST_TIMEOUT_SECONDS,
            node_class=_StreamingNode,
            serializers={"application/json": BulkSerializer()},
            **options,
        )
    except (ValueError, OSError) as error:
        # Without the client's own words: they may hold the URL with its password.
        raise Misconfigured(f"TIDEGATE_ELASTICSEARCH_…: cannot be used ({type(error).__name__})") from None
    async with client:
        yield client


class _StreamingNode(AiohttpHttpNode):
    """Sends big bodies in pieces: in one piece they would hold up the event loop, heartbeats included."""

    async def perform_request(  # type: ignore[override]  # as the class above, whose own base is synchronous
        self, method: str, target: str, body: bytes | None = None, *args: Any, **options: Any
    ) -> Any:
        big = body is not None and len(body) > _STREAMED_FROM_BYTES
        return await super().perform_request(method, target, io.BytesIO(body) if big else body, *args, **options)  # type: ignore[arg-type]  # aiohttp takes both

    def _log_request(self, *args: Any, **options: Any) -> None:
        """Nothing: the client would decode every body, payload included, as soon as anything handles logs."""


class ElasticsearchSink:
    """The open sink; see `projections.sink.Sink`."""

    def __init__(self, declared: DeclaredIndex, client: AsyncElasticsearch, clock: Clock | None = None) -> None:
        self._declared = declared
        self._client = client
        self._index = PhysicalIndex(declared, client)
        self._bulk_path = f"/{declared.write_alias}/_bulk?{_BULK_QUERY}"
        self._max_document_bytes = declared.max_document_bytes
        self._clock = clock or SystemClock()
        self._concurrency = Concurrency(self._clock)
        self._writer = BulkWriter(
            declared.index,
            self._post,
            clock=self._clock,
            max_request_bytes=declared.max_request_bytes,
            concurrency=self._concurrency,
        )

    @property
    def request_limit(self) -> int:
        return self._concurrency.limit

    async def prepare(self) -> None:
        await self._index.prepare()

    async def check(self) -> None:
        await self._index.check()

    async def reset(self) -> None:
        await self._index.reset()

    async def documents(self) -> int:
        return await self._index.documents()

    def encode(self, write: Write) -> bytes:
        return bulk_lines(write, self._max_document_bytes, self._clock)

    def encode_all(self, writes: Sequence[Write]) -> Sequence[bytes]:
        """As `encode` of each; all upserts at once, which costs about half."""
        return encode_at_once(writes, self._upserts, self.encode)

    def _upserts(self, writes: Sequence[Upsert]) -> list[bytes]:
        return bulk_lines_at_once(writes, self._max_document_bytes)

    async def apply(self, encoded: Sequence[bytes]) -> Applied:
        return await self._writer.apply(encoded)

    async def refresh(self) -> None:
        name = self._declared.physical
        with translated(self._declared.index):
            shards = (await self._client.indices.refresh(index=name))["_shards"]
            if shards["failed"]:
                raise Transient(f"index {name!r}: {shards['failed']} of {shards['total']} shard copies did not refresh")
            # A copy that is nowhere is no failure to the server. Readers can do without a replica, not without a shard.
            if shards["successful"] < shards["total"] and (missing := await self._missing_shards()):
                raise Transient(f"index {name!r}: {missing} shards are on no node; what is in them cannot be seen")

    async def _missing_shards(self) -> int:
        found = await self._client.search_shards(index=self._declared.physical)
        return sum(not any(copy["state"] == "STARTED" for copy in copies) for copies in found["shards"])

    async def purge(self, before: datetime, most: int) -> int:
        return await purge_tombstones(
            self._client, self._post_deletes, self._declared.physical, before=before, most=most
        )

    async def probe(self) -> bool:
        try:
            await self._client.indices.exists(index=self._declared.physical)
        except TransportError:
            return False
        except ApiError as error:
            return error.status_code < 429
        return True

    async def _post(self, body: bytes) -> Answer:
        return await self._post_to(self._bulk_path, body)

    async def _post_deletes(self, body: bytes) -> Answer:
        # Every item is wanted, also of an answer without errors.
        return await self._post_to(self._bulk_path.replace("took,errors,", ""), body)

    async def _post_to(self, path: str, body: bytes) -> Answer:
        try:
            response = await self._client.perform_request("POST", path, headers=_BULK_HEADERS, body=body)
        except TransportError as error:
            raise Transient(f"index {self._declared.index!r}: {type(error).__name__}: {error.message}") from error
        except ApiError as error:
            return Answer(error.status_code, error.body)
        return Answer(response.meta.status, response.body)
