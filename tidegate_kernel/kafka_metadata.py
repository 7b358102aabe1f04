"""Topic ids and partitions through one Metadata v12 request, which the client itself does not offer.

The wire format is Kafka's own: https://kafka.apache.org/protocol.html#The_Messages_Metadata (version 12, flexible).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from uuid import UUID

from aiokafka.errors import KafkaError
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from tidegate_kernel.source import SourceFailure

NO_ID = UUID(int=0)
_UNKNOWN_TOPIC = 3


class _Uuid:
    @classmethod
    def encode(cls, value: UUID) -> bytes:
        return value.bytes

    @classmethod
    def decode(cls, stream: BytesIO) -> UUID:
        return UUID(bytes=stream.read(16))


_TEXT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)


class _MetadataResponse(Response):  # type: ignore[misc]  # the client ships no types
    API_KEY = 3
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_ms", Int32),
        ("brokers", CompactArray(("id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT), _TAGS)),
        ("cluster", _TEXT),
        ("controller", Int32),
        (
            "topics",
            CompactArray(
                ("error", Int16),
                ("name", _TEXT),
                ("id", _Uuid),
                ("internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline", CompactArray(Int32)),
                        _TAGS,
                    ),
                ),
                ("operations", Int32),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class _MetadataRequestV12(RequestStruct):  # type: ignore[misc]  # the client ships no types
    API_KEY = 3
    API_VERSION = 12
    RESPONSE_TYPE = _MetadataResponse
    FLEXIBLE_VERSION = True
    SCHEMA = Schema(
        ("topics", CompactArray(("id", _Uuid), ("name", _TEXT), _TAGS)),
        ("auto_create", Boolean),
        ("operations", Boolean),
        _TAGS,
    )


class _MetadataRequest(Request[_MetadataRequestV12]):  # type: ignore[misc]  # the client ships no types
    API_KEY = 3

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics

    def build(self, request: Any) -> Any:
        return request([(NO_ID, name, {}) for name in self._topics], False, False, {})


_MetadataRequest._CLASSES = (_MetadataRequestV12,)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as a broker describes it now; no partitions means that it does not exist."""

    name: str
    id: UUID
    partitions: frozenset[int]


class TopicIds:
    """Asks a broker, over the client's own connection, for ids and partitions of topics."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def describe(self, topics: Sequence[str]) -> dict[str, TopicDescription]:
        """Returns every name of `topics`, unknown ones without partitions. Raises SourceFailure."""
        try:
            answer = await self._client.send(self._client.get_random_node(), _MetadataRequest(topics))
        except (KafkaError, OSError, AssertionError) as error:
            raise SourceFailure(f"metadata of {list(topics)}: {type(error).__name__}: {error}") from error
        found = {name: TopicDescription(name, NO_ID, frozenset()) for name in topics}
        for code, name, topic_id, _, partitions, *_ in answer.topics:
            if code == _UNKNOWN_TOPIC:
                continue
            found[name] = TopicDescription(name, topic_id, frozenset(p[1] for p in partitions))
        return found
