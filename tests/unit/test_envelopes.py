"""Each envelope opens to the same words: id, type, source, version, scope, time, correlation, payload."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.envelopes import CloudEvents, DebeziumOutbox, PlainJson
from consumers.topics import Envelope, EnvelopeReader, ScopeFields
from tests.unit.records import StoredRecord, cloud_event
from tidegate_kernel.errors import Misconfigured, Poison, Reason, Undecodable

SCOPED = ScopeFields(tenant="tenantid", brand="brandid")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PLAIN = PlainJson(version="v", occurred_at="at", correlation_id="cid", source="/legacy")


def opened(reader: EnvelopeReader, record: StoredRecord, scope: ScopeFields = SCOPED) -> Envelope:
    return reader.opener(scope)(record)


def payload(envelope: Envelope) -> bytes:
    return bytes(envelope.payload)


def refusal(reader: EnvelopeReader, record: StoredRecord) -> Undecodable:
    with pytest.raises(Undecodable) as caught:
        opened(reader, record)
    return caught.value


def structured(
    content_type: bytes | None = b"application/cloudevents+json; charset=utf-8", **fields: Any
) -> StoredRecord:
    attributes = {"specversion": "1.0", "id": "e1", "source": "/shop", "type": "order.placed", **fields}
    value = json.dumps({name: field for name, field in attributes.items() if field is not ...}).encode()
    return StoredRecord(value, headers=() if content_type is None else (("content-type", content_type),))


def routed(value: bytes, **headers: bytes | None) -> StoredRecord:
    named = {"id": b"e1", "eventType": b"OrderCreated", **headers}
    return StoredRecord(value, headers=tuple(named.items()))


def plain(**fields: Any) -> StoredRecord:
    return StoredRecord(json.dumps({"event_id": "e1", "type": "order.placed", **fields}).encode())


def test_binary_cloud_event_opens() -> None:
    """The attributes are headers, the value is the payload as it is."""
    record = cloud_event(
        b'{"a":1}',
        id=b"e1",
        time=b"2024-01-01T12:00:00.123456789+02:00",
        dataversion=b"3",
        tenantid=b"acme",
        brandid=b"one",
        correlationid=b"c1",
        traceparent=TRACE.encode(),
    )

    assert opened(CloudEvents(), record) == Envelope(
        "e1",
        "order.placed",
        b'{"a":1}',
        3,
        "/shop",
        "acme",
        "one",
        datetime(2024, 1, 1, 10, 0, 0, 123457, tzinfo=UTC),
        "c1",
        TRACE,
    )


def test_binary_cloud_event_with_required_attributes_only_opens() -> None:
    """What an event does not say is empty, and its schema version is 1."""
    assert opened(CloudEvents(), cloud_event(b"{}")) == Envelope("event-0", "order.placed", b"{}", 1, "/shop")


def test_structured_cloud_event_opens() -> None:
    """The same event as one JSON object; the payload is a view of the value."""
    record = structured(
        time="2024-01-01T12:00:00Z",
        dataversion=3,
        tenantid="acme",
        brandid=7,
        correlationid="c1",
        traceparent=TRACE,
        data={"a": 1},
        unknown=[],
    )

    envelope = opened(CloudEvents(), record)

    assert json.loads(payload(envelope)) == {"a": 1}
    assert (envelope.id, envelope.type, envelope.source, envelope.version) == ("e1", "order.placed", "/shop", 3)
    assert (envelope.tenant, envelope.brand) == ("acme", "7")
    assert envelope.occurred_at == datetime(2024, 1, 1, 12, tzinfo=UTC)
    assert (envelope.correlation_id, envelope.traceparent) == ("c1", TRACE)


def test_structured_cloud_event_is_known_without_its_content_type() -> None:
    """Many producers forget the header; a JSON object with `specversion` can be nothing else."""
    assert opened(CloudEvents(), structured(content_type=None)).id == "e1"


def test_content_type_decides_where_a_structured_event_repeats_its_headers() -> None:
    """The binding allows ce_ headers on structured events: the whole object must not be taken for the payload."""
    value = structured(data={"a": 1}).value
    record = cloud_event(value)
    record = StoredRecord(value, headers=(*record.headers, ("content-type", b"application/cloudevents+json")))

    assert payload(opened(CloudEvents(), record)) == b'{"a": 1}'


def test_base64_data_is_the_payload() -> None:
    """Structured events carry bytes this way."""
    record = structured(data_base64=base64.b64encode(b"\x00\xff").decode())

    assert payload(opened(CloudEvents(), record)) == b"\x00\xff"


def test_structured_event_without_data_is_no_tombstone() -> None:
    """Its record has a value: compaction keeps it, so it must not delete anything."""
    assert payload(opened(CloudEvents(), structured())) == b"null"


@pytest.mark.parametrize("name", ["id", "source", "type", "specversion"])
@pytest.mark.parametrize("value", ["absent", None, b"", b"\xc3\x28"])
def test_required_header_that_cannot_be_read_is_named(name: str, value: bytes | str | None) -> None:
    """Case 35: absent, without a value, empty, not UTF-8: the producer must learn which attribute it is."""
    attributes: dict[str, Any] = {name: value}
    record = cloud_event(b"{}", **attributes)
    if value == "absent":
        record = StoredRecord(b"{}", headers=[(n, v) for n, v in cloud_event(b"{}").headers if n != f"ce_{name}"])

    error = refusal(CloudEvents(), record)

    assert error.reason is Reason.INVALID_ENVELOPE
    assert f"'ce_{name}'" in str(error)


@pytest.mark.parametrize(
    "name, value",
    [
        ("specversion", b"0.3"),
        ("time", b"yesterday"),
        ("time", None),
        ("time", b'2024-01-01T00:00:00Z","'),
        ("time", b"0001-01-01T00:00:00+14:00"),
        ("time", b"58692-01-01T00:00:00Z"),
        ("dataversion", b"v2"),
        ("dataversion", b"-1"),
        ("dataversion", b"1" * 5000),
        ("dataversion", None),
        ("tenantid", b"\xff"),
        ("brandid", None),
    ],
)
def test_optional_header_that_cannot_be_read_is_named(name: str, value: bytes | None) -> None:
    """Case 35: a tenant or time that is there but unreadable must not count as none."""
    attributes: dict[str, Any] = {name: value}

    error = refusal(CloudEvents(), cloud_event(b"{}", **attributes))

    assert error.reason is Reason.INVALID_ENVELOPE
    assert f"ce_{name}" in str(error)


def test_foreign_headers_without_value_repeated_or_binary_are_left_alone() -> None:
    """Case 35: headers that we do not need cannot harm an event."""
    noise = (("k", None), ("k", b"\xc3\x28"), ("k", b"1"), ("traceparent", b"\xff"), ("correlation-id", None))
    record = StoredRecord(b"{}", headers=(*noise, *cloud_event(b"{}").headers, *noise))

    envelope = opened(CloudEvents(), record)

    assert (envelope.id, envelope.traceparent, envelope.correlation_id) == ("event-0", None, None)


def test_last_of_repeated_headers_counts() -> None:
    """Case 35: a proxy that adds its own header puts it behind the producer's."""
    record = cloud_event(b"{}")

    assert opened(CloudEvents(), StoredRecord(b"{}", headers=(*record.headers, ("ce_id", b"later")))).id == "later"


