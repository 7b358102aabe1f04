"""The envelopes that Tidegate opens: CloudEvents, Debezium's outbox event router, and plain JSON objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from consumers.attributes import (
    add_trace,
    field_reader,
    field_text,
    field_time,
    field_version,
    header_version,
    invalid,
    read_fields,
    required_header,
    traceable,
)
from consumers.cloudevents import CloudEvents
from consumers.topics import Envelope, Opener, ScopeFields
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import Record

__all__ = ["CloudEvents", "DebeziumOutbox", "PlainJson"]


class _Wrapped(msgspec.Struct, forbid_unknown_fields=True):
    """What Kafka Connect's JsonConverter writes while `schemas.enable` is on."""

    schema: msgspec.Raw
    payload: msgspec.Raw


_QUOTE, _BRACE = b'"', ord("{")
_WRAPPINGS = frozenset({ord('"'), _BRACE})
_read_wrapped = msgspec.json.Decoder(_Wrapped).decode
_read_text = msgspec.json.Decoder(str).decode


@dataclass(frozen=True, slots=True)
class DebeziumOutbox:
    """Records of Debezium's outbox event router.

    The event id is in the header `id_header`; type and, where named, schema version and source are headers that the
    router's `table.fields.additional.placement` sets (`type:header:eventType`). The record's key is the aggregate id,
    its timestamp the event's time. The value is the payload: JSON, JSON inside a JSON string (`expand.json.payload`
    off), or either with Connect's schema around it. Tenant and brand are the headers that the topic's `ScopeFields`
    name.
    """

    id_header: str = "id"
    type_header: str = "eventType"
    version_header: str | None = None
    source: str = ""
    source_header: str | None = None

    def opener(self, scope: ScopeFields) -> Opener:
        id_header, type_header, version_header = self.id_header, self.type_header, self.version_header
        named = (("source", self.source_header), ("tenant", scope.tenant), ("brand", scope.brand))
        optional = [(role, name) for role, name in named if name is not None]

        def open_record(record: Record) -> Envelope:
            headers = dict(record.headers)
            identity, type_ = _connect_text(headers, id_header), _connect_text(headers, type_header)
            envelope = Envelope(identity, type_, _unwrapped(record.value or b""), 1, self.source)
            for role, name in optional:
                if name in headers:
                    setattr(envelope, role, _connect_text(headers, name))
            if version_header is not None and version_header in headers:
                version = _connect_text(headers, version_header)
                envelope.version = header_version(version.encode(), version_header)
            add_trace(envelope, headers)
            return envelope

        return open_record


def _connect_text(headers: Mapping[str, bytes | None], name: str) -> str:
    """A header's text, also where Connect's header converter is the JsonConverter and not the default."""
    value = headers.get(name)
    if not value:
        return required_header(headers, name)
    if value[0] in _WRAPPINGS:
        value = bytes(_unwrapped(value))
        if not value or value[0] == _BRACE:
            raise invalid(f"header {name!r} is not plain text")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise invalid(f"header {name!r} is not UTF-8") from None


def _unwrapped(value: bytes) -> bytes | msgspec.Raw:
    """The payload without Connect's schema and without string quotes; what is not wrapped comes back as it is."""
    inner: bytes | msgspec.Raw = value
    try:
        # The converter writes the schema first and no blanks: a payload of its own with such a field is left alone.
        if value.startswith(b'{"schema":'):
            inner = _read_wrapped(value).payload
        elif value[:1] != _QUOTE:
            return value
        return _read_text(inner).encode() if bytes(inner)[:1] == _QUOTE else inner
    except (ValueError, RecursionError):
        # Not Connect's wrapping after all, or broken: the topic's format says exactly what is wrong.
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainJson:
    """JSON objects with the envelope among their own fields; each parameter names a field, None says there is none.

    Without an id field, or with none in a record, the event has no id and is known by its place in the topic.
    `type_value` is the type where there is no type field or a record lacks it. `occurred_at` is RFC 3339 text (no zone:
    UTC) or integer milliseconds since 1970. `source` is a constant. `data` names the object with the payload; None: the
    whole value is the payload. Tenant and brand are the fields that the topic's `ScopeFields` name.
    """

    id: str | None = "event_id"
    type: str | None = "type"
    type_value: str = ""
    version: str | None = None
    occurred_at: str | None = None
    source: str = ""
    data: str | None = None
    correlation_id: str | None = None

    def __post_init__(self) -> None:
        if self.type is None and not self.type_value:
            raise Misconfigured("PlainJson without a type: name the field in 'type' or the type itself in 'type_value'")

    def opener(self, scope: ScopeFields) -> Opener:
        decoder = self._reader(scope)

        def open_record(record: Record) -> Envelope:
            value = record.value or b""
            fields = read_fields(decoder, value)
            envelope = Envelope(
                field_text(fields.id) or None,
                fields.type or self._type_of_untyped(),
                value if self.data is None else self._payload(fields),
                1 if fields.version is None else field_version(fields.version, self.version or ""),
                self.source,
                field_text(fields.tenant),
                field_text(fields.brand),
                field_time(fields.occurred_at, self.occurred_at or ""),
                traceable(fields.correlation_id),
            )
            if record.headers:
                add_trace(envelope, dict(record.headers))
            return envelope

        return open_record

    def _reader(self, scope: ScopeFields) -> msgspec.json.Decoder[Any]:
        return field_reader(
            {
                "id": (self.id, str | int),
                "type": (self.type, str),
                "version": (self.version, int | str),
                "occurred_at": (self.occurred_at, datetime | int),
                "tenant": (scope.tenant, str | int),
                "brand": (scope.brand, str | int),
                "correlation_id": (self.correlation_id, str | int),
                "data": (self.data, msgspec.Raw),
            }
        )

    def _type_of_untyped(self) -> str:
        if not self.type_value:
            raise invalid(f"field {self.type!r} is missing or empty")
        return self.type_value

    def _payload(self, fields: Any) -> msgspec.Raw:
        if fields.data is None:
            raise invalid(f"field {self.data!r} is missing")
        payload: msgspec.Raw = fields.data
        return payload
