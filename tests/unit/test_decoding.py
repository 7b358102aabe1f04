"""A batch becomes events, tombstones, failures and skipped records; one bad record costs only itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator

from consumers.decoding import Decoded, Decoder
from consumers.envelopes import CloudEvents, PlainJson
from consumers.formats import Json
from consumers.routes import Route, Unlisted, on
from consumers.topics import EnvelopeReader, ScopeFields, Topic
from tests.unit.records import StoredRecord, cloud_event
from tidegate_kernel.errors import InvalidEvent, Misconfigured, Poison, Reason, UnknownType
from tidegate_kernel.event import NO_SCOPE, Event, Scope

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
GOOD = b'{"order_id":"o1"}'


class OrderPlaced(msgspec.Struct):
    order_id: str
    amount: float = 0.0


def handled(event: Event[Any]) -> str:
    return event.id


ROUTE = on("order.placed", OrderPlaced, handled)


def decoder(*routes: Route[Any], unlisted: Unlisted = "skip", envelope: EnvelopeReader | None = None) -> Decoder:
    orders = Topic("shop.orders", Json(), envelope or CloudEvents(), ScopeFields("tenantid", "brandid"))
    return Decoder({orders.name: orders}, routes or (ROUTE,), unlisted)


def decoded(*records: StoredRecord, routes: Sequence[Route[Any]] = (), unlisted: Unlisted = "skip") -> Decoded:
    return decoder(*routes, unlisted=unlisted).decode(records)


def only_failure(batch: Decoded) -> Poison:
    assert (batch.events, batch.tombstones, batch.unlisted) == ([], [], 0)
    (failure,) = batch.failures
    return failure.error


def test_record_becomes_an_event_with_everything_its_envelope_says() -> None:
    """Handlers, claims, logs and dead letters all take it from the event."""
    record = cloud_event(
        GOOD,
        id=b"e1",
        time=b"2024-01-01T00:00:00Z",
        tenantid=b"acme",
        brandid=b"one",
        correlationid=b"c",
        traceparent=b"t",
    )

    (arrival,) = decoded(record).events

    assert (arrival.record, arrival.route) == (record, ROUTE)
    assert arrival.event == Event(
        id="e1",
        type="order.placed",
        data=OrderPlaced("o1"),
        record=record,
        occurred_at=datetime(2024, 1, 1, tzinfo=UTC),
        version=1,
        source="/shop",
        scope=Scope("acme", "one"),
        correlation_id="c",
        traceparent="t",
    )


def test_undecodable_record_fails_alone() -> None:
    """Case 1: with a deserializer in the client the good records before it would wait as well."""
    values = [GOOD, GOOD, GOOD, b"\xff\xfe", GOOD]

    batch = decoded(*(cloud_event(value, offset=n) for n, value in enumerate(values)))

    assert [arrival.record.offset for arrival in batch.events] == [0, 1, 2, 4]
    assert [failure.record.offset for failure in batch.failures] == [3]


def test_bad_record_at_the_head_fails_the_same_way_every_time_and_holds_nothing_back() -> None:
    """Case 6: decoding is pure, so it is not tried again, and the next offset decodes."""
    road = decoder()
    records = [cloud_event(b"{", offset=0), cloud_event(GOOD, offset=1)]

    for batch in [road.decode(records) for _ in range(3)]:
        assert [(f.record.offset, f.error.reason) for f in batch.failures] == [(0, Reason.UNDECODABLE)]
        assert [arrival.record.offset for arrival in batch.events] == [1]


@pytest.mark.parametrize("key", [b"42", None])
@pytest.mark.parametrize("headers", [(), (("ce_id", b"\xff"),), (("content-type", None),)])
def test_record_without_a_value_is_a_tombstone_and_no_error(key: bytes | None, headers: Any) -> None:
    """Cases 28 and 29: compacted topics delete this way; usually no header tells anything, and there may be no key."""
    record = StoredRecord(None, key=key, headers=headers)

    batch = decoded(record)

    ((found, topic),) = batch.tombstones
    assert (found, topic.name) == (record, "shop.orders")
    assert (batch.events, batch.failures, batch.unlisted) == ([], [], 0)


@pytest.mark.parametrize(
    "value, reason",
    [
        (b'{"order_id":"o1","amount":NaN}', Reason.INVALID_NUMBER),
        (b'{"order_id":"o1","amount":1e999}', Reason.INVALID_NUMBER),
        (b'{"order_id":"\\ud83d"}', Reason.INVALID_TEXT),
        (b'{"order_id":7}', Reason.INVALID_EVENT),
        (b"{}", Reason.INVALID_EVENT),
        (b"[]", Reason.INVALID_EVENT),
        (b'"str"', Reason.INVALID_EVENT),
        (b"null", Reason.INVALID_EVENT),
        (b"", Reason.UNDECODABLE),
        (b"\xef\xbb\xbf" + GOOD, Reason.UNDECODABLE),
    ],
)
def test_bad_payload_has_its_reason_and_its_neighbours_are_events(value: bytes, reason: Reason) -> None:
    """Cases 30, 31, 34: a store's refusal of a whole bulk is too late."""
    batch = decoded(cloud_event(GOOD, offset=0), cloud_event(value, offset=1), cloud_event(GOOD, offset=2))

    assert [arrival.record.offset for arrival in batch.events] == [0, 2]
    assert [failure.error.reason for failure in batch.failures] == [reason]