@pytest.mark.parametrize("name", ["correlation-id", "x-correlation-id"])
def test_correlation_id_comes_from_common_headers(name: str) -> None:
    """Producers that do not know the extension still correlate."""
    for record in (cloud_event(b"{}"), structured(), routed(b"{}")):
        with_header = StoredRecord(
            record.value, headers=(*record.headers, (name, b"c1"), ("traceparent", TRACE.encode()))
        )
        reader = DebeziumOutbox() if record.headers[0][0] == "id" else CloudEvents()

        envelope = opened(reader, with_header)

        assert (envelope.correlation_id, envelope.traceparent) == ("c1", TRACE)


@pytest.mark.parametrize(
    "fields, named",
    [
        ({"id": ...}, "'id'"),
        ({"id": ""}, "'id'"),
        ({"id": 5}, "$.id"),
        ({"source": None}, "'source'"),
        ({"type": ...}, "'type'"),
        ({"specversion": "0.3"}, "'specversion'"),
        ({"specversion": ...}, "'specversion'"),
        ({"time": "soon"}, "$.time"),
        ({"dataversion": "x"}, "'dataversion'"),
        ({"dataversion": -1}, "'dataversion'"),
        ({"tenantid": ["a"]}, "$.tenantid"),
        ({"data_base64": "?"}, "$.data_base64"),
        ({"data": 1, "data_base64": "AA=="}, "'data_base64'"),
    ],
)
def test_wrong_attribute_of_a_structured_event_is_named(fields: dict[str, Any], named: str) -> None:
    """The producer must learn which attribute it is."""
    error = refusal(CloudEvents(), structured(**fields))

    assert error.reason is Reason.INVALID_ENVELOPE
    assert named in str(error)


@pytest.mark.parametrize("kind", [b"application/cloudevents-batch+json", b"application/cloudevents+avro"])
def test_cloud_event_formats_that_are_not_read_are_told(kind: bytes) -> None:
    """A batch holds several events in one record, which has one offset."""
    assert refusal(CloudEvents(), structured(kind)).reason is Reason.INVALID_ENVELOPE


