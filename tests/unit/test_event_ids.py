"""Event ids as producers really write them: what each becomes in each envelope, and under which claim."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.batch import Attempts, Batch
from consumers.claims import claims_of
from consumers.decoding import Decoded, Decoder
from consumers.envelopes import CloudEvents, DebeziumOutbox, PlainJson
from consumers.formats import Json
from consumers.routes import on
from consumers.topics import EnvelopeReader, Topic
from inbox.identity import CONSTANT_BUCKET, ClaimKey, ClaimRule
from tests.unit.records import StoredRecord
from tidegate_kernel.errors import Reason
from tidegate_kernel.event import LIVE, Event, Fence, JobId

V7 = "018bcfe5-6800-7000-8000-000000000001"  # 2023-11-14
V4 = "0f1e2d3c-4b5a-4968-8776-655443322110"
FAR_V7 = "ffffffff-ffff-7fff-bfff-ffffffffffff"  # the year 10889
DAY = "2023-11-14"
CONSTANT = "1970-01-01"
RULES = [ClaimRule(a, b) for a in (False, True) for b in (False, True)]

REFUSED, BY_PLACE = "refused", "by place"
"""A dead letter of an invalid envelope; an event that is known by where it stood."""


def nothing(event: Event[Any]) -> None:
    return None


def binary(id: Any) -> StoredRecord:
    header = id if isinstance(id, bytes) or id is None else str(id).encode()
    told = {"ce_specversion": b"1.0", "ce_id": header, "ce_source": b"/s", "ce_type": b"t"}
    return StoredRecord(b"{}", headers=tuple(told.items()))


def structured(id: Any) -> StoredRecord:
    return StoredRecord(_object({"specversion": "1.0", "id": id, "source": "/s", "type": "t", "data": {}}))


def routed(id: Any) -> StoredRecord:
    header = id if isinstance(id, bytes) or id is None else str(id).encode()
    return StoredRecord(b"{}", headers=(("id", header), ("eventType", b"t")))


def plain(id: Any) -> StoredRecord:
    return StoredRecord(_object({"event_id": id, "type": "t"}))


def _object(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")


CLOUD_EVENTS, OUTBOX, PLAIN = CloudEvents(), DebeziumOutbox(), PlainJson()
ENVELOPES: dict[str, tuple[EnvelopeReader, Any]] = {
    "binary": (CLOUD_EVENTS, binary),
    "structured": (CLOUD_EVENTS, structured),
    "outbox": (OUTBOX, routed),
    "plain": (PLAIN, plain),
}


def decoded(envelope: str, id: Any) -> Decoded:
    reader, record = ENVELOPES[envelope]
    topic = Topic("shop.orders", Json(), reader)
    return Decoder({topic.name: topic}, [on("t", dict, nothing)], "dead_letter").decode([record(id)])


def outcome(envelope: str, id: Any) -> str | tuple[str, str]:
    """REFUSED, BY_PLACE, or the id with the day it is claimed under."""
    batch = decoded(envelope, id)
    if batch.failures:
        assert batch.failures[0].error.reason in (Reason.INVALID_ENVELOPE, Reason.INVALID_TEXT)
        return REFUSED
    (arrival,) = batch.events
    (key,) = claimed(batch).keys
    return (arrival.event.id, str(key.bucket)) if arrival.event.id else BY_PLACE


def claimed(batch: Decoded, rule: ClaimRule = RULES[0]) -> Any:
    fence = Fence(JobId(1), LIVE, "shop.orders", 0, 1, 0)
    records = [arrival.record for arrival in batch.events]
    return claims_of(rule, Batch(fence, UUID(int=7), records, 1, Attempts()), batch.events)


TEXT_IDS = [
    pytest.param(V7, (V7, DAY), id="uuid7"),
    pytest.param(V7.upper(), (V7.upper(), DAY), id="uuid7-upper"),
    pytest.param(V4, (V4, CONSTANT), id="uuid4"),
    pytest.param(FAR_V7, (FAR_V7, CONSTANT), id="uuid7-of-the-year-10889"),
    pytest.param("order-17", ("order-17", CONSTANT), id="text"),
    pytest.param("17", ("17", CONSTANT), id="digits"),
    pytest.param("a b", ("a b", CONSTANT), id="blank-inside"),
    pytest.param(" 17 ", (" 17 ", CONSTANT), id="blanks-around"),
    pytest.param("é🙂", ("é🙂", CONSTANT), id="not-ascii"),
    pytest.param("null", ("null", CONSTANT), id="the-word-null"),
    pytest.param("x" * 1024, ("x" * 1024, CONSTANT), id="1024-letters"),
    pytest.param("x" * 1025, REFUSED, id="1025-letters"),
    pytest.param("x" * 10_000, REFUSED, id="10-kB"),
    pytest.param(" ", REFUSED, id="blank"),
    pytest.param("\t\n ", REFUSED, id="white-space"),
    pytest.param("\u2003", REFUSED, id="em-space"),
    pytest.param("a\0b", REFUSED, id="NUL"),
    pytest.param("\ud83d", REFUSED, id="lone-surrogate"),
]


@pytest.mark.parametrize("envelope", ENVELOPES)
@pytest.mark.parametrize("id, expected", TEXT_IDS)
def test_text_of_an_id_has_one_outcome_in_every_envelope(envelope: str, id: str, expected: Any) -> None:
    """Case 34: taken as it is, or a dead letter that names the id; never cut, trimmed or made up."""
    told: Any = id.encode("utf-8", "surrogatepass") if envelope in ("binary", "outbox") else id

    assert outcome(envelope, told) == expected


@pytest.mark.parametrize(
    "id, expected",
    [
        ("", {"binary": REFUSED, "structured": REFUSED, "outbox": REFUSED, "plain": BY_PLACE}),
        (None, {"binary": REFUSED, "structured": REFUSED, "outbox": REFUSED, "plain": BY_PLACE}),
        (17, {"structured": REFUSED, "plain": ("17", CONSTANT)}),
        (0, {"structured": REFUSED, "plain": ("0", CONSTANT)}),
        (-1, {"structured": REFUSED, "plain": ("-1", CONSTANT)}),
        (2**70, {"structured": REFUSED, "plain": (str(2**70), CONSTANT)}),
        (1.5, {"structured": REFUSED, "plain": REFUSED}),
        (True, {"structured": REFUSED, "plain": REFUSED}),
        ([V4], {"structured": REFUSED, "plain": REFUSED}),
        ({"id": V4}, {"structured": REFUSED, "plain": REFUSED}),
        (b"\xff\xfe", {"binary": REFUSED, "outbox": REFUSED}),
    ],
)
def test_id_that_is_empty_or_no_text_has_an_exact_outcome(id: Any, expected: dict[str, Any]) -> None:
    """Case 34: CloudEvents and the outbox demand an id; a plain object may have none, and may have a number."""
    assert {envelope: outcome(envelope, id) for envelope in expected} == expected


@pytest.mark.parametrize(
    "reader, value",
    [
        (PLAIN, b'{"event_id":"1","type":"t","event_id":"2"}'),
        (CLOUD_EVENTS, b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{},"id":"2"}'),
    ],
)
def test_last_of_two_equal_keys_is_the_id(reader: EnvelopeReader, value: bytes) -> None:
    """Case 34: what most parsers do, and always the same: two deliveries of the record have one claim."""
    topic = Topic("shop.orders", Json(), reader)
    decoder = Decoder({topic.name: topic}, [on("t", dict, nothing)], "dead_letter")

    (arrival,) = decoder.decode([StoredRecord(value)]).events

    assert arrival.event.id == "2"


def test_number_and_its_digits_are_one_id() -> None:
    """A producer that changes the JSON type of its key must not have every event handled again."""
    (number,), (digits,) = claimed(decoded("plain", 17)).keys, claimed(decoded("plain", "17")).keys
    assert number == digits


def _delivery(told: dict[str, Any], place: tuple[int, int, int]) -> StoredRecord:
    timestamp, offset, partition = place
    return StoredRecord(json.dumps(told).encode(), timestamp=timestamp, offset=offset, partition=partition)


_PLACES = st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 1000))
_IDS = st.one_of(st.uuids().map(str), st.just(V7), st.integers(), st.text(st.characters(codec="utf-8"), min_size=1))
_TIMES = st.one_of(st.none(), st.integers(-62_135_596_800_000, 253_402_300_799_999))


@pytest.mark.parametrize("rule", RULES, ids=ClaimRule.spell)
@given(id=_IDS, at=_TIMES, one=_PLACES, other=_PLACES)
def test_claim_follows_from_the_event_alone(
    rule: ClaimRule, id: str | int, at: int | None, one: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    """G2: whatever the record's timestamp, offset or partition, and whenever it comes: one bucket, one id. Also where
    the event tells no time of its own and the record's must not stand in for it."""
    told = {"event_id": id, "type": "t", "at": at}
    topic = Topic("shop.orders", Json(), PlainJson(occurred_at="at"))
    decoder = Decoder({topic.name: topic}, [on("t", dict, nothing)], "dead_letter")

    first, second = (decoder.decode([_delivery(told, place)]) for place in (one, other))

    assert len(first.failures) == len(second.failures)
    if first.events:
        assert claimed(first, rule).keys == claimed(second, rule).keys


def test_event_without_an_id_is_known_by_its_place() -> None:
    """A second delivery from the same place is the same event; from any other it is another."""
    topic = Topic("shop.orders", Json(), PLAIN)
    decoder = Decoder({topic.name: topic}, [on("t", dict, nothing)], "dead_letter")

    def key(place: tuple[int, int, int]) -> ClaimKey:
        (found,) = claimed(decoder.decode([_delivery({"type": "t"}, place)])).keys
        assert isinstance(found, ClaimKey)
        return found

    assert key((1, 5, 0)) == key((2, 5, 0))
    assert key((1, 5, 0)).bucket == CONSTANT_BUCKET
    assert len({key((1, 5, 0)), key((1, 6, 0)), key((1, 5, 1))}) == 3