def test_nul_in_the_payload_is_an_event_like_any_other() -> None:
    """Case 32: only a store that cannot hold it may refuse it."""
    (arrival,) = decoded(cloud_event(b'{"order_id":"a\\u0000b"}')).events

    assert arrival.event.data.order_id == "a\0b"


@pytest.mark.parametrize(
    "attributes", [{"id": b"a\0b"}, {"id": b"x" * 1025}, {"tenantid": b"\0"}, {"brandid": b"x" * 1025}]
)
def test_id_or_scope_that_cannot_be_a_name_is_refused(attributes: dict[str, Any]) -> None:
    """Case 32: they go into text columns and indexes of our own, where one such name would fail a whole batch."""
    batch = decoded(cloud_event(GOOD, **attributes))

    assert only_failure(batch).reason is Reason.INVALID_ENVELOPE
    assert batch.failures[0].envelope is None


def test_event_sees_headers_without_value_repeated_or_binary() -> None:
    """Case 35: a handler gets them as they are: order, repeats, bytes."""
    noise = (("k", None), ("k", b"\xc3\x28"), ("k", b"1"))
    record = StoredRecord(GOOD, headers=(*noise, *cloud_event(GOOD).headers))

    (arrival,) = decoded(record).events

    assert tuple(arrival.event.headers)[:3] == noise


def test_failure_carries_the_envelope_where_it_could_be_opened() -> None:
    """The dead letter then has id, type, scope and correlation id to be found by."""
    batch = decoded(cloud_event(b"{", offset=0, tenantid=b"acme", correlationid=b"c"), StoredRecord(b"{", offset=1))

    first, second = batch.failures
    assert first.envelope is not None
    assert (first.envelope.id, first.envelope.tenant, first.envelope.correlation_id) == ("event-0", "acme", "c")
    assert second.envelope is None


def test_unlisted_type_is_skipped_and_counted_without_reading_its_payload() -> None:
    """G1: what was skipped is known by number; a foreign type's payload is nobody's business."""
    batch = decoded(
        cloud_event(b"\xff", type_="a"), cloud_event(b"", type_="a"), cloud_event(GOOD), cloud_event(GOOD, type_="b")
    )

    assert (batch.unlisted, batch.unlisted_types) == (3, {"a": 2, "b": 1})
    assert len(batch.events) == 1
    assert batch.failures == []


