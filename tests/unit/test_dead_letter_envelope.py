"""The record of the DLQ topic: the original untouched, our headers bounded and never stacked."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from hashlib import sha256
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from dlq.envelope import (
    MAX_HEADERS_BYTES,
    PREFIX,
    Notice,
    Place,
    dead_letter_record,
    outcome_record,
    reduced,
    without_payload,
)
from dlq.states import LetterState
from tidegate_kernel.event import Headers
from tidegate_kernel.source import Outgoing


@dataclass
class Given:
    """A record with only the fields that matter."""

    value: bytes | None = b"{}"
    key: bytes | None = b"k"
    headers: Headers = field(default_factory=list)
    topic: str = "shop.orders"
    partition: int = 7
    offset: int = 42
    timestamp: int = 1


NOTICE = Notice(
    id=UUID(int=5),
    place=Place("shop.orders", 7, 42),
    topic_id=UUID(int=9),
    claim=(date(2026, 1, 1), UUID(int=8)),
    job="customer-ledger",
    group="shop.customer-ledger",
    event_id="e-1",
    event_type="order.placed",
    reason="handler_failed",
    error_class="ValueError",
    error_message="ValueError at shop/handlers.py:1 charge",
    stack="ValueError\n  shop/handlers.py:1 charge",
    fingerprint="0123456789abcdef",
    attempts=3,
    occurrences=2,
    first_failed_at=datetime(2026, 1, 1, tzinfo=UTC),
    last_failed_at=datetime(2026, 1, 2, tzinfo=UTC),
    correlation_id="c-1",
    traceparent="00-1-2-01",
    tenant="acme",
    brand="north",
    handler="record_purchase",
    service_version="1.2.3",
    replay_count=0,
    backfill=False,
)


def letter(record: Given, notice: Notice = NOTICE) -> Outgoing:
    return dead_letter_record(notice, record, topic="shop.customer-ledger.dlq")


def ours(outgoing: Outgoing) -> dict[str, str]:
    """Our headers by their short name; fails on a repeated one."""
    found = [(n.removeprefix(PREFIX), (v or b"").decode()) for n, v in outgoing.headers if n.startswith(PREFIX)]
    assert len(found) == len(dict(found))
    return dict(found)


def our_bytes(outgoing: Outgoing) -> int:
    return sum(len(n.encode()) + len(v or b"") for n, v in outgoing.headers if n.startswith(PREFIX))


def test_key_value_and_headers_of_the_original_are_untouched() -> None:
    """Case 46: what could not be decoded must not be decoded on its way to the DLQ either."""
    original: Headers = [("h", b"1"), ("h", None), ("bin", b"\xff\x00"), ("h", b"")]

    outgoing = letter(Given(value=b"\xff", key=b"\xfe", headers=original))

    assert (outgoing.key, outgoing.value) == (b"\xfe", b"\xff")
    assert list(outgoing.headers[:4]) == original
    assert not any(name.startswith(PREFIX) for name, _ in outgoing.headers[:4])


def test_where_it_stood_is_told_in_headers_and_the_partition_is_left_to_the_key() -> None:
    """Case 44: the DLQ topic may have fewer partitions than the source."""
    outgoing = letter(Given())

    assert outgoing.partition is None
    assert (ours(outgoing)["topic"], ours(outgoing)["partition"], ours(outgoing)["offset"]) == (
        "shop.orders",
        "7",
        "42",
    )


def test_group_and_handler_say_which_consumer_failed() -> None:
    """Case 53: two groups read the topic, one failed."""
    told = ours(letter(Given()))

    assert (told["group"], told["handler"]) == ("shop.customer-ledger", "record_purchase")
    assert told["replay-instruction"] == f"tidegate dlq replay --letter {UUID(int=5)} --reason '…'"


DESIGNED = """
    id job group topic topic-id partition offset timestamp event-id event-type claim reason error-class error-message
    stack fingerprint attempts occurrences first-failed-at last-failed-at correlation-id tenant brand traceparent
    handler service-version replay-count replay-of replay-instruction payload
