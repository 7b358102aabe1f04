"""Writes as lines of a bulk request, built by hand: the client's helpers cost ten times as much."""

from __future__ import annotations

from hashlib import sha256

from projections.documents import DELETED, DELETED_AT, check_write, encode_json, json_document
from projections.writes import Upsert, Write
from tidegate_kernel.clock import Clock, SystemClock

_MAX_ID_BYTES = 512
"""Elasticsearch refuses longer ids."""

_HASHED_ID = "sha256:"
_CLOCK = SystemClock()

_BEFORE_ID = b'{"index":{"_id":'
_BEFORE_VERSION = b',"version":'
# Greater *or equal*: an equal version is the same event, or the same event projected by newer code.
_BEFORE_DOCUMENT = b',"version_type":"external_gte"}}\n'


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
    parts = (_BEFORE_ID, encode_json(document_id), _BEFORE_VERSION, encode_json(write.version), _BEFORE_DOCUMENT)
    return b"".join((*parts, document, b"\n"))


def _tombstone(clock: Clock) -> bytes:
    return encode_json({DELETED: True, DELETED_AT: int(clock.now().timestamp() * 1000)})
