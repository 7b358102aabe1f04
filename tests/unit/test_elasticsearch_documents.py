"""What becomes a bulk line, and what is refused before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.elasticsearch import Elasticsearch
from projections.elasticsearch_lines import bulk_lines, bulk_lines_at_once, stored_id
from projections.elasticsearch_sink import ElasticsearchSink
from projections.writes import MAX_VERSION, Delete, Upsert, Write
from tidegate_kernel.errors import InvalidDocument, Misconfigured, Reason


class At:
    """A clock that stands at one time."""

    def __init__(self, time: str) -> None:
        self._time = datetime.fromisoformat(time)

    def now(self) -> datetime:
        return self._time

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


LIMIT = 1000
ORDERS = Elasticsearch(index="orders", mappings={"properties": {"x": {"type": "long"}}})
UNUSED: Any = None  # a client that is never asked


class Order(msgspec.Struct):
    order_id: str
    price: float


class OwnUpsert(Upsert, frozen=True):
    pass


@dataclass
class Line:
    price: float


def lines(document: Any) -> bytes:
    return bulk_lines(Upsert("a", 1, document), LIMIT)


def test_upsert_is_an_action_and_a_document() -> None:
    """The exact bytes: version and its type make re-applying harmless."""
    assert bulk_lines(Upsert('a"b', 7, {"x": "ü"}), LIMIT) == (
        b'{"index":{"_id":"a\\"b","version":7,"version_type":"external_gte"}}\n{"x":"\xc3\xbc"}\n'
    )


def test_delete_is_a_versioned_tombstone_document() -> None:
    """Case 90: a delete that leaves nothing behind would let a late older event bring the document back. It says when
    it was written, so that it can leave when nothing older can come any more."""
    assert bulk_lines(Delete("a", 7), LIMIT, At("2024-01-01T00:00:00+00:00")) == (
        b'{"index":{"_id":"a","version":7,"version_type":"external_gte"}}\n'
        b'{"tg_deleted":true,"tg_deleted_at":1704067200000}\n'
    )


numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(min_size=1), st.integers(0, MAX_VERSION), st.dictionaries(st.text(), json_values, max_size=4))
def test_any_document_is_two_lines_that_say_what_was_given(document_id: str, version: int, document: Any) -> None:
    """A line end too many would shift every later document of the request to another id."""
    encoded = bulk_lines(Upsert(document_id, version, document), 10**6)

    action, body, rest = encoded.split(b"\n")
    assert rest == b""
    assert msgspec.json.decode(body) == document
    assert msgspec.json.decode(action)["index"]["version"] == version
    assert msgspec.json.decode(action)["index"]["_id"] == stored_id(document_id)


# What has to be looked at more closely than the other documents of a batch, or is refused.
odd_documents = st.sampled_from(
    [
        {"n": math.nan},
        {"n": None, "f": math.inf},
        {"n": msgspec.Raw(b'{"a":\n1}')},
        {"tg_deleted": True},
        {"text": "tg_deleted"},
        {"text": "\ud800"},
        {"text": "x" * LIMIT},
        {"x": object()},
        {"x": 2**64},
        Order("a", 1.5),
        [1],
    ]
)
odd_ids = st.sampled_from(["", "\ud800", "a\nb", "日" * 200, "x" * 513])
some_writes = st.lists(
    st.builds(
        Upsert,
        st.text(min_size=1) | odd_ids,
        st.integers(0, MAX_VERSION) | st.sampled_from([-1, MAX_VERSION + 1, True]),
        st.dictionaries(st.text(), json_values, max_size=2) | odd_documents,
    ),
    max_size=4,
)


def told(encode: Callable[[], list[bytes]]) -> list[bytes] | str:
    """The lines, or why there are none."""
    try:
        return encode()
    except InvalidDocument as error:
        return str(error)


@given(some_writes)
def test_lines_made_at_once_are_those_made_one_by_one(writes: list[Upsert]) -> None:
    """Whatever the documents hold: the same bytes, or the same refusal."""
    at_once = told(lambda: bulk_lines_at_once(writes, LIMIT))

    assert at_once == told(lambda: [bulk_lines(write, LIMIT) for write in writes])


def test_one_odd_document_among_many_is_refused_at_once() -> None:
    """Each rule holds for every document of a batch, not for its first."""
    usual = [Upsert(f"o{n}", n, {"price": 1.5, "note": None}) for n in range(100)]

    for odd in ({"price": math.nan}, {"tg_deleted": True}, {"text": "x" * LIMIT}, {"text": "\ud800"}):
        with pytest.raises(InvalidDocument):
            bulk_lines_at_once([*usual, Upsert("odd", 1, odd), *usual], LIMIT)


def test_deletes_stand_between_upserts_encoded_at_once() -> None:
    """The order of a batch is the order of its writes, and a subclass is what it is by inheritance."""
    clock = At("2024-01-01T00:00:00+00:00")
    sink = ElasticsearchSink(ORDERS, UNUSED, clock)
    writes: list[Write] = [
        Upsert("a", 1, {"x": 1}),
        Delete("b", 2),
        OwnUpsert("c", 3, {"x": 3}),
        Upsert("a", 4, {"x": 4}),
    ]

    assert sink.encode_all(writes) == [sink.encode(write) for write in writes]


@pytest.mark.parametrize(
    "document,field",
    [
        ({"price": math.nan}, "price"),
        ({"order": {"prices": [1.0, -math.inf]}}, "order.prices"),
        ({"lines": [{"price": math.inf}], "note": None}, "lines.price"),
        ({"line": Line(math.nan)}, "line.price"),
        (Order("a", math.nan), "price"),
    ],
)
def test_number_that_json_cannot_say_names_its_field(document: Any, field: str) -> None:
    """Case 99: the encoder would write null, and the document would lie."""
    with pytest.raises(InvalidDocument, match=f"'{field}' is not a finite number"):
        lines(document)


def test_none_is_a_value_like_any_other() -> None:
    """The search for hidden NaN must not take null itself for one."""
    assert lines({"note": None, "text": "null", "price": 1.5}).endswith(b'\n{"note":null,"text":"null","price":1.5}\n')


@pytest.mark.parametrize("document", [{"name": "\ud800"}, {"order": {"name": ["a", "\udfff"]}}])
def test_lone_surrogate_names_its_field_and_not_the_text(document: Any) -> None:
    """Half a character is no text: the request could not even be encoded."""
    with pytest.raises(InvalidDocument, match="name' holds a lone surrogate"):
        lines(document)


def test_lone_surrogate_in_a_name_is_refused() -> None:
    """The message about it must be text itself."""
    with pytest.raises(InvalidDocument, match="a field's name holds a lone surrogate"):
        lines({"\ud800": 1})


@pytest.mark.parametrize("document", [[1], "text", None, 7, {"x": object()}, {(1, 2): 3}])
def test_what_is_no_document_is_refused(document: Any) -> None:
    """A projection's mistake is its record's dead letter, not the batch's failure."""
    with pytest.raises(InvalidDocument):
        lines(document)