"""


def test_every_header_of_the_design_is_written_with_its_own_value() -> None:
    """A reader of the topic has nothing else: one that is missing, or says what another should, misleads it."""
    told = ours(letter(Given(headers=[("tg-dlq-id", b"earlier")])))

    assert sorted(told) == sorted(DESIGNED.split())
    assert (told["attempts"], told["occurrences"]) == ("3", "2")
    assert (told["topic-id"], told["claim"]) == (str(UUID(int=9)), f"2026-01-01/{UUID(int=8)}")
    assert (told["first-failed-at"], told["last-failed-at"]) == (
        "2026-01-01T00:00:00+00:00",
        "2026-01-02T00:00:00+00:00",
    )
    assert (told["tenant"], told["brand"]) == ("acme", "north")
    assert (told["correlation-id"], told["traceparent"]) == ("c-1", "00-1-2-01")
    assert (told["event-id"], told["event-type"]) == ("e-1", "order.placed")
    assert (told["error-class"], told["fingerprint"]) == ("ValueError", "0123456789abcdef")
    assert (told["replay-of"], told["replay-count"]) == ("earlier", "0")
    assert ours(letter(Given(), replace(NOTICE, backfill=True)))["backfill"] == "true"


def test_five_failures_of_a_failed_letter_do_not_grow_it() -> None:
    """Case 42's slow form: a job that reads a DLQ topic would stack headers until the broker refuses the record."""
    record, outgoing = Given(headers=[("h", b"1"), ("h", b"2")]), Outgoing("", None)
    sizes = []
    for attempt in range(6):
        outgoing = letter(record, replace(NOTICE, id=UUID(int=attempt)))
        sizes.append(our_bytes(outgoing))
        record = Given(headers=outgoing.headers, value=outgoing.value)

    assert ours(outgoing)["replay-of"] == str(UUID(int=4))
    assert list(outgoing.headers[:2]) == [("h", b"1"), ("h", b"2")]
    assert len(set(sizes[1:])) == 1


@given(st.text(max_size=20_000), st.text(max_size=3000))
def test_our_headers_stay_within_their_bound(stack: str, text: str) -> None:
    """Case 42: a topic's size limit must not be exceeded because of what we add."""
    long = replace(
        NOTICE, stack=stack, error_message=text, event_id=text, event_type=text, tenant=text, brand=text, handler=text
    )
    longer = replace(long, job=text, group=text, correlation_id=text, traceparent=text, service_version=text)

    outgoing = letter(Given(), longer)

    assert our_bytes(outgoing) <= MAX_HEADERS_BYTES
    ours(outgoing)  # every cut ends on a whole character


def test_the_worst_texts_fill_the_bound_without_exceeding_it() -> None:
    """The bound holds where every single text is at its own limit, in characters of four bytes."""
    wide = "\U0001f600" * 20_000
    full = replace(
        NOTICE, stack=wide, error_message=wide, event_id=wide, event_type=wide, tenant=wide, brand=wide, handler=wide
    )
    fuller = replace(full, job=wide, group=wide, correlation_id=wide, traceparent=wide, service_version=wide)

    size = our_bytes(letter(Given(), replace(fuller, error_class=wide, place=Place("t" * 249, 7, 42))))

    assert MAX_HEADERS_BYTES - 300 < size <= MAX_HEADERS_BYTES


def test_an_omitted_payload_is_told_by_size_and_digest() -> None:
    """Case 42: the reader must learn that something is missing and be able to prove what it was."""
    value = b"x" * 1000

    outgoing = without_payload(letter(Given(value=value, headers=[("h", b"1")])))

    assert outgoing.value is None
    assert ours(outgoing)["payload"] == f"omitted; size=1000; sha256={sha256(value).hexdigest()}"
    assert outgoing.headers[0] == ("h", b"1")
    assert outgoing.key == b"k"


def test_a_record_without_key_and_value_is_a_letter_too() -> None:
    """Case 29: a tombstone that fails is no less a dead letter."""
    outgoing = letter(Given(value=None, key=None))

    assert (outgoing.key, outgoing.value) == (None, None)
    assert ours(outgoing)["payload"] == "intact"
    assert without_payload(outgoing) == outgoing


def test_the_smallest_form_has_our_headers_only() -> None:
    """A record whose own headers exceed the topic's limit still leaves its coordinates behind."""
    forms = list(reduced(letter(Given(headers=[("h", b"x" * 2_000_000)]))))

    assert [name.startswith(PREFIX) for name, _ in forms[-1].headers].count(False) == 0
    assert ours(forms[-1])["offset"] == "42"
    assert ours(forms[-1])["payload"].startswith("omitted; size=2; ")


def test_an_outcome_is_told_under_the_letters_id_and_key_and_is_no_letter() -> None:
    """Keyed otherwise it would stand in another partition than its letter; with a value it would look like one."""
    outgoing = outcome_record(
        letter=UUID(int=5),
        key=b"\xfe",
        job="j" * 500,
        state=LetterState.RESOLVED,
        decided_at=datetime(2026, 1, 3, tzinfo=UTC),
        topic="shop.customer-ledger.dlq",
    )

    assert (outgoing.topic, outgoing.key, outgoing.value) == ("shop.customer-ledger.dlq", b"\xfe", None)
    told = ours(outgoing)
    assert (told["id"], told["state"]) == (str(UUID(int=5)), "resolved")
    assert told["decided-at"] == "2026-01-03T00:00:00+00:00"
    assert len(told["job"].encode()) <= 255
    assert "payload" not in told
