"""The open Elasticsearch sink: index and aliases made and compared, writes applied through the bulk road."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

from elastic_transport import AiohttpHttpNode
from elasticsearch import ApiError, AsyncElasticsearch, TransportError, UnsupportedProductError

from projections.authority import authority_file
from projections.documents import DELETED
from projections.elasticsearch_answers import BulkSerializer
from projections.elasticsearch_bulk import DENIED, Answer, BulkWriter
from projections.elasticsearch_lines import bulk_lines
from projections.sink import Applied
from projections.writes import Write
from tidegate_kernel.clock import Clock, SystemClock
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.settings import Settings

_REQUEST_TIMEOUT_SECONDS = 30.0
# How long the server itself waits for a missing primary shard; its default of a minute would outlive our own deadline.
_SHARD_TIMEOUT = "10s"
_BULK_QUERY = f"require_alias=true&timeout={_SHARD_TIMEOUT}&filter_path=took,errors,error,items.*.error,items.*.status"
_BULK_HEADERS = {"accept": "application/json", "content-type": "application/x-ndjson"}
_STREAMED_FROM_BYTES = 1024 * 1024

_ONLY_LIVE = {"bool": {"must_not": {"term": {DELETED: True}}}}


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


class DeclaredIndex(Protocol):
    """What the sink has to know of its index; `projections.elasticsearch.Elasticsearch` says it."""

    @property
    def index(self) -> str: ...
    @property
    def physical(self) -> str: ...
    @property
    def write_alias(self) -> str: ...
    @property
    def all_mappings(self) -> dict[str, Any]: ...
    @property
    def settings(self) -> Mapping[str, Any] | None: ...
    @property
    def max_document_bytes(self) -> int: ...
    @property
    def max_request_bytes(self) -> int: ...


class ElasticsearchSink:
    """The open sink; see `projections.sink.Sink`."""

    def __init__(self, declared: DeclaredIndex, client: AsyncElasticsearch, clock: Clock | None = None) -> None:
        self._declared = declared
        self._client = client
        self._bulk_path = f"/{declared.write_alias}/_bulk?{_BULK_QUERY}"
        self._max_document_bytes = declared.max_document_bytes
        self._writer = BulkWriter(
            declared.index, self._post, clock=clock or SystemClock(), max_request_bytes=declared.max_request_bytes
        )

    async def prepare(self) -> None:
        with _translated(self._declared.index):
            if not await self._create():
                # An index that was there: new fields are added, a changed one is refused by the server.
                await self._client.indices.put_mapping(index=self._declared.physical, **self._declared.all_mappings)
                await self._add_missing_aliases()
        await self.check()

    async def check(self) -> None:
        declared = self._declared
        with _translated(declared.index):
            found = await self._client.indices.get(index=declared.physical, ignore_unavailable=True)
        if declared.physical not in found:
            raise Misconfigured(f"index {declared.physical!r} is not there; run 'tidegate migrate'")
        index = found[declared.physical]
        if declared.write_alias not in index["aliases"]:
            raise Misconfigured(f"alias {declared.write_alias!r} is not there; run 'tidegate migrate'")
        if index["aliases"].get(declared.index, {}).get("filter") is None:
            raise Misconfigured(
                f"alias {declared.index!r} does not show index {declared.physical!r} without its tombstones; "
                "run 'tidegate migrate'"
            )
        if differing := list(_differences(declared.all_mappings, index["mappings"])):
            raise Misconfigured(
                f"index {declared.physical!r} differs from its declaration in {', '.join(differing)}; "
                "run 'tidegate migrate', or declare another index if a field's type changed"
            )

    def encode(self, write: Write) -> bytes:
        return bulk_lines(write, self._max_document_bytes)

    async def apply(self, encoded: Sequence[bytes]) -> Applied:
        return await self._writer.apply(encoded)

    async def probe(self) -> bool:
        try:
            await self._client.indices.exists(index=self._declared.physical)
        except TransportError:
            return False
        except ApiError as error:
            return error.status_code < 429
        return True

    async def _post(self, body: bytes) -> Answer:
        try:
            response = await self._client.perform_request("POST", self._bulk_path, headers=_BULK_HEADERS, body=body)
        except TransportError as error:
            raise Transient(f"index {self._declared.index!r}: {type(error).__name__}: {error.message}") from error
        except ApiError as error:
            return Answer(error.status_code, error.body)
        return Answer(response.meta.status, response.body)

    async def _create(self) -> bool:
        """Whether this call made the index; index and aliases appear together."""
        declared = self._declared
        readers: dict[str, Mapping[str, Any]] = {declared.index: {"filter": _ONLY_LIVE}}
        aliases = {**readers, declared.write_alias: {"is_hidden": True}}
        try:
            await self._client.indices.create(
                index=declared.physical, mappings=declared.all_mappings, settings=declared.settings, aliases=aliases
            )
        except ApiError as error:
            if error.message == "resource_already_exists_exception":
                return False
            raise
        return True

    async def _add_missing_aliases(self) -> None:
        declared = self._declared
        add = [{"index": declared.physical, "alias": declared.write_alias, "is_hidden": True}]
        # Another generation may own the readers' alias by now: only a swap moves it.
        if not await self._client.indices.exists_alias(name=declared.index):
            add.append({"index": declared.physical, "alias": declared.index, "filter": _ONLY_LIVE})
        await self._client.indices.update_aliases(actions=[{"add": each} for each in add])


def _differences(declared: Mapping[str, Any], found: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Fields that are declared and missing or of another type. Fields that nobody declares any more do no harm."""
    present = found.get("properties", {})
    for name, field in declared.get("properties", {}).items():
        where = f"{path}.{name}" if path else name
        if name not in present or field.get("type", "object") != present[name].get("type", "object"):
            yield f"field {where!r}"
        else:
            yield from _differences(field, present[name], where)


@contextmanager
def _translated(index: str) -> Iterator[None]:
    try:
        yield
    except TransportError as error:
        raise Transient(f"index {index!r}: {type(error).__name__}: {error.message}") from error
    except ApiError as error:
        if error.status_code == 429 or error.status_code >= 500:
            raise Transient(f"index {index!r}: {error.status_code} {error.message}") from error
        raise Misconfigured(
            f"index {index!r}: {error.status_code} {error.message}{_cause(error)}{_remedy(error)}"
        ) from error


def _cause(error: ApiError) -> str:
    """What the server says about our declaration; no document is involved."""
    body = error.body if isinstance(error.body, dict) else {}
    details = body.get("error")
    reason = str(details.get("reason", ""))[:300] if isinstance(details, dict) else ""
    return f": {reason}" if reason else ""


def _remedy(error: ApiError) -> str:
    """What to look at, where it is not our declaration that the server refuses."""
    if error.status_code in (401, 403):
        return "; " + DENIED
    if error.status_code == 405 or not isinstance(error.body, dict) or isinstance(error, UnsupportedProductError):
        return "; is TIDEGATE_ELASTICSEARCH_URL the address of an Elasticsearch?"
    if error.status_code == 400:
        return "; compare the declaration with what is there, or declare another index"
    return ""