@pytest.mark.parametrize("document", [{"tg_deleted": False}, msgspec.defstruct("D", ["tg_deleted"])(True)])
def test_tombstone_mark_is_not_the_users(document: Any) -> None:
    """A document that hides itself would look deleted at a version that it never had."""
    with pytest.raises(InvalidDocument, match="tg_deleted"):
        lines(document)


def test_ready_made_json_keeps_to_its_line() -> None:
    """Pretty-printed JSON in a msgspec.Raw holds line ends, and one would end the bulk line."""
    encoded = lines({"raw": msgspec.Raw(b'{\n"x": 1\n}')})

    assert encoded.count(b"\n") == 2
    assert msgspec.json.decode(encoded.split(b"\n")[1]) == {"raw": {"x": 1}}


def test_document_over_the_limit_names_its_size() -> None:
    """Case 93: too large for ever is a dead letter of its own reason."""
    with pytest.raises(InvalidDocument, match="1011 bytes, more than 1000") as caught:
        lines({"text": "x" * 1000})

    assert caught.value.reason is Reason.TOO_LARGE


@pytest.mark.parametrize("document_id", ["a" * 512, "ü" * 256, "日" * 170])
def test_id_of_512_bytes_is_kept(document_id: str) -> None:
    """Readers find a document by the id it was given wherever that is possible."""
    assert stored_id(document_id) == document_id


@pytest.mark.parametrize("document_id", ["a" * 513, "ü" * 257, "日" * 171, "\ud800"])
def test_id_that_elasticsearch_refuses_is_hashed(document_id: str) -> None:
    """One long id would fail for ever; its hash is as unique."""
    spelled = stored_id(document_id)

    assert spelled.startswith("sha256:")
    assert len(spelled) == 71
    assert spelled != stored_id(document_id + "x")
    assert spelled.encode() in bulk_lines(Delete(document_id, 1), LIMIT)


@pytest.mark.parametrize(
    "mappings", [{}, {"order_id": {"type": "keyword"}}, {"properties": {"tg_deleted": {"type": "long"}}}]
)
def test_unusable_mappings_are_told_at_declaration(mappings: dict[str, Any]) -> None:
    """The developer sees it at import, not the operator at start."""
    with pytest.raises(Misconfigured, match="'orders'"):
        Elasticsearch(index="orders", mappings=mappings)


def test_subclass_of_upsert_is_no_delete() -> None:
    """A service's own kind of Upsert must not become a tombstone."""
    assert bulk_lines(OwnUpsert("a", 1, {"x": 1}), LIMIT).endswith(b'{"x":1}\n')
