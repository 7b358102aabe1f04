"""Elasticsearch as a sink: one physical index a generation behind an alias that hides tombstones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from projections.documents import DELETED, DELETED_AT
from projections.elasticsearch_lines import stored_id
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
    (`dynamic: strict`) unless `dynamic` is declared. `settings` are the index's own, used when it is created; without a
    `refresh_interval` Tidegate alone refreshes it, once a second while there is something new. A document of more than
    `max_document_bytes` is a dead letter; a request holds up to `max_request_bytes`. Raises Misconfigured for mappings
    that cannot be ours.
    """

    index: str
    mappings: Mapping[str, Any]
    settings: Mapping[str, Any] | None = None
    new_fields: Literal["rebuild", "add"] = "rebuild"
    batch_size: int = 1000
    max_document_bytes: int = _DEFAULT_DOCUMENT_BYTES
    max_request_bytes: int = _DEFAULT_REQUEST_BYTES

    def __post_init__(self) -> None:
        properties, me = self.mappings.get("properties"), f"Elasticsearch(index={self.index!r})"
        if not isinstance(properties, Mapping):
            raise Misconfigured(
                f"{me}: mappings need 'properties', as in {{'properties': {{'id': {{'type': 'keyword'}}}}}}"
            )
        if taken := {DELETED, DELETED_AT} & properties.keys():
            raise Misconfigured(f"{me}: the field {min(taken)!r} is Tidegate's own; choose another name")
        if self.new_fields not in ("rebuild", "add"):
            raise Misconfigured(f"{me}: new_fields must be 'rebuild' or 'add', not {self.new_fields!r}")

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
        """The declared mappings with the tombstone's fields, closed to unknown ones unless declared open."""
        ours = {DELETED: {"type": "boolean"}, DELETED_AT: {"type": "date", "format": "epoch_millis"}}
        properties = {**self.mappings["properties"], **ours}
        return {"dynamic": "strict", **self.mappings, "properties": properties}

    @property
    def all_settings(self) -> dict[str, Any]:
        """The declared settings of the index. Unless they say otherwise, the server refreshes nothing by itself:
        Tidegate does, so that it knows what readers see."""
        declared = dict(self.settings or {})
        nested = declared.get("index", {})
        is_declared = "refresh_interval" in nested or {"refresh_interval", "index.refresh_interval"} & declared.keys()
        return declared if is_declared else {"refresh_interval": "-1", **declared}

    @staticmethod
    def stored_id(document_id: str) -> str:
        """The `_id` of a document, as readers have to ask for it: its own, or a hash where it has over 512 bytes.

        Ask by an ids query on `index`: reading `_doc/ID` passes the alias's filter by, and shows deleted ones.
        """
        return stored_id(document_id)

    def where(self, settings: Settings) -> str:
        return f"elasticsearch at {settings.elasticsearch_url} (TIDEGATE_ELASTICSEARCH_URL)"

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[ElasticsearchSink]:
        # Not at import: who runs another job should not wait for this client.
        from projections.elasticsearch_sink import ElasticsearchSink, connect

        async with connect(settings) as client:
            yield ElasticsearchSink(self, client)
