"""The bulk road: what each answer means, what is sent again, and what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from projections.concurrency import Concurrency
from projections.elasticsearch_answers import BulkSerializer, Verdict, classify, without_payload
from projections.elasticsearch_bulk import Answer, BulkWriter
from projections.sink import Refusal
from tidegate_kernel.errors import Misconfigured, Reason, Transient

OK = {"status": 200}
STALE = {"status": 409, "error": {"type": "version_conflict_engine_exception", "reason": "[a]: version conflict"}}
FULL = {"status": 429, "error": {"type": "es_rejected_execution_exception", "reason": "queue is full"}}
NO_SHARD = {"status": 503, "error": {"type": "unavailable_shards_exception", "reason": "primary shard is not active"}}
MISFIT_REASON = (
    "[1:11] failed to parse field [cents] of type [long] in document with id '1'. Preview of field's value: 'secret'"
)
MISFIT = {"status": 400, "error": {"type": "document_parsing_exception", "reason": MISFIT_REASON}}


class StillClock:
    """Time stands still; what was slept is written down."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> datetime:
        return datetime(2024, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


class Server:
    """Answers from a script, one entry a request; keeps the bodies."""

    def __init__(self, *script: Answer | Callable[[bytes], Answer]) -> None:
        self._script = list(script)
        self.bodies: list[bytes] = []

    async def post(self, body: bytes) -> Answer:
        self.bodies.append(body)
        step = self._script.pop(0)
        return step(body) if callable(step) else step


def items(*outcomes: dict[str, Any]) -> Answer:
    return Answer(200, {"took": 1, "errors": True, "items": [{"index": outcome} for outcome in outcomes]})


def whole(status: int, error_type: str = "") -> Answer:
    return Answer(status, {"error": {"type": error_type, "reason": "…"}, "status": status} if error_type else "<html>")


TAKEN = Answer(200, {"errors": False})


def writer(server: Server, *, clock: StillClock | None = None, max_request_bytes: int = 1000) -> BulkWriter:
    return BulkWriter("orders", server.post, clock=clock or StillClock(), max_request_bytes=max_request_bytes)


@pytest.mark.parametrize(
    "status,error_type,verdict",
    [
        (200, "", Verdict.TAKEN),
        (201, "", Verdict.TAKEN),
        (409, "version_conflict_engine_exception", Verdict.STALE),
        (429, "es_rejected_execution_exception", Verdict.LATER),
        (429, "circuit_breaking_exception", Verdict.LATER),
        (429, "cluster_block_exception", Verdict.LATER),
        (500, "node_closed_exception", Verdict.LATER),
        (503, "unavailable_shards_exception", Verdict.LATER),
        (409, "something_new_exception", Verdict.LATER),
        (404, "index_not_found_exception", Verdict.UNAVAILABLE),
        (403, "cluster_block_exception", Verdict.UNAVAILABLE),
        (400, "index_closed_exception", Verdict.UNAVAILABLE),
        (403, "security_exception", Verdict.DENIED),
        (401, "security_exception", Verdict.DENIED),
        (400, "mapper_parsing_exception", Verdict.REFUSED),
        (400, "document_parsing_exception", Verdict.REFUSED),
        (400, "illegal_argument_exception", Verdict.REFUSED),
        (400, "strict_dynamic_mapping_exception", Verdict.REFUSED),
        (413, "", Verdict.TOO_LARGE),
    ],
)
def test_item_means_what_status_and_error_type_say(status: int, error_type: str, verdict: Verdict) -> None:
    """Case 86: a status alone is not enough; 403 is a block that passes or a right that is missing."""
    assert classify(status, error_type) is verdict


async def test_only_what_was_put_off_is_sent_again() -> None:
    """Case 86: what is in, stale or refused must not travel twice."""
    server = Server(items(OK, FULL, STALE, MISFIT, NO_SHARD), items(OK, FULL), TAKEN)

    applied = await writer(server).apply([b"a\n", b"b\n", b"c\n", b"d\n", b"e\n"])

    assert server.bodies == [b"a\nb\nc\nd\ne\n", b"b\ne\n", b"e\n"]
    assert applied.stale == 1
    assert [(refusal.index, refusal.reason) for refusal in applied.refused] == [(3, Reason.INVALID_DOCUMENT)]


async def test_endless_refusal_to_take_more_is_transient_after_bounded_waits() -> None:
    """Case 87: a swallowed last 429 would settle what was never written."""
    server, clock = Server(*[items(FULL)] * 4), StillClock()

    with pytest.raises(Transient, match=r"'orders' put off 1 of 1 writes: 429 es_rejected"):
        await writer(server, clock=clock).apply([b"a\n"])

    assert len(server.bodies) == 4
    assert len(clock.slept) == 3
    assert 1.0 <= sum(clock.slept) <= 2.1


@pytest.mark.parametrize("answer", [whole(429, "circuit_breaking_exception"), whole(503), whole(502), whole(404)])
async def test_whole_request_put_off_is_sent_again(answer: Answer) -> None:
    """A proxy's or an overloaded node's answer has no items; applying again is harmless."""
    server = Server(answer, TAKEN)

    applied = await writer(server).apply([b"a\n", b"b\n"])

    assert server.bodies == [b"a\nb\n"] * 2
    assert applied.refused == ()


@pytest.mark.parametrize(
    "answer", [whole(401, "security_exception"), whole(403), whole(400, "parse_exception"), whole(405)]
)
async def test_whole_request_denied_or_not_understood_is_no_fault_of_its_documents(answer: Answer) -> None:
    """A wrong password must not make a dead letter of every record."""
    with pytest.raises(Misconfigured, match="'orders'"):
        await writer(Server(answer)).apply([b"a\n"])


async def test_missing_index_is_transient_and_names_the_remedy() -> None:
    """Case 86: an index that is gone comes back; its records are not poison."""
    missing = {"status": 404, "error": {"type": "index_not_found_exception", "reason": "no such index [orders-g1]"}}

    with pytest.raises(Transient, match=r"'orders'.*run 'tidegate migrate'"):
        await writer(Server(items(missing))).apply([b"a\n"])


async def test_write_block_is_transient() -> None:
    """Case 86: a full disk blocks an index until someone makes room."""
    blocked = {"status": 403, "error": {"type": "cluster_block_exception", "reason": "index [orders-g1] blocked"}}

    with pytest.raises(Transient, match="403 cluster_block_exception"):
        await writer(Server(items(blocked))).apply([b"a\n"])


async def test_cluster_that_is_read_only_as_a_whole_is_transient() -> None:
    """It refuses the request, not its items: no restart of the job, which would leave its group, helps against that."""
    with pytest.raises(Transient, match="403 cluster_block_exception"):
        await writer(Server(whole(403, "cluster_block_exception"))).apply([b"a\n"])


async def test_missing_right_is_misconfigured() -> None:
    """Waiting does not help, and the documents are not at fault."""
    denied = {"status": 403, "error": {"type": "security_exception", "reason": "action is unauthorized for user"}}

    with pytest.raises(Misconfigured, match="access denied"):
        await writer(Server(items(denied))).apply([b"a\n"])


async def test_request_too_large_is_halved_until_it_fits() -> None:
    """Case 93: retried as it is, it would fail for ever; only the one document over the limit is a dead letter."""

    def at_most_six_bytes(body: bytes) -> Answer:
        return TAKEN if len(body) <= 6 else whole(413)

    server = Server(*[at_most_six_bytes] * 9)

    applied = await writer(server).apply([b"aa\n", b"bb\n", b"0123456789\n", b"dd\n"])

    assert [(each.index, each.reason) for each in applied.refused] == [(2, Reason.TOO_LARGE)]
    assert [body for body in server.bodies if len(body) <= 6] == [b"aa\nbb\n", b"dd\n"]


async def test_bound_found_by_413_holds_for_later_requests() -> None:
    """Case 93: every batch would pay for the same lesson otherwise."""

    def at_most_six_bytes(body: bytes) -> Answer:
        return TAKEN if len(body) <= 6 else whole(413)

    server = Server(*[at_most_six_bytes] * 9)
    bulk = writer(server)
    await bulk.apply([b"aa\n"] * 4)
    server.bodies.clear()

    await bulk.apply([b"aa\n"] * 4)

    assert server.bodies == [b"aa\naa\n"] * 2


async def test_requests_are_cut_by_bytes_between_writes() -> None:
    """A write's two lines must stay together, and a single long one goes alone."""
    server = Server(TAKEN, TAKEN, TAKEN)

    await writer(server, max_request_bytes=8).apply([b"aaa\n", b"bbb\n", b"0123456789\n", b"c\n"])

    assert server.bodies == [b"aaa\nbbb\n", b"0123456789\n", b"c\n"]


async def test_indexes_of_refusals_are_those_of_the_batch() -> None:
    """The pipeline finds the record by the index, whatever requests the batch was cut into."""
    server = Server(items(OK, OK), items(OK, MISFIT))

    applied = await writer(server, max_request_bytes=4).apply([b"a\n", b"b\n", b"c\n", b"d\n"])

    assert [refusal.index for refusal in applied.refused] == [3]


@pytest.mark.parametrize("answer", [items(OK), Answer(200, {"took": 3}), Answer(200, "<html>login</html>")])
async def test_answer_that_is_not_about_these_writes_is_transient(answer: Answer) -> None:
    """Half an answer proves nothing about the other half."""
    with pytest.raises(Transient):
        await writer(Server(answer)).apply([b"a\n", b"b\n"])


async def test_nothing_to_apply_sends_nothing() -> None:
    """An empty bulk body is an error of its own."""
    server = Server()

    await writer(server).apply([])

    assert server.bodies == []


@pytest.mark.parametrize("start", [b'{"errors":false', b'{"took":12,"errors":false'])
def test_answer_without_errors_is_read_no_further(start: bytes) -> None:
    """A thousand items that all say 200 are not worth a millisecond; the rest here is not even JSON."""
    assert BulkSerializer().loads(start + b',"items":[{') == {"errors": False}


def test_answer_with_errors_is_read_whole() -> None:
    """The shortcut must not take a failure for success."""
    body = msgspec.json.encode({"errors": True, "took": 1, "items": [{"index": MISFIT}]})

    assert BulkSerializer().loads(body)["items"] == [{"index": MISFIT}]


@pytest.mark.parametrize(
    "reason,message",
    [
        (MISFIT_REASON, "x: failed to parse field [cents] of type [long]"),
        (
            "[1:2] mapping set to strict, dynamic introduction of [extra] within [_doc] is not allowed",
            "x: mapping set to strict, dynamic introduction of [extra] within [_doc] is not allowed",
        ),
        ("failed to parse date field [secret] with format [iso]", "x: failed to parse date field […] with format […]"),
        ("Numeric value (12345) out of range of long", "x: Numeric value"),
        ("invalid value: secret", "x: invalid value"),
        ("", "x"),
        (None, "x"),
        ("y" * 1000, "x: " + "y" * 297),
    ],
)
def test_refusal_says_field_but_no_value(reason: str | None, message: str) -> None:
    """Elasticsearch quotes values in its reasons; people who may not see them read a dead letter's message."""
    assert without_payload("x", reason) == message


def test_refusals_sort_by_their_place_in_the_batch() -> None:
    """Refusals of re-sent items come later than those of their neighbours."""
    refusals: Sequence[Refusal] = [Refusal(2, Reason.TOO_LARGE, ""), Refusal(1, Reason.TOO_LARGE, "")]

    assert [refusal.index for refusal in sorted(refusals)] == [1, 2]


# One answer with every outcome there is (Case 86): what each means, and that nothing but the put off travels again.
BLOCKED = {"status": 429, "error": {"type": "cluster_block_exception", "reason": "index [orders-g1] blocked"}}
MAPPER = {"status": 400, "error": {"type": "mapper_parsing_exception", "reason": "failed to parse"}}
ARGUMENT = {"status": 400, "error": {"type": "illegal_argument_exception", "reason": "id is too long"}}
STRICT = {
    "status": 400,
    "error": {
        "type": "strict_dynamic_mapping_exception",
        "reason": "mapping set to strict, dynamic introduction of [x] within [_doc] is not allowed",
    },
}
BIG = {"status": 413, "error": {"type": "request_entity_too_large", "reason": "too large"}}
UNKNOWN = {"status": 418, "error": {"type": "something_new_exception", "reason": "?"}}


async def test_one_answer_with_every_outcome() -> None:
    """Case 86: taken, stale, refused and put off stand side by side; each goes its own way and the batch ends."""
    outcomes: list[dict[str, Any]] = [
        OK,
        {"status": 201},
        FULL,
        STALE,
        MAPPER,
        MISFIT,
        ARGUMENT,
        STRICT,
        NO_SHARD,
        BIG,
        BLOCKED,
        UNKNOWN,
    ]
    server, clock = Server(items(*outcomes), TAKEN), StillClock()

    applied = await writer(server, clock=clock).apply([b"%d\n" % n for n in range(12)])

    assert server.bodies[1:] == [b"2\n8\n10\n11\n"]
    assert applied.stale_at == {3}
    assert [(each.index, each.reason) for each in applied.refused] == [
        (4, Reason.INVALID_DOCUMENT),
        (5, Reason.INVALID_DOCUMENT),
        (6, Reason.INVALID_DOCUMENT),
        (7, Reason.INVALID_DOCUMENT),
        (9, Reason.TOO_LARGE),
    ]
    assert len(clock.slept) == 1


async def test_twice_too_busy_and_then_taken_is_three_calls_and_no_error() -> None:
    """Case 87: 429, 429, 200. Waits grow, and stay within their bounds."""
    server, clock = Server(whole(429, "es_rejected_execution_exception"), items(FULL, OK), TAKEN), StillClock()

    applied = await writer(server, clock=clock).apply([b"a\n", b"b\n"])

    assert server.bodies == [b"a\nb\n", b"a\nb\n", b"a\n"]
    assert (applied.refused, applied.stale) == ((), 0)
    first, second = clock.slept
    assert 0.05 <= first <= 0.1
    assert 0.2 <= second <= 0.4


async def test_limit_below_a_single_write_ends() -> None:
    """Case 93: a server, or a proxy, that takes nothing at all: each write alone is refused once, none for ever."""
    server = Server(*[whole(413)] * 20)

    applied = await writer(server).apply([b"a\n", b"b\n", b"c\n", b"d\n"])

    assert len(server.bodies) == 7
    assert [each.index for each in applied.refused] == [0, 1, 2, 3]


@pytest.mark.parametrize("answer", [whole(429), items(OK, FULL)])
async def test_overload_halves_the_requests_at_once(answer: Answer) -> None:
    """A store that is asked for more than it can do is asked by fewer requests, whatever form its no has."""
    concurrency = Concurrency(StillClock(), most=8)
    bulk = BulkWriter(
        "orders",
        Server(answer, TAKEN).post,
        clock=StillClock(),
        max_request_bytes=1000,
        concurrency=concurrency,
    )

    await bulk.apply([b"a\n", b"b\n"])

    assert concurrency.limit == 2, "one after the halving of what was under way, and one more for the good answer"


async def test_back_off_holds_up_nobody_else() -> None:
    """A lane that waits for a full queue has no request under way: another's documents need not wait with it."""
    concurrency = Concurrency(StillClock(), most=1)
    free: list[bool] = []

    class Looking(StillClock):
        async def sleep(self, seconds: float) -> None:
            async with concurrency.slot():
                free.append(True)

    bulk = BulkWriter(
        "orders", Server(whole(429), TAKEN).post, clock=Looking(), max_request_bytes=9, concurrency=concurrency
    )

    await bulk.apply([b"a\n"])

    assert free == [True]
