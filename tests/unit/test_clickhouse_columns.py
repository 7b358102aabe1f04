"""Values to columns: what fits is kept exactly, what does not names its column before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.clickhouse_columns import column
from projections.clickhouse_rows import RowEncoder, Rows
from projections.writes import Delete, Upsert
from tidegate_kernel.errors import InvalidDocument, Misconfigured

DELETED_AT = datetime(2024, 1, 1, tzinfo=UTC)
SOME_UUID = UUID("0190163d-8694-739b-aea5-966c26f8ad91")
RIGA = timezone(timedelta(hours=2))


def encoder(**columns: str) -> RowEncoder:
    return RowEncoder({"order_id": "String", **columns}, "order_id")


def encode_value(type_name: str, value: Any) -> Any:
    """What stands in column x of a row."""
    return encoder(x=type_name).upsert(Upsert("a", 1, {"order_id": "a", "x": value}))[1]


FITTING: list[tuple[str, Any, Any]] = [
    ("String", "ü", "ü".encode()),
    ("String", b"\xff", b"\xff"),
    ("FixedString(3)", "abc", b"abc"),
    ("LowCardinality(String)", "a", b"a"),
    ("Int8", -128, -128),
    ("Int8", 127, 127),
    ("UInt64", 2**64 - 1, 2**64 - 1),
    ("Int64", -(2**63), -(2**63)),
    ("Float64", 1.5, 1.5),
    ("Float64", 3, 3.0),
    ("Bool", True, True),
    ("Date", date(1970, 1, 1), 0),
    ("Date", date(2149, 6, 6), 65535),
    ("Date", "2024-03-01", 19783),
    ("Date32", date(1900, 1, 1), -25567),
    ("DateTime", datetime(1970, 1, 1, 2, 0, 1, tzinfo=RIGA), 1),
    ("DateTime", "1970-01-01T00:00:01.000Z", 1),
    ("DateTime('Europe/Riga')", datetime(2106, 2, 7, 6, 28, 15, tzinfo=UTC), 2**32 - 1),
    ("DateTime64(3)", datetime(1970, 1, 1, 0, 0, 1, 1000, tzinfo=UTC), 1001),
    ("DateTime64(6)", datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
    ("DateTime64(9)", datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1000),
    ("UUID", SOME_UUID, SOME_UUID),
    ("UUID", str(SOME_UUID), SOME_UUID),
    ("Decimal(9, 2)", Decimal("-9999999.99"), Decimal("-9999999.99")),
    ("Decimal(9, 2)", "1.5", Decimal("1.5")),
    ("Decimal(9, 2)", 7, Decimal(7)),
    ("Decimal(76, 2)", Decimal("9" * 74 + ".99"), Decimal("9" * 74 + ".99")),
    ("Enum8('new' = 1, 'paid' = 2)", "paid", 2),
    ("Nullable(Int8)", None, None),
    ("Nullable(Int8)", 5, 5),
    ("LowCardinality(Nullable(String))", None, None),
    ("Array(UInt8)", [1, 255], [1, 255]),
    ("Array(Nullable(String))", ("a", None), [b"a", None]),
    ("Array(Array(Int8))", [[1], []], [[1], []]),
]

MISFITTING: list[tuple[str, Any]] = [
    ("String", None),
    ("String", 7),
    ("String", "\ud800"),
    ("FixedString(3)", "ab"),
    ("FixedString(3)", "aü1"),
    ("Int8", 128),
    ("Int8", True),
    ("Int8", 1.0),
    ("Int8", "1"),
    ("UInt8", -1),
    ("UInt64", 2**64),
    ("Float64", math.nan),
    ("Float64", math.inf),
    ("Float64", 2**53 + 1),
    ("Float64", True),
    ("Float32", 1e39),
    ("Bool", 1),
    ("Date", date(1969, 12, 31)),
    ("Date", date(1900, 1, 1)),
    ("Date", date(2149, 6, 7)),
    ("Date", datetime(2024, 1, 1, tzinfo=UTC)),
    ("Date", datetime(2024, 1, 1)),  # noqa: DTZ001  # exactly what must be refused
    ("Date", "soon"),
    ("Date32", date(1899, 12, 31)),
    ("DateTime", datetime(2024, 1, 1)),  # noqa: DTZ001  # as above
    ("DateTime", "2024-01-01T00:00:00"),
    ("DateTime", date(2024, 1, 1)),
    ("DateTime", datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ("DateTime", datetime(2106, 2, 7, 6, 28, 16, tzinfo=UTC)),
    ("DateTime", 0),
    ("DateTime", "1970-01-01T00:00:01.999Z"),
    ("DateTime", datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    ("DateTime64(3)", datetime(1970, 1, 1, 0, 0, 1, 1999, tzinfo=UTC)),
    ("DateTime64(0)", datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
    ("DateTime64(3)", datetime(1899, 12, 31, tzinfo=UTC)),
    ("DateTime64(9)", datetime(2262, 4, 12, tzinfo=UTC)),
    ("UUID", "no uuid"),
    ("UUID", 7),
    ("Decimal(9, 2)", Decimal("0.001")),
    ("Decimal(9, 2)", Decimal(10000000)),
    ("Decimal(76, 2)", Decimal("9" * 74 + ".999")),
    ("Decimal(9, 2)", Decimal("NaN")),
    ("Decimal(9, 2)", Decimal("Infinity")),
    ("Decimal(9, 2)", 1.5),
    ("Decimal(9, 2)", True),
    ("Decimal(9, 2)", "much"),
    ("Enum8('new' = 1)", "old"),
    ("Enum8('new' = 1)", 1),
    ("Enum8('new' = 1)", []),
    ("Nullable(Int8)", 128),
    ("Array(UInt8)", [1, 256]),
    ("Array(UInt8)", [None]),
    ("Array(String)", "text"),
]


@pytest.mark.parametrize("type_name,value,written", FITTING)
def test_value_that_fits_is_kept(type_name: str, value: Any, written: Any) -> None:
    """To the bounds of each type, as ClickHouse documents them."""
    assert encode_value(type_name, value) == written


@pytest.mark.parametrize("type_name,value", MISFITTING)
def test_value_that_does_not_fit_names_its_column_and_not_the_value(type_name: str, value: Any) -> None:
    """Case 99: ClickHouse would clamp, wrap or null it without a word, or refuse the whole block."""
    with pytest.raises(InvalidDocument, match=r"document 'a': column 'x' takes ") as caught:
        encode_value(type_name, value)

    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def write_of(value: Any, number: int = 0) -> Upsert:
    return Upsert(f"a{number}", 1, {"order_id": f"a{number}", "x": value})


@pytest.mark.parametrize("type_name,value,written", FITTING)
def test_column_at_a_time_is_the_same(type_name: str, value: Any, written: Any) -> None:
    """Alone in its column, and beside each other value that fits it: fast is never another value."""
    rows = encoder(x=type_name)
    beside = [other for kind, other, _ in FITTING if kind == type_name]

    assert list(rows.upserts([write_of(value)])) == [rows.upsert(write_of(value))]
    assert [row[1] for row in rows.upserts([write_of(value), write_of(value, 1)])] == [written, written]
    writes = [write_of(each, number) for number, each in enumerate(beside)]
    assert list(rows.upserts(writes)) == [rows.upsert(write) for write in writes]


@pytest.mark.parametrize("type_name,value", MISFITTING)
def test_misfit_in_a_column_is_refused_as_by_itself(type_name: str, value: Any) -> None:
    """Case 99: also between values that fit, and in words of its own."""
    rows = encoder(x=type_name)
    beside = [other for kind, other, _ in FITTING if kind == type_name]
    writes = [write_of(each, number) for number, each in enumerate([*beside, value, *beside])]

    with pytest.raises(InvalidDocument) as alone:
        rows.upsert(writes[len(beside)])
    with pytest.raises(InvalidDocument) as among:
        rows.upserts(writes)

    assert str(among.value) == str(alone.value)


_FIELDS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3))
_DOCUMENTS = st.dictionaries(st.sampled_from(["order_id", "n", "f", "t", "o", "more"]), _FIELDS, max_size=6)


def _one_by_one(rows: RowEncoder, writes: Sequence[Upsert]) -> list[Any] | str:
    try:
        return [rows.upsert(write) for write in writes]
    except InvalidDocument as error:
        return str(error)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "", "7"]), st.integers(-1, 2**63), _DOCUMENTS), max_size=4))
def test_rows_made_at_once_are_those_made_one_by_one(drawn: list[tuple[str, int, dict[str, Any]]]) -> None:
    """Whatever the documents hold: the same rows, or the same refusal."""
    rows = encoder(n="Int64", f="Float64", t="String", o="Nullable(String)")
    whole = {"n": 1, "f": 0.5, "t": "t", "o": None}
    writes = [Upsert(key, version, {"order_id": key, **whole, **document}) for key, version, document in drawn]

    try:
        found: list[Any] | str = list(rows.upserts(writes))
    except InvalidDocument as error:
        found = str(error)

    assert found == _one_by_one(rows, writes)


@pytest.mark.parametrize(
    "type_name,values", [("Int64", [1, 2]), ("UUID", [SOME_UUID, UUID(int=1)]), ("LowCardinality(String)", ["a", "b"])]
)
def test_keys_of_a_batch_are_held_against_its_ids(type_name: str, values: list[Any]) -> None:
    """A later Delete of the id would not find the row."""
    rows = RowEncoder({"id": type_name}, "id")
    writes = [Upsert(str(value), 1, {"id": value}) for value in values]

    assert [row[0] for row in rows.upserts(writes)] == [rows.upsert(write)[0] for write in writes]
    with pytest.raises(InvalidDocument, match="is not the id"):
        rows.upserts([writes[0], Upsert(writes[0].id, 1, {"id": values[1]})])


def test_rows_are_a_sequence_of_tuples() -> None:
    """Whoever leaves some of a batch out, or halves it, takes rows by their places."""
    rows = encoder(x="Int8").upserts([write_of(number, number) for number in range(3)])

    assert isinstance(rows, Rows)
    assert len(rows) == 3
    assert rows[1] == (b"a1", 1, 1, 0, 0)
    assert list(rows[1:]) == [rows[1], rows[2]]


@given(st.integers())
def test_integer_is_kept_or_refused(value: int) -> None:
    """Never another number than was given."""
    try:
        assert encode_value("Int32", value) == value
    except InvalidDocument:
        assert not -(2**31) <= value < 2**31


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_decimal_is_kept_or_refused(value: Decimal) -> None:
    """Never rounded."""
    try:
        assert encode_value("Decimal(18, 4)", value) == value
    except InvalidDocument:
        assert abs(value) >= 10**14 or value.as_tuple().exponent < -4  # type: ignore[operator]  # finite: an int


def test_missing_field_names_its_column() -> None:
    """A misspelt field would be a column of defaults."""
    with pytest.raises(InvalidDocument, match=r"column 'cents' is missing"):
        encoder(cents="Nullable(Int64)").upsert(Upsert("a", 1, {"order_id": "a"}))


def test_unknown_field_is_refused() -> None:
    """What a projection returns is meant to be stored."""
    with pytest.raises(InvalidDocument, match=r"no column for field 'sent'"):
        encoder().upsert(Upsert("a", 1, {"order_id": "a", "sent": 1}))


def test_row_is_columns_then_version_then_deleted_and_when() -> None:
    """The order of the insert's column list."""
    row = encoder(cents="Int64").upsert(Upsert("a", 7, {"cents": 5, "order_id": "a"}))

    assert row == (b"a", 5, 7, 0, 0)


