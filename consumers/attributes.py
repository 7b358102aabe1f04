"""One attribute of an envelope: header bytes or a JSON field to text, time, version; or a refusal that names it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from consumers.json_text import not_json
from consumers.topics import Envelope
from tidegate_kernel.errors import Misconfigured, Reason, Undecodable

ABSENT = b""
"""Stands for a header that is not there (by identity): one that is there without a value is another thing."""

LONGEST_TEXT = 1024
"""Characters of an id, tenant or other envelope text: longer ones are no names, and indexes refuse them."""

# Nine digits: a schema version, not a timestamp that landed in the wrong field.
_LONGEST_VERSION = 9
# Bounds memory where a producer puts something unique into the source; 10,000 short texts are about 1 MB.
_TEXTS_KNOWN = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_read_time = msgspec.json.Decoder(datetime).decode


def invalid(message: str) -> Undecodable:
    """An Undecodable with reason INVALID_ENVELOPE."""
    return Undecodable(message, reason=Reason.INVALID_ENVELOPE)


def header_text(value: bytes | None, name: str) -> str:
    """The header's text. Raises Undecodable where it has no value or is not UTF-8."""
    if value is None:
        raise invalid(f"header {name!r} has no value")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise invalid(f"header {name!r} is not UTF-8") from None


def required_header(headers: Mapping[str, bytes | None], name: str) -> str:
    """The header's text. Raises Undecodable where it is absent, empty or not UTF-8."""
    if name not in headers:
        raise invalid(f"header {name!r} is missing")
    text = header_text(headers[name], name)
    if not text:
        raise invalid(f"header {name!r} is empty")
    return text


def header_time(value: bytes | None, name: str) -> datetime:
    """The instant of an RFC 3339 header, UTC; without a zone it is taken as UTC."""
    if value is None:
        raise invalid(f"header {name!r} has no value")
    try:
        time = _read_time(b'"%b"' % value)
    except ValueError:
        raise invalid(f"header {name!r} is not an RFC 3339 time") from None
    return time if time.tzinfo is UTC else in_utc(time, name)


def in_utc(time: datetime, name: str) -> datetime:
    """The same instant in UTC; a time without a zone is taken as UTC."""
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise invalid(f"{name!r} is out of range") from None


def field_time(value: datetime | int | None, name: str) -> datetime | None:
    """The instant of a JSON field: RFC 3339 text (already read) or integer milliseconds since 1970."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return value if value.tzinfo is UTC else in_utc(value, name)
    try:
        return _EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        raise invalid(f"{name!r} is out of range for milliseconds since 1970") from None


def header_version(value: bytes | None, name: str) -> int:
    """The schema version of a header: decimal digits."""
    if value is None or not value.isdigit() or len(value) > _LONGEST_VERSION:
        raise invalid(f"header {name!r} is not a schema version (a whole number)")
    return int(value)


def field_version(value: int | str | None, name: str) -> int:
    """The schema version of a JSON field, a whole number or its digits; 1 where it is absent."""
    if value is None:
        return 1
    digits = str(value)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST_VERSION):
        raise invalid(f"{name!r} is not a schema version (a whole number)")
    return int(digits)


class KnownTexts(dict[bytes, str]):
    """Header bytes to text; decodes what it has not seen. For types, sources, tenants: few texts on many records.

    Raises AttributeError (None) or UnicodeDecodeError for what is no text.
    """

    def __missing__(self, value: bytes) -> str:
        text = value.decode()
        if len(self) >= _TEXTS_KNOWN:
            self.clear()
        self[value] = text
        return text


def add_trace(envelope: Envelope, headers: Mapping[str, bytes | None]) -> None:
    """Fills correlation id and traceparent from headers where `envelope` has none.

    Both only serve observation: what cannot be read is passed over.
    """
    get = headers.get
    if correlation := get("ce_correlationid") or get("correlation-id") or get("x-correlation-id"):
        envelope.correlation_id = envelope.correlation_id or traceable(correlation)
    if parent := get("ce_traceparent") or get("traceparent"):
        envelope.traceparent = envelope.traceparent or traceable(parent)


def traceable(value: bytes | str | int | None) -> str | None:
    """`value` as text where it can be stored and sent on, else None."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return None
    text = field_text(value)
    return text if text and len(text) <= LONGEST_TEXT and "\0" not in text else None


def field_text(value: str | int | None) -> str:
    """The text of a JSON field; "" where it is absent."""
    if type(value) is str:
        return value
    return "" if value is None else str(value)


def field_reader(fields: Mapping[str, tuple[str | None, Any]]) -> msgspec.json.Decoder[Any]:
    """Returns a one-pass decoder of JSON objects to a Struct with an attribute per role.

    `fields` maps role to (JSON field, type); a role without a field, or whose field is absent or null, reads as None.
    Raises Misconfigured if two roles name one field.
    """
    named = {role: (name, kind) for role, (name, kind) in fields.items() if name is not None}
    roles: dict[str, str] = {}
    for role, (name, _) in named.items():
        if name in roles:
            raise Misconfigured(f"envelope field {name!r} is named for both {roles[name]!r} and {role!r}; name it once")
        roles[name] = role
    members = [(role, kind if kind is msgspec.Raw else kind | None, None) for role, (_, kind) in named.items()]
    struct = msgspec.defstruct(
        "EnvelopeFields",
        members,
        rename={role: name for role, (name, _) in named.items()},
        namespace={role: None for role in fields if role not in named},
        gc=False,
    )
    return msgspec.json.Decoder(struct)


def read_fields(decoder: msgspec.json.Decoder[Any], value: bytes) -> Any:
    """Returns the Struct of a `field_reader`. Raises Undecodable: not JSON, no object, or a field of a wrong type."""
    try:
        return decoder.decode(value)
    except msgspec.ValidationError as error:
        text = str(error)
        raise invalid(f"envelope: {text[0].lower()}{text[1:]}") from None
    except (ValueError, RecursionError):
        raise not_json(value) from None
