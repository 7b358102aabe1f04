"""Documents as JSON bytes: refused here, never bent on the way."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from projections.writes import MAX_VERSION, Write
from tidegate_kernel.errors import InvalidDocument, Reason

DELETED = "tg_deleted"
"""The field, or column, that marks a tombstone. Ours in every sink: a document may not have it."""

DELETED_AT = "tg_deleted_at"
"""When a tombstone was written, by the clock of the host that wrote it; ours as well, where a sink keeps it."""

_OPENING_BRACE = ord("{")
_LINE_END = ord("\n")

encode_json = msgspec.json.Encoder().encode


def check_write(write: Write) -> None:
    """Raises InvalidDocument unless `write` has an id and a version that every sink can order by."""
    version, document_id = write.version, write.id
    # The exact class: True and 1.5 would pass a comparison and be written as another version than was meant.
    if version.__class__ is not int or not 0 <= version <= MAX_VERSION:
        raise InvalidDocument(f"the version is not an integer from 0 to {MAX_VERSION}")
    if document_id.__class__ is not str or not document_id:
        raise InvalidDocument("the document id is not a text, or empty")


def are_plain(ids: Sequence[str], versions: Sequence[int]) -> bool:
    """Whether `check_write` takes every write with such an id and version, told by a few passes over all of them.

    False says only that each has to be looked at by itself.
    """
    return (
        set(map(type, ids)) == {str}
        and all(ids)
        and set(map(type, versions)) == {int}
        and min(versions) >= 0
        and max(versions) <= MAX_VERSION
    )


def json_document(document: Mapping[str, Any] | msgspec.Struct, max_bytes: int) -> bytes:
    """`document` as one line of JSON.

    Raises InvalidDocument that names the field for what JSON cannot say (NaN, infinities, lone surrogates, …), and with
    reason TOO_LARGE beyond `max_bytes`.
    """
    try:
        encoded = encode_json(document)
    except UnicodeEncodeError as error:
        raise InvalidDocument(f"{_field_of_text(document)} holds a lone surrogate, which is no Unicode text") from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        # The encoder names types, never values.
        raise InvalidDocument(f"the document cannot be JSON: {type(error).__name__}: {str(error)[:200]}") from error
    if encoded[0] != _OPENING_BRACE:
        raise InvalidDocument("the document is not a mapping of fields")
    # The encoder writes NaN and infinities as null: only a document with a null in it can hide one. (`partition` is the
    # cheapest search of bytes in CPython: `in` raises and swallows an exception first.)
    if encoded.partition(b"null")[1]:
        refuse_numbers_that_are_none(document)
    if DELETED in (document if document.__class__ is dict else _names(document, encoded)):
        raise InvalidDocument(f"the field {DELETED!r} is Tidegate's own; return a Delete instead")
    if len(encoded) > max_bytes:
        raise InvalidDocument(f"the document has {len(encoded)} bytes, more than {max_bytes}", reason=Reason.TOO_LARGE)
    # Only ready-made JSON (msgspec.Raw) holds line ends, and there only between tokens: one would end the bulk line.
    return encoded.replace(b"\n", b" ") if _LINE_END in encoded else encoded


def _names(document: Any, encoded: bytes) -> Container[str]:
    if isinstance(document, msgspec.Struct):
        return document.__struct_encode_fields__
    fields: dict[str, Any] = msgspec.json.decode(encoded)
    return fields


def refuse_numbers_that_are_none(document: Any) -> None:
    """Raises InvalidDocument that names a field with NaN or an infinity, which the encoder writes as null."""
    for path, value in _leaves(document):
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidDocument(f"field {path!r} is not a finite number")


def _field_of_text(document: Any) -> str:
    for path, value in _leaves(document):
        if isinstance(value, str) and not _is_text(value):
            return f"field {path!r}"
    return "a field's name"


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a document with the path of its field; elements of lists share their list's path."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            # A name that is no text must not break the message about it.
            name = str(key).encode(errors="replace").decode()
            yield from _leaves(item, f"{path}.{name}" if path else name)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _leaves(item, path)
    elif (fields := _fields(value)) is not None:
        yield from _leaves(fields, path)
    else:
        yield path, value


def _fields(value: Any) -> dict[str, Any] | None:
    """Fields of a Struct, dataclass or attrs object, else None."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if hasattr(value, "__dataclass_fields__") or hasattr(value, "__attrs_attrs__"):
        names = getattr(value, "__dataclass_fields__", None) or [each.name for each in value.__attrs_attrs__]
        return {name: getattr(value, name) for name in names}
    return None
