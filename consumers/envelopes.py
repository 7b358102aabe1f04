"""The envelopes that Tidegate opens: CloudEvents, Debezium's outbox event router, and plain JSON objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from consumers.attributes import (
    ABSENT,
    field_reader,
    field_time,
    field_version,
    header_text,
    header_time,
    header_version,
    invalid,
    read_fields,
    required_header,
    trace_header,
    traceable,
)
from consumers.topics import Envelope, Opener, ScopeFields
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import Record

_Headers = Mapping[str, bytes | None]
_NO_DATA = msgspec.Raw(b"null")
_CLOUDEVENTS = b"application/cloudevents"
_CLOUDEVENTS_JSON = b"application/cloudevents+json"


@dataclass(frozen=True, slots=True)
class CloudEvents:
    """CloudEvents 1.0, binary and structured (JSON) mode, told apart record by record.

    The schema version is the extension `dataversion` (a whole number, else 1). Tenant and brand are the extensions that
    the topic's `ScopeFields` name. The correlation id is the extension `correlationid`, else the header
    `correlation-id` or `x-correlation-id`; the trace is the extension or header `traceparent`. A structured event
    without data decodes as JSON null.
    """

    def opener(self, scope: ScopeFields) -> Opener:
        tenant, brand = _extension(scope.tenant), _extension(scope.brand)
        structured = _StructuredEvents(scope)

        def open_record(record: Record) -> Envelope:
            headers = dict(record.headers)
            # Structured events may repeat their attributes as ce_ headers: the content type decides.
            if (headers.get("content-type") or ABSENT).startswith(_CLOUDEVENTS) or not _is_binary(headers):
                return structured.open(headers, record.value or b"")
            envelope = _open_binary(headers, record.value or b"")
            if tenant is not None and tenant in headers:
                envelope.tenant = header_text(headers[tenant], tenant)
            if brand is not None and brand in headers:
                envelope.brand = header_text(headers[brand], brand)
            return envelope

        return open_record


def _extension(name: str | None) -> str | None:
    return None if name is None else f"ce_{name}"


def _is_binary(headers: _Headers) -> bool:
    return "ce_specversion" in headers or "ce_id" in headers or "ce_type" in headers


def _open_binary(headers: _Headers, payload: bytes) -> Envelope:
    try:
        if headers["ce_specversion"] != b"1.0":
            raise _explain_binary(headers)
        # A missing value is no bytes: AttributeError. The exact complaint is worked out only then.
        identity = headers["ce_id"].decode()  # type: ignore[union-attr]
        type_, source = headers["ce_type"].decode(), headers["ce_source"].decode()  # type: ignore[union-attr]
    except (KeyError, AttributeError, UnicodeDecodeError):
        raise _explain_binary(headers) from None
    if not (identity and type_ and source):
        raise _explain_binary(headers)
    envelope = Envelope(identity, type_, payload, 1, source)
    time, version = headers.get("ce_time", ABSENT), headers.get("ce_dataversion", ABSENT)
    if time is not ABSENT:
        envelope.occurred_at = header_time(time, "ce_time")
    if version is not ABSENT:
        envelope.version = header_version(version, "ce_dataversion")
    _trace(envelope, headers)
    return envelope


def _explain_binary(headers: _Headers) -> Exception:
    if required_header(headers, "ce_specversion") != "1.0":
        return invalid("header 'ce_specversion' is not 1.0")
    for name in ("ce_id", "ce_source", "ce_type"):
        required_header(headers, name)
    return invalid("the ce_ headers are not readable")


def _trace(envelope: Envelope, headers: _Headers) -> None:
    correlation = trace_header(headers, "ce_correlationid", "correlation-id", "x-correlation-id")
    envelope.correlation_id = correlation
    envelope.traceparent = trace_header(headers, "ce_traceparent", "traceparent")


class _StructuredEvents:
    """CloudEvents whose attributes and data stand together in the value, a JSON object."""

    _REQUIRED = ("id", "source", "type")

    def __init__(self, scope: ScopeFields) -> None:
        self._decoder = field_reader(
            {
                "specversion": ("specversion", str),
                "id": ("id", str),
                "source": ("source", str),
                "type": ("type", str),
                "time": ("time", datetime),
                "version": ("dataversion", int | str),
                "tenant": (scope.tenant, str | int),
                "brand": (scope.brand, str | int),
                "correlation_id": ("correlationid", str | int),
                "traceparent": ("traceparent", str),
                "data": ("data", msgspec.Raw),
                "data_base64": ("data_base64", bytes),
            }
        )

    def open(self, headers: _Headers, value: bytes) -> Envelope:
        content_type = headers.get("content-type") or ABSENT
        if content_type.startswith(_CLOUDEVENTS) and not content_type.startswith(_CLOUDEVENTS_JSON):
            raise invalid(
                "header 'content-type' names a CloudEvents format or batch that is not read; send JSON events"
            )
        fields = read_fields(self._decoder, value)
        self._check(fields)
        return Envelope(
            fields.id,
            fields.type,
            _structured_data(fields),
            field_version(fields.version, "dataversion"),
            fields.source,
            _text(fields.tenant),
            _text(fields.brand),
            field_time(fields.time, "time"),
            traceable(fields.correlation_id) or trace_header(headers, "correlation-id", "x-correlation-id"),
            traceable(fields.traceparent) or trace_header(headers, "traceparent"),
        )

    def _check(self, fields: Any) -> None:
        if fields.specversion is None:
            raise invalid("no 'ce_specversion' header and no attribute 'specversion': not a CloudEvent")
        if fields.specversion != "1.0":
            raise invalid("attribute 'specversion' is not 1.0")
        for name in self._REQUIRED:
            if not getattr(fields, name):
                raise invalid(f"attribute {name!r} is missing or empty")


def _structured_data(fields: Any) -> bytes | msgspec.Raw:
    if fields.data_base64 is None:
        return _NO_DATA if fields.data is None else fields.data
    if fields.data is not None:
        raise invalid("attributes 'data' and 'data_base64' exclude each other")
    encoded: bytes = fields.data_base64
    return encoded


def _text(value: str | int | None) -> str:
    return "" if value is None else str(value)


class _Wrapped(msgspec.Struct, forbid_unknown_fields=True):
    """What Kafka Connect's JsonConverter writes while `schemas.enable` is on."""

    schema: msgspec.Raw
    payload: msgspec.Raw


