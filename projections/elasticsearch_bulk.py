"""The bulk road to Elasticsearch: requests cut by bytes, only what was put off is sent again."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from projections.concurrency import Concurrency
from projections.elasticsearch_answers import (
    BulkAnswer,
    Item,
    Verdict,
    classify,
    failure_type,
    is_overload,
    without_payload,
)
from projections.sink import Applied, Refusal
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Misconfigured, Reason, Transient

# Waits between the rounds of one `apply`: a full write queue drains in less; an outage is the caller's to wait out.
_PAUSES_SECONDS = (0.1, 0.4, 1.6)

DENIED = "check TIDEGATE_ELASTICSEARCH_USER and its password, or the API key, and its role"
"""The remedy where Elasticsearch does not let us in."""


class Answer(NamedTuple):
    """Elasticsearch's answer to one bulk request."""

    status: int
    body: Any
    """Decoded JSON, or whatever else a proxy in between may say."""


Post = Callable[[bytes], Awaitable[Answer]]
"""Sends one bulk body. Raises Transient where no answer came."""


@dataclass
class _Round:
    """What one pass over the pending writes brought."""

    stale: list[int] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    later: list[int] = field(default_factory=list)
    cause: str = ""


class BulkWriter:
    """Applies encoded writes through `post`; used by several lanes at once."""

    def __init__(
        self,
        index: str,
        post: Post,
        *,
        clock: Clock,
        max_request_bytes: int,
        concurrency: Concurrency | None = None,
    ) -> None:
        self._index = index
        self._post = post
        self._clock = clock
        self._max_request_bytes = max_request_bytes
        self._concurrency = concurrency or Concurrency(clock)

    async def apply(self, lines: Sequence[bytes]) -> Applied:
        """All of `lines` but the refused ones are in. Only what Elasticsearch put off is sent again.

        Raises Transient if some stay put off, Misconfigured if Elasticsearch denies the access.
        """
        stale: list[int] = []
        refused: list[Refusal] = []
        pending: Sequence[int] = range(len(lines))
        for pause in (*_PAUSES_SECONDS, None):
            result = await self._send(lines, pending)
            stale, pending = [*stale, *result.stale], result.later
            refused += result.refused
            if not pending:
                break
            if pause is None:
                raise Transient(f"index {self._index!r} put off {len(pending)} of {len(lines)} writes: {result.cause}")
            await self._clock.sleep(pause * random.uniform(0.5, 1.0))
        return Applied(stale_at=frozenset(stale), refused=tuple(sorted(refused)))

    async def _send(self, lines: Sequence[bytes], numbers: Sequence[int]) -> _Round:
        result = _Round()
        for request in _split(lines, numbers, self._max_request_bytes) if numbers else ():
            await self._send_request(lines, request, result)
        return result

    async def _send_request(self, lines: Sequence[bytes], numbers: Sequence[int], result: _Round) -> None:
        # As many as there are: all of them, which is nearly always so.
        body = b"".join(lines if len(numbers) == len(lines) else [lines[number] for number in numbers])
        async with self._concurrency.slot() as request:
            answer = await self._post(body)
            request.answered()
            if is_overload(answer.status, answer.body):
                request.refused()
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
            answer = msgspec.convert(body, BulkAnswer)
        except msgspec.ValidationError as error:
            raise Transient(f"index {self._index!r}: the answer is not that of a bulk request: {error}") from error
        if not answer.errors:
            return
        if len(answer.items) != len(numbers):
            raise Transient(f"index {self._index!r}: {len(answer.items)} answers to {len(numbers)} writes")
        for number, line in zip(numbers, answer.items, strict=True):
            if line.index.status > 201:
                self._judge(number, line.index, result)

    def _judge(self, number: int, item: Item, result: _Round) -> None:
        error = item.error
        match classify(item.status, error.type):
            case Verdict.TAKEN:
                pass
            case Verdict.STALE:
                result.stale.append(number)
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
        error_type = failure_type(answer.body)
        if answer.status in (401, 403):
            is_blocked = classify(answer.status, error_type) is Verdict.UNAVAILABLE
            raise (Transient if is_blocked else Misconfigured)(
                f"index {self._index!r}: {_remedy(answer.status, error_type)}"
            )
        if answer.status in (400, 405, 406, 415):
            # Every line was checked: the server, or what stands before it, does not speak the bulk API as we do.
            raise Misconfigured(f"index {self._index!r}: bulk request not understood: {answer.status} {error_type}")
        result.later.extend(numbers)
        result.cause = f"{answer.status} {error_type}".strip()


def _remedy(status: int, error_type: str) -> str:
    match status:
        case 404:
            return "it is not there; run 'tidegate migrate'"
        case 401 | 403 if error_type != "cluster_block_exception":
            return f"access denied; {DENIED}"
        case _:
            return f"{status} {error_type}"


def _split(lines: Sequence[bytes], numbers: Sequence[int], max_bytes: int) -> Iterator[Sequence[int]]:
    """Runs of `numbers` whose lines fit `max_bytes` together; a longer single line goes alone."""
    if sum(map(len, lines)) <= max_bytes:
        yield numbers
        return
    start = size = 0
    for position, number in enumerate(numbers):
        length = len(lines[number])
        if size + length > max_bytes and position > start:
            yield numbers[start:position]
            start, size = position, 0
        size += length
    if start < len(numbers):
        yield numbers[start:]
