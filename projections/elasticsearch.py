"""Elasticsearch as a sink: one physical index a generation behind an alias that hides tombstones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from projections.documents import DELETED
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.settings import Settings

if TYPE_CHECKING:
    from projections.elasticsearch_sink import ElasticsearchSink

_DEFAULT_REQUEST_BYTES = 8 * 1024 * 1024
_DEFAULT_DOCUMENT_BYTES = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Elasticsearch:
    """Documents go to the index behind alias `index`, which shows all but the deleted ones.

    `mappings` as Elasticsearch takes them, `{"properties": {…}}`; fields they do not name are refused
    (`dynamic: strict`) unless `dynamic` is declared. `settings` are the index's own, used when it is created. A
    document of more than `max_document_bytes` is a dead letter; a request holds up to `max_request_bytes`. Raises
    Misconfigured for mappings that cannot be ours.
    """

    index: str
    mappings: Mapping[str, Any]
    settings: Mapping[str, Any] | None = None
    batch_size: int = 1000
    max_document_bytes: int = _DEFAULT_DOCUMENT_BYTES
    max_request_bytes: int = _DEFAULT_REQUEST_BYTES

    def __post_init__(self) -> None:
        properties, me = self.mappings.get("properties"), f"Elasticsearch(index={self.index!r})"
        if not isinstance(properties, Mapping):
            raise Misconfigured(
                f"{me}: mappings need 'properties', as in {{'properties': {{'id': {{'type': 'keyword'}}}}}}"
            )
        if DELETED in properties:
            raise Misconfigured(f"{me}: the field {DELETED!r} is Tidegate's own; choose another name")

    @property
    def name(self) -> str:
        return self.index

    @property
    def store(self) -> str:
        return "elasticsearch"

    @property
    def physical(self) -> str:
        """The index itself. Its generation is part of the name, so that a rebuild fills another beside it."""
        return f"{self.index}-g1"

    @property
    def write_alias(self) -> str:
        """The alias that we write through: a missing alias is an error, where a missing index would be made up
        by the server, without our mappings."""
        return f"{self.physical}-write"

    @property
    def all_mappings(self) -> dict[str, Any]:
        """The declared mappings with the tombstone's mark, closed to unknown fields unless declared open."""
        properties = {**self.mappings["properties"], DELETED: {"type": "boolean"}}
        return {"dynamic": "strict", **self.mappings, "properties": properties}

    def where(self, settings: Settings) -> str:
        return f"elasticsearch at {settings.elasticsearch_url} (TIDEGATE_ELASTICSEARCH_URL)"

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[ElasticsearchSink]:
        # Not at import: who runs another job should not wait for this client.
        from projections.elasticsearch_sink import ElasticsearchSink, connect

        async with connect(settings) as client:
            yield ElasticsearchSink(self, client)
