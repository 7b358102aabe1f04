"""Writes as lines of a bulk request, built by hand: the client's helpers cost ten times as much."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import repeat
from typing import Any

import msgspec

from projections.documents import (
    DELETED,
    DELETED_AT,
    are_plain,
    check_write,
    encode_json,
    json_document,
    refuse_numbers_that_are_none,
)
from projections.writes import Upsert, Write
from tidegate_kernel.clock import Clock, SystemClock

_MAX_ID_BYTES = 512
"""Elasticsearch refuses longer ids."""

_HASHED_ID = "sha256:"
_CLOCK = SystemClock()

# Greater *or equal*: an equal version is the same event, or the same event projected by newer code.
_LINES = b'{"index":{"_id":%b,"version":%d,"version_type":"external_gte"}}\n%b\n'

_encode_lines = msgspec.json.Encoder().encode_lines


def stored_id(document_id: str) -> str:
    """The `_id` under which a document is stored: its own, or a hash of one that Elasticsearch would refuse."""
    # Lone surrogates too: two ids must not become one.
    spelled = document_id.encode("utf-8", "surrogatepass")
    is_text = spelled.decode("utf-8", "ignore") == document_id
    return document_id if is_text and len(spelled) <= _MAX_ID_BYTES else _HASHED_ID + sha256(spelled).hexdigest()


def bulk_lines(write: Write, max_document_bytes: int, clock: Clock = _CLOCK) -> bytes:
    """Action and document of `write`, each with its line end; a Delete is a tombstone document with its version.

    A tombstone says when it was written, by `clock`. Raises InvalidDocument for what Elasticsearch would refuse, or
    would take as something else.
    """
    check_write(write)
    document_id = write.id
    # Most ids are short and plain: one test spares them a call for each event.
    if len(document_id) > _MAX_ID_BYTES or not document_id.isascii():
        document_id = stored_id(document_id)
    document = json_document(write.document, max_document_bytes) if isinstance(write, Upsert) else _tombstone(clock)
    return _LINES % (encode_json(document_id), write.version, document)


def bulk_lines_at_once(writes: Sequence[Upsert], max_document_bytes: int) -> list[bytes]:
    """What `bulk_lines` returns of each, for about half of the cost. Raises InvalidDocument where it refuses one."""
    try:
        return _at_once(writes, max_document_bytes)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return [bulk_lines(write, max_document_bytes) for write in writes]


def _at_once(writes: Sequence[Upsert], max_document_bytes: int) -> list[bytes]:
    """Raises ValueError, or an error of the encoder, where one of them has to be looked at by itself."""
    documents, ids = [write.document for write in writes], [write.id for write in writes]
    versions = [write.version for write in writes]
    if not are_plain(ids, versions) or set(map(type, documents)) != {dict}:
        raise ValueError
    encoded = _json_lines(documents)
    if max(map(len, encoded)) > max_document_bytes:
        raise ValueError
    _refuse_what_json_bends(documents, encoded)
    if max(map(len, ids)) > _MAX_ID_BYTES or not "".join(ids).isascii():
        ids = list(map(stored_id, ids))
    return list(map(_LINES.__mod__, zip(_json_lines(ids), versions, encoded, strict=True)))


def _json_lines(values: Sequence[Any]) -> list[bytes]:
    """Each value's JSON. Raises ValueError where one holds a line end, as ready-made JSON may."""
    *lines, _ = _encode_lines(values).split(b"\n")
    if len(lines) != len(values):
        raise ValueError
    return lines


def _refuse_what_json_bends(documents: Sequence[Any], encoded: Sequence[bytes]) -> None:
    """As `json_document` does. Raises ValueError for a document that has our own field."""
    if any(map(dict.__contains__, documents, repeat(DELETED))):
        raise ValueError
    for document, line in zip(documents, encoded, strict=True):
        if line.partition(b"null")[1]:
            refuse_numbers_that_are_none(document)


def _tombstone(clock: Clock) -> bytes:
    return encode_json({DELETED: True, DELETED_AT: int(clock.now().timestamp() * 1000)})