@pytest.mark.parametrize(
    "value, reason",
    [
        (b"\xff\xfe", Reason.UNDECODABLE),
        (b"", Reason.UNDECODABLE),
        (b"\xef\xbb\xbf{}", Reason.UNDECODABLE),
        (b'{"a":NaN}', Reason.INVALID_NUMBER),
        (b'{"id":"\\ud83d"}', Reason.INVALID_TEXT),
        (b"[]", Reason.INVALID_ENVELOPE),
        (b"null", Reason.INVALID_ENVELOPE),
        (b'"str"', Reason.INVALID_ENVELOPE),
        (b"[" * 100_000, Reason.INVALID_ENVELOPE),
    ],
)
@pytest.mark.parametrize("reader", [CloudEvents(), PLAIN])
def test_value_that_holds_no_envelope_has_its_exact_reason(
    reader: EnvelopeReader, value: bytes, reason: Reason
) -> None:
    """Cases 30, 31, 34: the same reasons as for payload, because the envelope stands in the same JSON."""
    assert refusal(reader, StoredRecord(value)).reason is reason


def test_outbox_record_opens() -> None:
    """The router puts id and type into headers; the value is the payload."""
    reader = DebeziumOutbox(version_header="schemaVersion", source="/orders")
    record = routed(b'{"a":1}', schemaVersion=b"2", tenantid=b"acme", brandid=b"one")

    assert opened(reader, record) == Envelope("e1", "OrderCreated", b'{"a":1}', 2, "/orders", "acme", "one")


@pytest.mark.parametrize(
    "value",
    [
        b'{"a":1}',
        json.dumps('{"a":1}').encode(),
        b'{"schema":{"type":"struct"},"payload":{"a":1}}',
        b'{"schema":{"type":"string","optional":false},"payload":"{\\"a\\":1}"}',
    ],
)
def test_outbox_payload_is_unwrapped_whatever_the_converter(value: bytes) -> None:
    """Connect wraps by default: JSON in a string without `expand.json.payload`, a schema with `schemas.enable`."""
    assert payload(opened(DebeziumOutbox(), routed(value))) == b'{"a":1}'


@pytest.mark.parametrize(
    "value", [b'{"schema":"s","a":1}', b'{"schema":1,"payload":2,"x":3}', b"\xff", b'"\\ud83d"', b""]
)
def test_outbox_payload_that_only_looks_wrapped_is_left_alone(value: bytes) -> None:
    """A payload may have a field named schema; what is broken is the format's to explain."""
    assert payload(opened(DebeziumOutbox(), routed(value))) == value


@pytest.mark.parametrize("text", [b'"OrderCreated"', b'{"schema":{"type":"string"},"payload":"OrderCreated"}'])
def test_outbox_headers_written_by_the_json_converter_are_plain_text(text: bytes) -> None:
    """`header.converter=JsonConverter` quotes every header; routes name the type without quotes."""
    assert opened(DebeziumOutbox(), routed(b"{}", eventType=text)).type == "OrderCreated"


@pytest.mark.parametrize("name", ["id", "eventType"])
@pytest.mark.parametrize("value", [None, b"", b"\xff", b'{"schema":1}', b'""'])
def test_outbox_header_that_cannot_be_read_is_named(name: str, value: bytes | None) -> None:
    """Case 35: without id or type the record cannot be handled once."""
    error = refusal(DebeziumOutbox(), routed(b"{}", **{name: value}))

    assert error.reason is Reason.INVALID_ENVELOPE
    assert f"{name!r}" in str(error)


def test_outbox_fields_can_have_other_names() -> None:
    """The names are settings of the router."""
    reader = DebeziumOutbox(id_header="event_id", type_header="kind", source_header="app")
    record = StoredRecord(b"{}", headers=(("event_id", b"e1"), ("kind", b"k"), ("app", b"/billing")))

    assert opened(reader, record) == Envelope("e1", "k", b"{}", 1, "/billing")


def test_plain_object_opens() -> None:
    """Topics from before any standard carry the envelope among the fields."""
    record = plain(v=2, at="2024-01-01T12:00:00", tenantid="acme", brandid="one", cid="c1")

    assert opened(PLAIN, record) == Envelope(
        "e1",
        "order.placed",
        record.value or b"",
        2,
        "/legacy",
        "acme",
        "one",
        datetime(2024, 1, 1, 12, tzinfo=UTC),
        "c1",
    )


def test_plain_object_with_a_data_field_has_that_as_its_payload() -> None:
    """The model then describes the data alone."""
    assert payload(opened(PlainJson(data="payload"), plain(payload={"a": 1}))) == b'{"a": 1}'
    assert "'payload'" in str(refusal(PlainJson(data="payload"), plain()))


