"""CloudEvents 1.0 on Kafka: attributes as headers (binary mode) or together with the data in the value (structured)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from consumers.attributes import (
    ABSENT,
    KnownTexts,
    add_trace,
    field_reader,
    field_text,
    field_time,
    field_version,
    header_text,
    header_time,
    header_version,
    invalid,
    read_fields,
    required_header,
    traceable,
)
from consumers.topics import Envelope, Opener, ScopeFields
from tidegate_kernel.errors import Undecodable
from tidegate_kernel.event import Record

_Headers = Mapping[str, bytes | None]
_NO_DATA = msgspec.Raw(b"null")
_CLOUDEVENTS = b"application/cloudevents"
_MEDIA = len(_CLOUDEVENTS)
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
        binary, structured = _binary_opener(scope), _StructuredEvents(scope)

        def open_record(record: Record) -> Envelope:
            headers = dict(record.headers)
            # Structured events may repeat their attributes as ce_ headers: the content type decides.
            content_type = headers.get("content-type")
            if content_type is not None and content_type[:_MEDIA] == _CLOUDEVENTS:
                return structured.open(headers, record.value or b"")
            if "ce_specversion" in headers or "ce_id" in headers or "ce_type" in headers:
                return binary(headers, record.value or b"")
            return structured.open(headers, record.value or b"")

        return open_record


def _binary_opener(scope: ScopeFields) -> Callable[[_Headers, bytes], Envelope]:
    tenant, brand = f"ce_{scope.tenant or ''}", f"ce_{scope.brand or ''}"
    texts = KnownTexts()

    def open_binary(headers: Any, payload: bytes) -> Envelope:
        # One function with few calls: it runs for every record. What is wrong is worked out afterwards.
        get = headers.get
        try:
            time, version = get("ce_time", ABSENT), get("ce_dataversion", ABSENT)
            envelope = Envelope(
                headers["ce_id"].decode(),
                texts[headers["ce_type"]],
                payload,
                1 if version is ABSENT else header_version(version, "ce_dataversion"),
                texts[headers["ce_source"]],
                texts[get(tenant, ABSENT)],
                texts[get(brand, ABSENT)],
                None if time is ABSENT else header_time(time, "ce_time"),
            )
            if headers["ce_specversion"] == b"1.0" and envelope.id and envelope.type and envelope.source:
                if (
                    get("traceparent")
                    or get("ce_traceparent")
                    or get("ce_correlationid")
                    or get("correlation-id")
                    or get("x-correlation-id")
                ):
                    add_trace(envelope, headers)
                return envelope
        except (KeyError, AttributeError, UnicodeDecodeError):
            pass
        raise _explain_binary(headers, (tenant, brand))

    return open_binary


def _explain_binary(headers: _Headers, optional: tuple[str, ...]) -> Undecodable:
    if required_header(headers, "ce_specversion") != "1.0":
        return invalid("header 'ce_specversion' is not 1.0")
    for name in ("ce_id", "ce_source", "ce_type"):
        required_header(headers, name)
    for name in optional:
        header_text(headers.get(name, ABSENT), name)
    return invalid("the ce_ headers cannot be read")


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
        envelope = Envelope(
            fields.id,
            fields.type,
            _structured_data(fields),
            field_version(fields.version, "dataversion"),
            fields.source,
            field_text(fields.tenant),
            field_text(fields.brand),
            field_time(fields.time, "time"),
            traceable(fields.correlation_id),
            traceable(fields.traceparent),
        )
        add_trace(envelope, headers)
        return envelope

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
