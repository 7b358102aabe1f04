"""The bulk road to Elasticsearch: lines built by hand, answers read no further than needed, each item classified."""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from elastic_transport import JsonSerializer

from projections.documents import check_write, encode_json, json_document
from projections.sink import Applied, Refusal
from projections.writes import Upsert, Write
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Misconfigured, Reason, Transient

_MAX_ID_BYTES = 512
"""Elasticsearch refuses longer ids."""

_HASHED_ID = "sha256:"
_TOMBSTONE = b'{"tg_deleted":true}'

# Waits between the rounds of one `apply`: a full write queue drains in less; an outage is the caller's to wait out.
_PAUSES_SECONDS = (0.1, 0.4, 1.6)
_MESSAGE_LIMIT = 300

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


def bulk_lines(write: Write, max_document_bytes: int) -> bytes:
    """Action and document of `write`, each with its line end; a Delete is a tombstone document with its version.

    Raises InvalidDocument for what Elasticsearch would refuse, or would take as something else.
    """
    check_write(write)
    document_id = write.id
    # Most ids are short and plain: one test spares them a call for each event.
    if len(document_id) > _MAX_ID_BYTES or not document_id.isascii():
        document_id = stored_id(document_id)
    document = json_document(write.document, max_document_bytes) if write.__class__ is Upsert else _TOMBSTONE
    parts = (_BEFORE_ID, encode_json(document_id), _BEFORE_VERSION, encode_json(write.version), _BEFORE_DOCUMENT)
    return b"".join((*parts, document, b"\n"))


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


class Answer(NamedTuple):
    """Elasticsearch's answer to one bulk request."""

    status: int
    body: Any
    """Decoded JSON, or whatever else a proxy in between may say."""


Post = Callable[[bytes], Awaitable[Answer]]
"""Sends one bulk body. Raises Transient where no answer came."""


class BulkSerializer(JsonSerializer):
    """JSON by msgspec; a bulk answer that says `"errors":false` is not read any further."""

    def json_loads(self, data: bytes) -> Any:
        return {"errors": False} if _NO_ERRORS.match(data) else msgspec.json.decode(data)


_NO_ERRORS = re.compile(rb'\{(?:"took":\d+,)?"errors":false\b')


class _Error(msgspec.Struct):
    type: str = ""
    reason: str | None = None


class _Item(msgspec.Struct):
    status: int
    error: _Error = msgspec.field(default_factory=_Error)


class _Line(msgspec.Struct):
    index: _Item


class _Body(msgspec.Struct):
    errors: bool
    items: list[_Line] = []


class _Failure(msgspec.Struct):
    error: _Error


@dataclass
class _Round:
    """What one pass over the pending writes brought."""

    stale: int = 0
    refused: list[Refusal] = field(default_factory=list)
    later: list[int] = field(default_factory=list)
    cause: str = ""