_read_wrapped = msgspec.json.Decoder(_Wrapped).decode
_read_text = msgspec.json.Decoder(str).decode


@dataclass(frozen=True, slots=True)
class DebeziumOutbox:
    """Records of Debezium's outbox event router.

    The event id is in the header `id_header`; type and, where named, schema version and source are headers that the
    router's `table.fields.additional.placement` sets (`type:header:eventType`). The record's key is the aggregate id,
    its timestamp the event's time. The value is the payload: JSON, JSON inside a JSON string (`expand.json.payload` off),
    or either with Connect's schema around it. Tenant and brand are the headers that the topic's `ScopeFields` name.
    """

    id_header: str = "id"
    type_header: str = "eventType"
    version_header: str | None = None
    source: str = ""
    source_header: str | None = None
    correlation_header: str = "correlation-id"

    def opener(self, scope: ScopeFields) -> Opener:
        id_header, type_header = self.id_header, self.type_header
        optional = tuple(
            (role, name)
            for role, name in (("source", self.source_header), ("tenant", scope.tenant), ("brand", scope.brand))
            if name is not None
        )

        def open_record(record: Record) -> Envelope:
            headers = dict(record.headers)
            identity, type_ = _connect_text(headers, id_header), _connect_text(headers, type_header)
            envelope = Envelope(identity, type_, _unwrapped(record.value or b""), 1, self.source)
            for role, name in optional:
                if name in headers:
                    setattr(envelope, role, _connect_text(headers, name))
            if self.version_header is not None and self.version_header in headers:
                version = _connect_text(headers, self.version_header)
                envelope.version = header_version(version.encode(), self.version_header)
            envelope.correlation_id = trace_header(headers, self.correlation_header, "x-correlation-id")
            envelope.traceparent = trace_header(headers, "traceparent")
            return envelope

        return open_record


def _connect_text(headers: _Headers, name: str) -> str:
    """A header's text, also where Connect's header converter is the JsonConverter and not the default."""
    text = required_header(headers, name)
    if text[0] not in '"{':
        return text
    plain = bytes(_unwrapped(text.encode()))
    if not plain or plain[:1] == b"{":
        raise invalid(f"header {name!r} is not plain text")
    return plain.decode()


def _unwrapped(value: bytes) -> bytes | msgspec.Raw:
    """The payload without Connect's schema and without string quotes; what is not wrapped comes back as it is."""
    inner: bytes | msgspec.Raw = value
    try:
        # The converter writes the schema first and no blanks: a payload of its own with such a field is left alone.
        if value.startswith(b'{"schema":'):
            inner = _read_wrapped(value).payload
        return _read_text(inner).encode() if bytes(inner)[:1] == b'"' else inner
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
            return Envelope(
                _text(fields.id) or None,
                fields.type or self._type_of_untyped(),
                value if self.data is None else self._payload(fields),
                1 if fields.version is None else field_version(fields.version, self.version or ""),
                self.source,
                _text(fields.tenant),
                _text(fields.brand),
                field_time(fields.occurred_at, self.occurred_at or ""),
                traceable(fields.correlation_id),
                trace_header(dict(record.headers), "traceparent") if record.headers else None,
            )

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