def test_names_of_unlisted_types_are_bounded() -> None:
    """A producer that puts an id into the type must not grow our memory or metrics."""
    batch = decoded(*(cloud_event(GOOD, type_=f"type-{n}" * 100, offset=n) for n in range(1000)))

    assert batch.unlisted == sum(batch.unlisted_types.values()) == 1000
    assert len(batch.unlisted_types) == 51
    assert max(map(len, batch.unlisted_types)) <= 100


def test_unlisted_type_is_a_failure_where_the_job_says_so() -> None:
    """`unlisted="dead_letter"` is for jobs that must see everything."""
    error = only_failure(decoded(cloud_event(GOOD, type_="order.gone"), unlisted="dead_letter"))

    assert isinstance(error, UnknownType)
    assert error.reason is Reason.UNKNOWN_TYPE
    assert "'order.gone'" in str(error)


def to_v2(plain: dict[str, Any]) -> dict[str, Any]:
    return {"order_id": plain["order"]}


def to_v3(plain: dict[str, Any]) -> dict[str, Any]:
    return {**plain, "amount": 1.5}


V3 = on("order.placed", OrderPlaced, handled, version=3, upcast={1: to_v2, 2: to_v3})


@pytest.mark.parametrize(
    "version, value", [(b"1", b'{"order":"o1"}'), (b"2", GOOD), (b"3", b'{"order_id":"o1","amount":1.5}')]
)
def test_older_version_is_lifted_step_by_step(version: bytes, value: bytes) -> None:
    """A topic keeps old events for years; functions are written for the newest model only."""
    (arrival,) = decoded(cloud_event(value, dataversion=version), routes=[V3]).events

    assert arrival.event.data == OrderPlaced("o1", 1.5)
    assert arrival.event.version == 3


@pytest.mark.parametrize("version", [b"0", b"4"])
def test_version_that_no_upcast_reaches_follows_the_unlisted_rule(version: bytes) -> None:
    """A newer schema must not be read with an older model as if nothing had changed."""
    record = cloud_event(GOOD, dataversion=version)

    error = only_failure(decoded(record, routes=[V3], unlisted="dead_letter"))

    assert error.reason is Reason.UNKNOWN_VERSION
    assert decoded(record, routes=[V3]).unlisted_types == {"order.placed": 1}


def test_version_behind_a_gap_in_the_upcasts_is_unknown() -> None:
    """Half a lift would give an object of no version."""
    route = on("order.placed", OrderPlaced, handled, version=3, upcast={1: to_v2})

    error = only_failure(decoded(cloud_event(GOOD, dataversion=b"1"), routes=[route], unlisted="dead_letter"))

    assert error.reason is Reason.UNKNOWN_VERSION


class Unexpected(Exception):
    """What no library would raise."""


def broken(plain: dict[str, Any]) -> dict[str, Any]:
    raise Unexpected(str(plain))


class Broken(BaseModel):
    order_id: str

    @field_validator("order_id")
    @classmethod
    def _check(cls, value: str) -> str:
        raise Unexpected(value)


@pytest.mark.parametrize(
    "route",
    [on("order.placed", OrderPlaced, handled, version=2, upcast={1: broken}), on("order.placed", Broken, handled)],
)
def test_whatever_a_model_or_upcast_raises_is_the_events_failure(route: Route[Any]) -> None:
    """The good records around it must not wait for the developer's fix; the text may quote payload and is not told."""
    error = only_failure(decoded(cloud_event(b'{"order_id":"secret"}'), routes=[route]))

    assert isinstance(error, InvalidEvent)
    assert "Unexpected" in str(error)
    assert "secret" not in str(error)
    assert error.__traceback__ is not None


@pytest.mark.parametrize("trouble", [MemoryError, ConnectionError])
def test_the_machines_trouble_is_not_the_records_fault(trouble: type[Exception]) -> None:
    """G5: a good record must not be buried because memory or a disk failed while it was read."""

    def unlucky(plain: dict[str, Any]) -> dict[str, Any]:
        raise trouble

    with pytest.raises(trouble):
        decoded(cloud_event(GOOD), routes=[on("order.placed", OrderPlaced, handled, version=2, upcast={1: unlucky})])