class BulkWriter:
    """Applies encoded writes through `post`; used by several lanes at once."""

    def __init__(self, index: str, post: Post, *, clock: Clock, max_request_bytes: int) -> None:
        self._index = index
        self._post = post
        self._clock = clock
        self._max_request_bytes = max_request_bytes

    async def apply(self, lines: Sequence[bytes]) -> Applied:
        """All of `lines` but the refused ones are in. Only what Elasticsearch put off is sent again.

        Raises Transient if some stay put off, Misconfigured if Elasticsearch denies the access.
        """
        stale, refused, pending = 0, [], list(range(len(lines)))
        for pause in (*_PAUSES_SECONDS, None):
            result = await self._send(lines, pending)
            stale, pending = stale + result.stale, result.later
            refused += result.refused
            if not pending:
                break
            if pause is None:
                raise Transient(f"index {self._index!r} put off {len(pending)} of {len(lines)} writes: {result.cause}")
            await self._clock.sleep(pause * random.uniform(0.5, 1.0))
        return Applied(stale=stale, refused=tuple(sorted(refused)))

    async def _send(self, lines: Sequence[bytes], numbers: Sequence[int]) -> _Round:
        result = _Round()
        for request in _split(lines, numbers, self._max_request_bytes):
            await self._send_request(lines, request, result)
        return result

    async def _send_request(self, lines: Sequence[bytes], numbers: Sequence[int], result: _Round) -> None:
        body = b"".join([lines[number] for number in numbers])
        answer = await self._post(body)
        if answer.status == 200:
            self._read_items(numbers, answer.body, result)
        elif answer.status != 413:
            self._read_failure(numbers, answer, result)
        elif len(numbers) == 1:
            message = f"one write of {len(body)} bytes is more than Elasticsearch, or a proxy before it, takes"
            result.refused.append(Refusal(numbers[0], Reason.TOO_LARGE, message))
        else:
            # The bound that answered 413 lies above half of this body at the least, for all later requests too.
            self._max_request_bytes = min(self._max_request_bytes, len(body) // 2)
            middle = len(numbers) // 2
            await self._send_request(lines, numbers[:middle], result)
            await self._send_request(lines, numbers[middle:], result)

    def _read_items(self, numbers: Sequence[int], body: Any, result: _Round) -> None:
        try:
            answer = msgspec.convert(body, _Body)
        except msgspec.ValidationError as error:
            raise Transient(f"index {self._index!r}: the answer is not that of a bulk request: {error}") from error
        if not answer.errors:
            return
        if len(answer.items) != len(numbers):
            raise Transient(f"index {self._index!r}: {len(answer.items)} answers to {len(numbers)} writes")
        for number, line in zip(numbers, answer.items, strict=True):
            if line.index.status > 201:
                self._judge(number, line.index, result)

    def _judge(self, number: int, item: _Item, result: _Round) -> None:
        error = item.error
        match classify(item.status, error.type):
            case Verdict.TAKEN:
                pass
            case Verdict.STALE:
                result.stale += 1
            case Verdict.REFUSED | Verdict.TOO_LARGE as verdict:
                reason = Reason.TOO_LARGE if verdict is Verdict.TOO_LARGE else Reason.INVALID_DOCUMENT
                result.refused.append(Refusal(number, reason, without_payload(error.type, error.reason)))
            case Verdict.LATER:
                result.later.append(number)
                result.cause = f"{item.status} {error.type}"
            case Verdict.UNAVAILABLE:
                raise Transient(f"index {self._index!r} takes no writes: {_remedy(item.status, error.type)}")
            case Verdict.DENIED:
                raise Misconfigured(f"index {self._index!r}: {_remedy(item.status, error.type)}")

    def _read_failure(self, numbers: Sequence[int], answer: Answer, result: _Round) -> None:
        """A whole request without items: nothing of it was applied, or nobody can know."""
        error_type = _failure_type(answer.body)
        if answer.status in (401, 403):
            raise Misconfigured(f"index {self._index!r}: {_remedy(answer.status, error_type)}")
        if answer.status in (400, 405, 406, 415):
            # Every line was checked: the server, or what stands before it, does not speak the bulk API as we do.
            raise Misconfigured(f"index {self._index!r}: bulk request not understood: {answer.status} {error_type}")
        result.later.extend(numbers)
        result.cause = f"{answer.status} {error_type}".strip()


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


def _remedy(status: int, error_type: str) -> str:
    match status:
        case 404:
            return "it is not there; run 'tidegate migrate'"
        case 401 | 403 if error_type != "cluster_block_exception":
            return "access denied; check TIDEGATE_ELASTICSEARCH_USER and its password, or the API key, and its role"
        case _:
            return f"{status} {error_type}"


def _failure_type(body: Any) -> str:
    try:
        return msgspec.convert(body, _Failure).error.type[:_MESSAGE_LIMIT]
    except msgspec.ValidationError:
        return ""


def _split(lines: Sequence[bytes], numbers: Sequence[int], max_bytes: int) -> Iterator[Sequence[int]]:
    """Runs of `numbers` whose lines fit `max_bytes` together; a longer single line goes alone."""
    start = size = 0
    for position, number in enumerate(numbers):
        length = len(lines[number])
        if size + length > max_bytes and position > start:
            yield numbers[start:position]
            start, size = position, 0
        size += length
    if start < len(numbers):
        yield numbers[start:]
