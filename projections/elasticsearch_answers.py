"""What Elasticsearch answers to a bulk request: read no further than needed, each item judged, nothing quoted."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

import msgspec
from elastic_transport import JsonSerializer

_MESSAGE_LIMIT = 300


class Verdict(Enum):
    """What an item's answer means for its write."""

    TAKEN = "taken"
    STALE = "stale"
    REFUSED = "refused"
    TOO_LARGE = "too large"
    LATER = "later"
    UNAVAILABLE = "unavailable"
    DENIED = "denied"


# By status and error type (Case 86); what is not listed goes by its status alone.
_BY_STATUS_AND_TYPE = {
    (409, "version_conflict_engine_exception"): Verdict.STALE,
    (400, "index_closed_exception"): Verdict.UNAVAILABLE,
    (403, "cluster_block_exception"): Verdict.UNAVAILABLE,
    (404, "index_not_found_exception"): Verdict.UNAVAILABLE,
}
_BY_STATUS = {
    200: Verdict.TAKEN,
    201: Verdict.TAKEN,
    400: Verdict.REFUSED,
    401: Verdict.DENIED,
    403: Verdict.DENIED,
    404: Verdict.UNAVAILABLE,
    413: Verdict.TOO_LARGE,
}


def classify(status: int, error_type: str) -> Verdict:
    """What an item's status and error type mean. 429, 5xx and whatever is unknown: later."""
    return _BY_STATUS_AND_TYPE.get((status, error_type)) or _BY_STATUS.get(status, Verdict.LATER)


class BulkSerializer(JsonSerializer):
    """JSON by msgspec; a bulk answer that says `"errors":false` is not read any further."""

    def json_loads(self, data: bytes) -> Any:
        return {"errors": False} if _NO_ERRORS.match(data) else msgspec.json.decode(data)


_NO_ERRORS = re.compile(rb'\{(?:"took":\d+,)?"errors":false\b')


class _Error(msgspec.Struct):
    type: str = ""
    reason: str | None = None


class Item(msgspec.Struct):
    """The answer to one write."""

    status: int
    error: _Error = msgspec.field(default_factory=_Error)


class _Line(msgspec.Struct):
    index: Item


class BulkAnswer(msgspec.Struct):
    """The answer to a bulk request; no items where nothing failed."""

    errors: bool
    items: list[_Line] = []


class _Failure(msgspec.Struct):
    error: _Error


def failure_type(body: Any) -> str:
    """The error type of a request that failed as a whole, empty where the answer names none."""
    try:
        return msgspec.convert(body, _Failure).error.type[:_MESSAGE_LIMIT]
    except msgspec.ValidationError:
        return ""


def is_overload(status: int, body: Any) -> bool:
    """Whether an answer says, of the whole request or of an item, that there is too much to do."""
    if status == 429:
        return True
    items = body.get("items", ()) if isinstance(body, dict) and body.get("errors") else ()
    return any(answer.get("status") == 429 for item in items for answer in item.values())


def without_payload(error_type: str, reason: str | None) -> str:
    """Error type and the start of its reason, up to where Elasticsearch begins to quote the document."""
    plain = _POSITION.sub("", reason or "")
    plain = _VALUE_IN_BRACKETS.sub("[…]", _QUOTE.split(plain, maxsplit=1)[0]).strip()
    return f"{error_type}: {plain}"[:_MESSAGE_LIMIT] if plain else error_type[:_MESSAGE_LIMIT]


# "[1:24] failed to parse field [cents] of type [long] in document with id '1'. Preview of field's value: 'abc'"
_POSITION = re.compile(r"^\[\d+:?\d*\]\s*")
_QUOTE = re.compile(r"['\":(]| in document with id| Preview of")
# What stands in brackets is a value, unless it follows one of these words.
_VALUE_IN_BRACKETS = re.compile(
    r"(?<!\bfield )(?<!\btype )(?<!introduction of )(?<!within )\[[^\]]*\]|(?<=date field )\[[^\]]*\]"
)
