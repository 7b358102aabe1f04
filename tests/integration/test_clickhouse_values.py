"""Values times column types on the real engine: what the encoder lets through comes back as it went."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from projections.clickhouse import ClickHouse
from projections.clickhouse_connection import Connection
from projections.writes import Upsert
from tidegate.stack.names import StackAddresses
from tidegate_kernel.errors import InvalidDocument
from tidegate_kernel.settings import Settings

pytestmark = pytest.mark.servers

_RIGA = timezone(timedelta(hours=2))
_MS = timedelta(milliseconds=1)

# What each type holds, as the engine spells it in text: no client is asked to read it back.
KEPT: list[tuple[str, Any, str]] = [
    ("Int8", -128, "-128"),
    ("Int8", 127, "127"),
    ("UInt8", 255, "255"),
    ("Int16", -(2**15), "-32768"),
    ("UInt16", 2**16 - 1, "65535"),
    ("Int32", -(2**31), "-2147483648"),
    ("UInt32", 2**32 - 1, "4294967295"),
    ("Int64", -(2**63), "-9223372036854775808"),
    ("Int64", 2**63 - 1, "9223372036854775807"),
    ("UInt64", 2**64 - 1, "18446744073709551615"),
    ("Float64", 0.1, "0.1"),
    # The engine's library spells exponents of three digits wrongly, so none is here.
    ("Float64", -1.5e99, "-1.5e99"),
    ("Float64", 2**53, "9007199254740992"),
    ("Float32", 0.5, "0.5"),
    ("Bool", True, "true"),
    ("String", "", ""),
    ("String", "ü€日\N{GRINNING FACE}", "ü€日\N{GRINNING FACE}"),
    ("FixedString(4)", "abcd", "abcd"),
    ("LowCardinality(String)", "x", "x"),
    ("LowCardinality(Nullable(String))", None, "NULL"),
    ("Nullable(String)", None, "NULL"),
    ("Nullable(String)", "", ""),
    ("Nullable(Int64)", 0, "0"),
    ("Nullable(Date)", None, "NULL"),
    ("UUID", UUID(int=2**128 - 1), "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    ("Date", date(1970, 1, 1), "1970-01-01"),
    ("Date", date(2149, 6, 6), "2149-06-06"),
    ("Date32", date(1900, 1, 1), "1900-01-01"),
    ("Date32", date(2299, 12, 31), "2299-12-31"),
    ("DateTime('UTC')", datetime(1970, 1, 1, tzinfo=UTC), "1970-01-01 00:00:00"),
    ("DateTime('UTC')", datetime(2106, 2, 7, 6, 28, 15, tzinfo=UTC), "2106-02-07 06:28:15"),
    ("DateTime('UTC')", datetime(2024, 3, 31, 1, 30, tzinfo=_RIGA), "2024-03-30 23:30:00"),
    # The hour that Riga's clocks have twice: an instant, not a wall-clock time, is stored.
    ("DateTime('Europe/Riga')", datetime(2024, 10, 27, 0, 30, tzinfo=UTC), "2024-10-27 03:30:00"),
    ("DateTime('Europe/Riga')", datetime(2024, 10, 27, 1, 30, tzinfo=UTC), "2024-10-27 03:30:00"),
    ("DateTime64(3, 'UTC')", datetime(1900, 1, 1, tzinfo=UTC), "1900-01-01 00:00:00.000"),
    ("DateTime64(3, 'UTC')", datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC), "1969-12-31 23:59:59.999"),
    ("DateTime64(3, 'America/New_York')", datetime(2024, 7, 1, tzinfo=UTC) + _MS, "2024-06-30 20:00:00.001"),
    ("DateTime64(6, 'UTC')", datetime(2299, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "2299-12-31 23:59:59.999999"),
    ("DateTime64(9, 'UTC')", datetime(2262, 4, 11, 23, 47, 16, tzinfo=UTC), "2262-04-11 23:47:16.000000000"),
    ("Decimal(9, 2)", Decimal("-9999999.99"), "-9999999.99"),
    ("Decimal(9, 2)", Decimal("1E+3"), "1000"),
    ("Decimal(9, 2)", Decimal("1.500"), "1.5"),
    ("Decimal(18, 18)", Decimal("0.999999999999999999"), "0.999999999999999999"),
    (
        "Decimal(38, 10)",
        Decimal("-1234567890123456789012345678.0123456789"),
        "-1234567890123456789012345678.0123456789",
    ),
    ("Decimal(76, 2)", Decimal("9" * 74 + ".99"), "9" * 74 + ".99"),
    ("Nullable(Decimal(9, 2))", None, "NULL"),
    ("Enum8('new' = -128, 'paid' = 127)", "new", "new"),
    ("Enum16('a' = -32768, 'b' = 32767)", "b", "b"),
    ("Nullable(Enum8('new' = 1))", None, "NULL"),
    ("Array(Int64)", [], "[]"),
    ("Array(Nullable(Int8))", [1, None, -128], "[1,NULL,-128]"),
    ("Array(LowCardinality(String))", ["a", ""], "['a','']"),
    ("Array(Array(Date))", [[date(1970, 1, 1)], []], "[['1970-01-01'],[]]"),
    ("Array(Decimal(9, 2))", [Decimal("0.01")], "[0.01]"),
]

# What the engine, or its client, would clamp, round, wrap, shift or turn into a default without a word.
REFUSED: list[tuple[str, Any]] = [
    ("Int8", 128),
    ("Int64", 2**63),
    ("UInt64", -1),
    ("UInt64", 2**64),
    ("Int64", None),
    ("Int64", 1.0),
    ("Int64", True),
    ("Float64", 2**53 + 1),
    ("Float32", 1e39),
    ("Float64", float("nan")),
    ("String", None),
    ("FixedString(4)", "abc"),
    ("LowCardinality(String)", None),
    ("Date", date(1900, 1, 1)),
    ("Date", date(1969, 12, 31)),
    ("Date", date(2149, 6, 7)),
    ("Date", datetime(2024, 1, 1, 23, tzinfo=_RIGA)),
    ("Date", None),
    ("Date32", date(1899, 12, 31)),
    ("Date32", date(2300, 1, 1)),
    ("DateTime('UTC')", datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ("DateTime('UTC')", datetime(2106, 2, 7, 6, 28, 16, tzinfo=UTC)),
    ("DateTime('UTC')", datetime(2024, 1, 1)),  # noqa: DTZ001  # exactly what must be refused
    ("DateTime('UTC')", datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    ("DateTime64(3, 'UTC')", datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    ("DateTime64(3, 'UTC')", datetime(1899, 12, 31, 23, tzinfo=UTC)),
    ("DateTime64(9, 'UTC')", datetime(2262, 4, 12, tzinfo=UTC)),
    ("Decimal(9, 2)", Decimal("0.005")),
    ("Decimal(9, 2)", Decimal(10000000)),
    ("Decimal(9, 2)", 0.1),
    ("Enum8('new' = 1)", "old"),
    ("Enum8('new' = 1)", None),
    ("Array(Int8)", [1, 128]),
    ("Array(Int8)", None),
]


@pytest.fixture
async def connection(stack: StackAddresses) -> AsyncIterator[Connection]:
    opened = Connection(Settings(clickhouse_url=stack.clickhouse_url))
    yield opened
    await opened.close()


async def test_what_is_accepted_comes_back_as_it_went(
    stack: StackAddresses, connection: Connection, unique_name: Callable[[str], str]
) -> None:
    """Case 99: never a value that was clamped, rounded or shifted on its way. One column per pair, so that all of them
    go in one block, and twice, so that none is alone in its column; row by row, and the same a column at a time."""
    columns = {"id": "String", **{f"c{number}": kind for number, (kind, _, _) in enumerate(KEPT)}}
    name = unique_name("values").replace("-", "_")
    declared = ClickHouse(table=name, columns=columns, order_by=("id",))
    document = {f"c{number}": value for number, (_, value, _) in enumerate(KEPT)}
    async with declared.open(Settings(clickhouse_url=stack.clickhouse_url)) as sink:
        await sink.prepare()
        await sink.apply([sink.encode(Upsert(each, 1, {"id": each, **document})) for each in ("a", "b")])
        await sink.apply(sink.encode_all([Upsert(each, 1, {"id": each, **document}) for each in ("c", "d")]))

    client = await connection.client()
    texts = ", ".join(f"ifNull(toString(`c{number}`), 'NULL')" for number in range(len(KEPT)))
    found = (await client.query(f"SELECT {texts} FROM {name} ORDER BY id")).result_rows
    instants = [n for n, (kind, _, _) in enumerate(KEPT) if kind == "DateTime('Europe/Riga')"]
    seconds = ", ".join(f"toUnixTimestamp(`c{number}`)" for number in instants)
    stored = (await client.query(f"SELECT {seconds} FROM {name} WHERE id = 'a'")).result_rows
    await client.command(f"DROP VIEW {name}")
    await client.command(f"DROP TABLE {declared.versioned_table.physical}")

    for row in found:
        pairs = zip(KEPT, row, strict=True)
        assert [
            told for told in ((kind, spelled, got) for (kind, _, spelled), got in pairs) if told[1] != told[2]
        ] == []
    assert len(found) == 4
    assert [tuple(row) for row in stored] == [tuple(int(KEPT[n][1].timestamp()) for n in instants)]


@pytest.mark.parametrize("kind,value", REFUSED)
def test_what_would_be_bent_is_refused_by_column(kind: str, value: Any) -> None:
    """Case 99: the dead letter names row and column, before anything of the batch is sent, and not the value."""
    declared = ClickHouse(table="t", columns={"id": "String", "x": kind}, order_by=("id",))

    with pytest.raises(InvalidDocument, match=r"document 'a': column 'x' takes "):
        declared.rows.upsert(Upsert("a", 1, {"id": "a", "x": value}))