def test_event_without_an_id_has_an_empty_one() -> None:
    """Its claim is made from its place in the topic, which only the pipeline knows whole."""
    road = decoder(on("t", dict, handled), envelope=PlainJson(type=None, type_value="t"))

    (arrival,) = road.decode([StoredRecord(b'{"a":1}')]).events

    assert (arrival.event.id, arrival.event.data, arrival.event.scope) == ("", {"a": 1}, NO_SCOPE)


@pytest.mark.parametrize(
    "timestamp, instant",
    [
        (1_700_000_000_123, datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)),
        (-1, EPOCH),
        (1_700_000_000_000_000, EPOCH),
        (2**63 - 1, EPOCH),
        (-(2**63), EPOCH),
    ],
)
def test_time_comes_from_the_record_where_the_envelope_has_none(timestamp: int, instant: datetime) -> None:
    """Brokers store whatever a producer says: -1, microseconds, the year 58692."""
    record = StoredRecord(GOOD, headers=cloud_event(GOOD).headers, timestamp=timestamp)

    (arrival,) = decoded(record).events

    assert arrival.event.occurred_at == instant


def test_events_of_one_scope_share_it() -> None:
    """Thousands of events a second name the same few tenants."""
    first, second = decoded(*(cloud_event(GOOD, offset=n, tenantid=b"acme") for n in range(2))).events

    assert first.event.scope is second.event.scope == Scope("acme")


def test_topics_of_a_job_keep_their_own_envelopes() -> None:
    """A job may read an old topic and a new one."""
    topics = {
        "old": Topic("old", Json(), PlainJson(id="order_id", type=None, type_value="order.placed")),
        "shop.orders": Topic("shop.orders", Json(), CloudEvents()),
    }

    batch = Decoder(topics, [ROUTE], "skip").decode([StoredRecord(GOOD, topic="old"), cloud_event(GOOD)])

    assert [arrival.event.id for arrival in batch.events] == ["o1", "event-0"]


def test_two_routes_of_one_type_are_refused_at_start() -> None:
    """One of them would silently never run."""
    with pytest.raises(Misconfigured, match=r"'order\.placed'"):
        decoder(ROUTE, ROUTE)


_values = st.one_of(st.none(), st.binary(max_size=30), st.sampled_from([GOOD, b'{"order":"x"}', b'{"order_id":NaN}']))
_records = st.builds(
    lambda value, extra, type_: StoredRecord(value, headers=(*cloud_event(value, type_=type_).headers, *extra)),
    _values,
    st.lists(
        st.tuples(
            st.sampled_from(
                ["ce_id", "ce_time", "ce_dataversion", "ce_tenantid", "ce_specversion", "content-type", "x"]
            ),
            st.one_of(st.none(), st.binary(max_size=6), st.sampled_from([b"1", b"2", b"application/cloudevents+json"])),
        ),
        max_size=3,
    ),
    st.sampled_from(["order.placed", "other"]),
)


# The clock of a busy machine is not what this test is about.
@given(records=st.lists(_records, max_size=6), unlisted=st.sampled_from(["skip", "dead_letter"]))
def test_every_record_has_exactly_one_outcome_whatever_its_bytes(
    records: list[StoredRecord], unlisted: Unlisted
) -> None:
    """G1: a record that is in no list would be lost without a trace."""
    numbered = [StoredRecord(r.value, headers=r.headers, offset=n) for n, r in enumerate(records)]

    batch = decoder(V3, unlisted=unlisted).decode(numbered)

    offsets = [a.record.offset for a in batch.events] + [f.record.offset for f in batch.failures]
    offsets += [record.offset for record, _ in batch.tombstones]
    assert len(offsets) == len(set(offsets))
    assert len(offsets) + batch.unlisted == len(records)
    assert [a.record.offset for a in batch.events] == sorted(a.record.offset for a in batch.events)
