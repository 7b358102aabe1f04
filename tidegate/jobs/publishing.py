"""Events that handlers publish, as binary CloudEvents 1.0 on Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid5

import msgspec
from pydantic import BaseModel

from tidegate_kernel.event import Event
from tidegate_kernel.source import Outgoing

# Ours alone; a change would give repeats of old events new ids.
_NAMESPACE = UUID("0c2c51f4-9f0e-4b8e-8f5c-74696465677a")


def publication(
    job: str,
    cause: Event[Any],
    ordinal: int,
    *,
    topic: str,
    data: Any,
    key: str | bytes | None,
    type_: str | None,
    headers: Mapping[str, str],
) -> Outgoing:
    """Returns the record; its id is a function of job, causing event and ordinal alone."""
    record = cause.record
    origin = cause.id or f"{record.topic}:{record.partition}:{record.offset}"
    attributes = {
        "id": str(uuid5(_NAMESPACE, f"{len(job)}:{job}{len(cause.source)}:{cause.source}{origin}#{ordinal}")),
        "source": job,
        "type": type_ or type(data).__name__,
        "time": cause.occurred_at.isoformat(),
        **_known(correlationid=cause.correlation_id or cause.id, traceparent=cause.traceparent),
        **_known(tenantid=cause.scope.tenant, brandid=cause.scope.brand),
    }
    return cloud_event(topic, data, attributes=attributes, key=key, headers=headers)


def cloud_event(
    topic: str,
    data: Any,
    *,
    attributes: Mapping[str, str],
    key: str | bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timestamp: datetime | None = None,
) -> Outgoing:
    """Returns `data` (a model, mapping or JSON bytes) as a record of `topic` with `ce_` headers for `attributes`."""
    told = {"content-type": "application/json", "ce_specversion": "1.0"}
    told |= {f"ce_{name}": text for name, text in attributes.items()}
    told |= headers or {}
    return Outgoing(
        topic,
        payload(data),
        key=key.encode() if isinstance(key, str) else key,
        headers=[(name, text.encode()) for name, text in told.items()],
        timestamp=None if timestamp is None else int(timestamp.astimezone(UTC).timestamp() * 1000),
    )


def payload(data: Any) -> bytes:
    """`data` as JSON bytes: pydantic models, msgspec Structs, dataclasses, mappings; bytes as they are."""
    match data:
        case bytes():
            return data
        case BaseModel():
            return data.model_dump_json().encode()
        case _:
            return msgspec.json.encode(data)


def _known(**attributes: str | None) -> dict[str, str]:
    return {name: text for name, text in attributes.items() if text}