def test_struct_is_a_document() -> None:
    """A declared record type-checks where a mapping does not."""
    order = msgspec.defstruct("Order", ["order_id", "cents"])

    assert encoder(cents="Int64").upsert(Upsert("a", 7, order("a", 5))) == (b"a", 5, 7, 0, 0)


def test_tombstone_has_the_key_and_nothing_else() -> None:
    """Case 90: it must meet its document in the sorting key; the other columns hold no value."""
    rows = encoder(
        n="Int8", note="Nullable(String)", tags="Array(Int8)", state="Enum8('b' = 2, 'a' = 1)", code="FixedString(2)"
    )

    assert rows.tombstone(Delete("a", 7), DELETED_AT) == (b"a", 0, None, [], 1, b"\0\0", 7, 1, 1_704_067_200)


def test_row_whose_key_is_not_its_id_is_refused() -> None:
    """A later Delete of the id would not find the row."""
    with pytest.raises(InvalidDocument, match=r"document 'a': column 'order_id' is not the id"):
        encoder().upsert(Upsert("a", 1, {"order_id": "b"}))


@pytest.mark.parametrize(
    "type_name,value,document_id",
    [
        ("Int64", 42, "42"),
        ("UUID", SOME_UUID, str(SOME_UUID)),
        ("LowCardinality(String)", "a", "a"),
        ("Int8", -1, "-1"),
    ],
)
def test_key_need_not_be_text(type_name: str, value: Any, document_id: str) -> None:
    """Document ids are texts; keys are what the table wants."""
    rows = RowEncoder({"id": type_name}, "id")

    upserted, deleted = (
        rows.upsert(Upsert(document_id, 1, {"id": value})),
        rows.tombstone(Delete(document_id, 2), DELETED_AT),
    )

    assert upserted[0] == deleted[0]


@pytest.mark.parametrize("document_id", ["x", "042", "4_2", " 42", "1000"])
def test_id_that_is_no_key_is_refused(document_id: str) -> None:
    """Two spellings of a number would be two ids of one row."""
    with pytest.raises(InvalidDocument, match="does not fit column 'id'"):
        RowEncoder({"id": "Int8"}, "id").tombstone(Delete(document_id, 1), DELETED_AT)


def test_delete_without_an_id_column_names_the_remedy() -> None:
    """With several sorting columns an id alone says not which row is meant."""
    with pytest.raises(InvalidDocument, match="id_column"):
        RowEncoder({"a": "String", "b": "String"}, None).tombstone(Delete("a", 1), DELETED_AT)


@pytest.mark.parametrize(
    "type_name", ["Map(String, Int8)", "Int128", "IPv4", "Strin", "Enum8", "Array(JSON)", "Tuple(Int8)", ""]
)
def test_type_that_is_not_supported_is_told_at_declaration(type_name: str) -> None:
    """Not at the first record."""
    with pytest.raises(Misconfigured, match="column 'x'"):
        column("x", type_name)
