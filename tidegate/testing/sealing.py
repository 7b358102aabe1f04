"""From a model to the record that a producer of the topic would write: the reverse of opening an envelope."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from consumers.envelopes import CloudEvents, DebeziumOutbox, PlainJson
from consumers.routes import Route
from consumers.topics import Topic
from tidegate_kernel.errors import Misconfigured

_Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """What stands around the payload."""

    id: str
    type: str
    version: int
    source: str
    tenant: str
    brand: str
    occurred_at: datetime


def route_for(routes: Iterable[Route[Any]], data: Any, type_: str | None, *, topic: str) -> tuple[str, int]:
    """Returns event type and schema version for `data`: those that were told, else of the routes for its class.

    Raises Misconfigured if that leaves a choice or none.
    """
    if type_ is not None:
        versions = [route.version for route in routes if route.type == type_]
        return type_, max(versions, default=1)
    found = {route.type: route.version for route in routes if route.model is type(data)}
    if len(found) != 1:
        told = f"several event types ({', '.join(sorted(found))})" if found else "no event type"
        raise Misconfigured(f"topic {topic!r}: jobs take {told} with model {type(data).__name__}; give type='…'")
    return next(iter(found.items()))


def seal(topic: Topic, data: Any, attributes: Attributes) -> tuple[bytes, _Headers]:
    """Returns value and headers. Raises Misconfigured for an envelope that only `send_raw` can make."""
    match topic.envelope:
        case CloudEvents():
            return topic.format.encode(data), _cloud_event(topic, attributes)
        case DebeziumOutbox() as envelope:
            return topic.format.encode(data), _debezium(topic, envelope, attributes)
        case PlainJson() as envelope:
            return _plain(topic, envelope, data, attributes), []
        case other:
            raise Misconfigured(f"topic {topic.name!r} has envelope {type(other).__name__}; use send_raw")


def _cloud_event(topic: Topic, attributes: Attributes) -> _Headers:
    told = {
        "content-type": "application/json",
        "ce_specversion": "1.0",
        "ce_id": attributes.id,
        "ce_source": attributes.source,
        "ce_type": attributes.type,
        "ce_time": attributes.occurred_at.isoformat(),
        "ce_dataversion": str(attributes.version),
        f"ce_{topic.scope.tenant}": attributes.tenant if topic.scope.tenant else "",
        f"ce_{topic.scope.brand}": attributes.brand if topic.scope.brand else "",
    }
    return _encoded(told)


def _debezium(topic: Topic, envelope: DebeziumOutbox, attributes: Attributes) -> _Headers:
    told = {
        envelope.id_header: attributes.id,
        envelope.type_header: attributes.type,
        envelope.version_header: str(attributes.version),
        envelope.source_header: attributes.source,
        topic.scope.tenant: attributes.tenant,
        topic.scope.brand: attributes.brand,
    }
    return _encoded({name: text for name, text in told.items() if name is not None})


def _plain(topic: Topic, envelope: PlainJson, data: Any, attributes: Attributes) -> bytes:
    payload = msgspec.Raw(topic.format.encode(data))
    fields: dict[str, Any] = dict(msgspec.json.decode(payload)) if envelope.data is None else {envelope.data: payload}
    told = {
        envelope.id: attributes.id,
        envelope.type: attributes.type,
        envelope.version: attributes.version,
        envelope.occurred_at: attributes.occurred_at.isoformat(),
        topic.scope.tenant: attributes.tenant,
        topic.scope.brand: attributes.brand,
    }
    fields |= {name: value for name, value in told.items() if name is not None and value != ""}
    return msgspec.json.encode(fields)


def _encoded(told: Mapping[str, str]) -> _Headers:
    return [(name, text.encode()) for name, text in told.items() if text]