@pytest.mark.parametrize(
    "reader", [PlainJson(id=None), PlainJson(id="nr"), PlainJson(id="none"), PlainJson(id="empty")]
)
def test_plain_object_without_an_id_opens_without_one(reader: PlainJson) -> None:
    """It is then known by its place in the topic; an empty id would make all such events one."""
    assert opened(reader, plain(none=None, empty="")).id is None


def test_plain_id_may_be_a_number() -> None:
    """Database keys are often the id."""
    assert opened(PlainJson(), plain(event_id=12345678901234567890)).id == "12345678901234567890"


def test_plain_type_may_be_fixed() -> None:
    """Topics of one type often do not name it."""
    assert opened(PlainJson(type=None, type_value="t"), plain()).type == "t"
    assert opened(PlainJson(type="kind", type_value="t"), plain()).type == "t"
    assert "'kind'" in str(refusal(PlainJson(type="kind"), plain()))
    with pytest.raises(Misconfigured, match="type_value"):
        PlainJson(type=None)


@pytest.mark.parametrize(
    "at, instant",
    [
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (1_700_000_000_123, datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)),
        (-1, datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)),
        ("2024-01-01T00:00:00-05:00", datetime(2024, 1, 1, 5, tzinfo=UTC)),
        (None, None),
    ],
)
def test_plain_time_is_text_or_milliseconds(at: Any, instant: datetime | None) -> None:
    """Both are in use; the result is always aware and UTC."""
    assert opened(PLAIN, plain(at=at)).occurred_at == instant


@pytest.mark.parametrize(
    "fields, named",
    [
        ({"at": 1_700_000_000_000_000_000}, "'at'"),
        ({"at": "soon"}, "$.at"),
        ({"at": True}, "$.at"),
        ({"v": "x"}, "'v'"),
        ({"v": 1.5}, "$.v"),
        ({"tenantid": {}}, "$.tenantid"),
        ({"event_id": [1]}, "$.event_id"),
        ({"type": 1}, "$.type"),
    ],
)
def test_wrong_field_of_a_plain_object_is_named(fields: dict[str, Any], named: str) -> None:
    """The producer must learn which field it is."""
    error = refusal(PLAIN, plain(**fields))

    assert error.reason is Reason.INVALID_ENVELOPE
    assert named in str(error)


def test_one_field_named_twice_is_refused_at_start() -> None:
    """It is a mistake in the declaration, told before the first record."""
    with pytest.raises(Misconfigured, match="'event_id'"):
        PlainJson(correlation_id="event_id").opener(SCOPED)


READERS: list[EnvelopeReader] = [
    CloudEvents(),
    DebeziumOutbox(version_header="ce_dataversion"),
    PLAIN,
    PlainJson(id=None, data="data"),
]
_NAMES = ["ce_id", "ce_type", "ce_source", "ce_specversion", "ce_time", "ce_dataversion", "ce_tenantid"]
_NAMES += ["id", "eventType", "tenantid", "content-type", "traceparent", "correlation-id", "k"]
_TEXTS = [
    b"1.0",
    b"e1",
    b"application/cloudevents+json",
    b"2024-01-01T00:00:00Z",
    b'"q"',
    b'{"schema":1,"payload":"x"}',
    b"7",
    None,
]
headers = st.lists(
    st.tuples(st.sampled_from(_NAMES), st.one_of(st.sampled_from(_TEXTS), st.binary(max_size=8))), max_size=12
)
_JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just("2024-01-01T00:00:00Z")
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=4,
)
_FIELDS = [
    "specversion",
    "id",
    "type",
    "source",
    "time",
    "data",
    "data_base64",
    "tenantid",
    "event_id",
    "v",
    "at",
    "cid",
]
objects = st.dictionaries(st.sampled_from(_FIELDS), _JSON, max_size=8).map(
    lambda fields: json.dumps({"specversion": "1.0", "id": "e", "source": "s", "type": "t", **fields}).encode(
        "utf-8", "replace"
    )
)


# The clock of a busy machine is not what this test is about.
@given(value=st.one_of(st.none(), st.binary(max_size=40), objects), headers=headers)
def test_only_poison_leaves_an_envelope_whatever_the_bytes(value: bytes | None, headers: Any) -> None:
    """Anything else would stop the partition for a record that will never get better."""
    record = StoredRecord(value, headers=tuple(headers))
    for reader in READERS:
        try:
            envelope = opened(reader, record)
        except Poison as error:
            str(error).encode("utf-8")
        else:
            assert envelope.type
            assert envelope.occurred_at is None or envelope.occurred_at.tzinfo is UTC
