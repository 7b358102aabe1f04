"""The sink on the real ClickHouse engine: what only the engine can show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from clickhouse_connect.driver import options

from projections.clickhouse import ClickHouse
from projections.clickhouse_connection import VERSIONED_SESSION, Connection, require_session
from projections.clickhouse_sink import ClickHouseSink
from projections.sink import Applied
from projections.writes import Delete, Upsert, Write
from tidegate.stack.names import StackAddresses
from tidegate_kernel.errors import InvalidDocument, Misconfigured, NeedsRebuild, Transient
from tidegate_kernel.settings import Settings

pytestmark = pytest.mark.servers


@pytest.fixture
def settings(stack: StackAddresses) -> Settings:
    return Settings(clickhouse_url=stack.clickhouse_url)


class Reader:
    """Looks at tables past the sink."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def command(self, statement: str) -> None:
        await (await self._connection.client()).command(statement)

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        found = await (await self._connection.client()).query(query)
        return [tuple(row) for row in found.result_rows]

    async def value(self, query: str) -> Any:
        return (await self.rows(query))[0][0]


@pytest.fixture
async def reader(settings: Settings) -> AsyncIterator[Reader]:
    connection = Connection(settings)
    yield Reader(connection)
    await connection.close()


@pytest.fixture
async def revenue(unique_name: Callable[[str], str], reader: Reader) -> AsyncIterator[ClickHouse]:
    """A declaration whose table goes with the test."""
    table = unique_name("revenue").replace("-", "_")
    declared = ClickHouse(
        table=table, columns={"order_id": "String", "day": "Date", "cents": "Nullable(Int64)"}, order_by=("order_id",)
    )
    yield declared
    await reader.command(f"DROP VIEW IF EXISTS {table}")
    await reader.command(f"DROP TABLE IF EXISTS {declared.versioned_table.physical}")


@asynccontextmanager
async def prepared(declared: ClickHouse, settings: Settings) -> AsyncIterator[ClickHouseSink]:
    async with declared.open(settings) as sink:
        await sink.prepare()
        yield sink


async def apply(sink: ClickHouseSink, writes: Sequence[Write]) -> Applied:
    return await sink.apply([sink.encode(write) for write in writes])


def order(number: int, *, version: int = 1, **changed: Any) -> Upsert:
    return Upsert(
        f"o{number}", version, {"order_id": f"o{number}", "day": date(2024, 3, 1), "cents": number, **changed}
    )


async def test_batch_cut_in_another_way_after_a_lost_answer_counts_once(
    revenue: ClickHouse, settings: Settings, reader: Reader
) -> None:
    """Case 96: rows 0–99 were in, the retry comes as 0–49 and 50–99: no dedup by block sees that."""
    async with prepared(revenue, settings) as sink:
        rows = [sink.encode(order(n)) for n in range(100)]
        await sink.apply(rows)

        await sink.apply(rows[:50])
        await sink.apply(rows[50:])

    assert await reader.rows(f"SELECT count(), sum(cents) FROM {revenue.name}") == [(100, 4950)]


async def test_merges_keep_what_readers_see(revenue: ClickHouse, settings: Settings, reader: Reader) -> None:
    """Case 90: the background merge must drop old versions, not tombstones."""
    async with prepared(revenue, settings) as sink:
        await apply(sink, [order(1, version=5), order(2, version=5)])
        await apply(sink, [Delete("o1", 6)])
        await reader.command(f"OPTIMIZE TABLE {revenue.versioned_table.physical} FINAL")
        await apply(sink, [order(1, version=4), order(2, version=4, cents=0)])
        await reader.command(f"OPTIMIZE TABLE {revenue.versioned_table.physical} FINAL")

    assert await reader.rows(f"SELECT order_id, cents FROM {revenue.name}") == [("o2", 2)]


async def test_bad_values_cost_only_their_own_rows(revenue: ClickHouse, settings: Settings, reader: Reader) -> None:
    """Case 99: 100 rows, row 37 dated 1900, row 60 without a date: 98 are in, two name their column."""
    writes = [order(n) for n in range(100)]
    writes[37], writes[60] = order(37, day=date(1900, 1, 1)), order(60, day=None)
    encoded, refused = [], []
    async with prepared(revenue, settings) as sink:
        for write in writes:
            try:
                encoded.append(sink.encode(write))
            except InvalidDocument as error:
                refused.append(str(error))
        await sink.apply(encoded)

    assert [message.split(" takes")[0] for message in refused] == [
        "document 'o37': column 'day'",
        "document 'o60': column 'day'",
    ]
    assert await reader.value(f"SELECT count() FROM {revenue.name}") == 98


async def test_every_type_comes_back_as_it_went(
    unique_name: Callable[[str], str], settings: Settings, reader: Reader
) -> None:
    """Case 99: the client's own writers must not round, clamp or null what the encoder let through."""
    values: dict[str, tuple[str, Any]] = {
        "id": ("UUID", UUID("0190163d-8694-739b-aea5-966c26f8ad91")),
        "text": ("String", "ü\0日"),
        "code": ("FixedString(3)", "abc"),
        "kind": ("LowCardinality(String)", ""),
        "note": ("LowCardinality(Nullable(String))", None),
        "tiny": ("Int8", -128),
        "huge": ("UInt64", 2**64 - 1),
        "low": ("Int64", -(2**63)),
        "ratio": ("Float64", 0.1),
        "half": ("Float32", 0.5),
        "is_paid": ("Bool", True),
        "first_day": ("Date", date(1970, 1, 1)),
        "last_day": ("Nullable(Date)", date(2149, 6, 6)),
        "old_day": ("Date32", date(1900, 1, 1)),
        "at": ("DateTime('UTC')", datetime(2106, 2, 7, 6, 28, 15, tzinfo=UTC)),
        "at_ms": ("DateTime64(3, 'UTC')", datetime(1900, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)),
        "at_us": ("Nullable(DateTime64(6, 'UTC'))", datetime(2299, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        "price": ("Decimal(18, 4)", Decimal("-99999999999999.9999")),
        "wide": ("Decimal(76, 2)", Decimal("9" * 74 + ".99")),
        "nothing": ("Nullable(Decimal(9, 2))", None),
        "state": ("Enum8('new' = 1, 'paid' = 2)", "paid"),
        "tags": ("Array(String)", ["a", ""]),
        "numbers": ("Array(Nullable(Int32))", [1, None, -1]),
        "days": ("Array(Date)", [date(2024, 1, 1)]),
    }
    table = unique_name("types").replace("-", "_")
    declared = ClickHouse(table=table, columns={name: kind for name, (kind, _) in values.items()}, order_by=("id",))
    document = {name: value for name, (_, value) in values.items()}
    async with prepared(declared, settings) as sink:
        other = Upsert(str(UUID(int=1)), 1, {**document, "id": UUID(int=1), "note": "x", "nothing": Decimal("1.25")})
        await apply(sink, [Upsert(str(document["id"]), 1, document), other, Delete(str(UUID(int=2)), 1)])

    [row] = await reader.rows(f"SELECT * FROM {table} WHERE id = '{document['id']}'")
    await reader.command(f"DROP VIEW {table}")
    await reader.command(f"DROP TABLE {declared.versioned_table.physical}")
    # The client reads times in UTC without saying so, and fixed texts as bytes.
    naive = {name: value.replace(tzinfo=None) for name, value in document.items() if isinstance(value, datetime)}
    assert dict(zip(document, row, strict=True)) == {**document, **naive, "code": b"abc"}


async def test_a_batch_is_one_part(revenue: ClickHouse, settings: Settings, reader: Reader) -> None:
    """Case 101: the client cuts an insert into blocks of a megabyte or two unless told otherwise."""
    wide = replace(revenue, columns={**revenue.columns, "text": "String"})
    async with prepared(wide, settings) as sink:
        await reader.command(f"SYSTEM STOP MERGES {revenue.versioned_table.physical}")
        await apply(sink, [order(n, text="x" * 1000) for n in range(10_000)])

    parts = f"SELECT count(), sum(rows) FROM system.parts WHERE active AND table = '{revenue.versioned_table.physical}'"
    assert await reader.rows(parts) == [(1, 10_000)]


async def test_insert_looks_for_no_data_frames(
    revenue: ClickHouse, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client would import pandas on the event loop: seconds without a heartbeat, and all its memory."""
    monkeypatch.delitem(vars(options), "pd", raising=False)
    async with prepared(revenue, settings) as sink:
        await apply(sink, [order(1)])

    assert "pd" not in vars(options)


async def test_inserts_are_synchronous(settings: Settings) -> None:
    """Case 100: acknowledged before it is stored, a row is lost in a crash; ClickHouse 26 has it on by default."""
    connection = Connection(settings)
    client = await connection.client()
    try:
        setting = await client.query("SELECT toString(getSetting('async_insert'))")
        assert setting.result_rows == [("false",)]
        client.set_client_setting("async_insert", 1)

        with pytest.raises(Misconfigured, match="async_insert"):
            await require_session(client, VERSIONED_SESSION)
    finally:
        await connection.close()


async def test_row_that_moves_between_partitions_shows_once(
    revenue: ClickHouse, settings: Settings, reader: Reader
) -> None:
    """A corrected day puts the new version, and a tombstone, into another partition than the old row."""
    monthly = replace(revenue, partition_by="toYYYYMM(day)")
    async with prepared(monthly, settings) as sink:
        await apply(sink, [order(1, version=1, day=date(2024, 1, 1)), order(2, version=1, day=date(2024, 1, 1))])
        await apply(sink, [order(1, version=2, day=date(2024, 2, 1)), Delete("o2", 2)])

    assert await reader.rows(f"SELECT order_id, day FROM {revenue.name}") == [("o1", date(2024, 2, 1))]


async def test_backfill_over_many_partitions_is_cut(revenue: ClickHouse, settings: Settings, reader: Reader) -> None:
    """Case 101: more than 100 partitions in one block are refused, for ever if repeated as they are."""
    monthly = replace(revenue, partition_by="toYYYYMM(day)")
    async with prepared(monthly, settings) as sink:
        applied = await apply(sink, [order(n, day=date(1990 + n // 12, n % 12 + 1, 1)) for n in range(200)])

    assert applied == Applied()
    assert await reader.value(f"SELECT count() FROM {revenue.name}") == 200


async def test_missing_table_is_transient(revenue: ClickHouse, settings: Settings) -> None:
    """A table that was dropped comes back by a command; its records are not poison."""
    async with revenue.open(settings) as sink:
        with pytest.raises(Transient, match=r"UNKNOWN_TABLE \(60\); run 'tidegate migrate'"):
            await apply(sink, [order(1)])


async def test_unreachable_server_is_transient_and_probe_says_so(revenue: ClickHouse) -> None:
    """G5: an outage is no poison; the probe tells it from a bad batch."""
    async with revenue.open(Settings(clickhouse_url="http://127.0.0.1:1")) as sink:
        for call in (sink.prepare(), sink.check(), apply(sink, [order(1)])):
            with pytest.raises(Transient):
                await call
        assert not await sink.probe()


@pytest.mark.parametrize(
    "changed,differences",
    [
        (
            {"columns": {"order_id": "String", "day": "Date", "cents": "Int32"}},
            ["column 'cents' is Nullable(Int64), declared Int32"],
        ),
        (
            {"columns": {"order_id": "LowCardinality(String)", "day": "Date", "city": "String"}},
            [
                "column 'order_id' is String, declared LowCardinality(String)",
                "column 'city' is missing, declared String",
                "column 'cents' is Nullable(Int64), and is not declared",
            ],
        ),
        (
            {"order_by": ("order_id", "day"), "partition_by": "toYYYYMM(day)"},
            [
                "it is sorted by 'order_id', declared 'order_id,day'",
                "it is partitioned by '', declared 'toYYYYMM(day)'",
            ],
        ),
        (
            {"version_column": "v"},
            ["its engine is ReplacingMergeTree(tg_version, tg_deleted), declared ReplacingMergeTree(v, tg_deleted)"],
        ),
    ],
)
async def test_table_that_differs_from_its_declaration_needs_rebuild(
    revenue: ClickHouse, settings: Settings, reader: Reader, changed: dict[str, Any], differences: list[str]
) -> None:
    """At start, all differences by name, not a dead letter per record; and a migration leaves all as it was."""
    async with prepared(revenue, settings):
        pass
    await reader.command(f"DROP VIEW {revenue.name}")

    async with replace(revenue, **changed).open(settings) as sink:
        for call in (sink.prepare, sink.check):
            with pytest.raises(NeedsRebuild) as caught:
                await call()
            assert list(caught.value.differences) == differences

    assert await reader.value(f"SELECT count() FROM system.tables WHERE name = '{revenue.name}'") == 0


async def test_column_that_the_server_computes_may_be_added(
    revenue: ClickHouse, settings: Settings, reader: Reader
) -> None:
    """An operator's index column is no difference: nothing is ever inserted into it."""
    async with prepared(revenue, settings) as sink:
        physical = revenue.versioned_table.physical
        await reader.command(f"ALTER TABLE {physical} ADD COLUMN month UInt32 MATERIALIZED toYYYYMM(day)")

        await sink.check()


async def test_migration_makes_no_table_beside_somebody_elses_view(
    revenue: ClickHouse, settings: Settings, reader: Reader
) -> None:
    """Refused as a whole: a table that was made before the refusal would be taken for a prepared one."""
    await reader.command(f"CREATE VIEW {revenue.name} AS SELECT 1 AS x")

    async with revenue.open(settings) as sink:
        with pytest.raises(Misconfigured, match="without its tombstones"):
            await sink.prepare()

    tables = f"SELECT count() FROM system.tables WHERE name = '{revenue.versioned_table.physical}'"
    assert await reader.value(tables) == 0


@pytest.mark.parametrize(
    "alteration,told",
    [
        ("MODIFY SETTING clean_deleted_rows = 'Always'", "clean_deleted_rows .* would remove tombstones"),
        (
            "MODIFY SETTING allow_experimental_replacing_merge_with_cleanup = 1",
            "allow_experimental_replacing_merge_with_cleanup .* would remove tombstones",
        ),
        ("MODIFY TTL day + INTERVAL 1 YEAR", "has a TTL"),
    ],
)
async def test_engine_that_would_remove_tombstones_is_misconfigured(
    revenue: ClickHouse, settings: Settings, reader: Reader, alteration: str, told: str
) -> None:
    """Case 90: a merge that drops tombstones behind our back lets a late older event resurrect its document."""
    async with prepared(revenue, settings) as sink:
        await reader.command(f"ALTER TABLE {revenue.versioned_table.physical} {alteration}")

        with pytest.raises(Misconfigured, match=told):
            await sink.check()


async def test_view_that_shows_tombstones_is_misconfigured(
    revenue: ClickHouse, settings: Settings, reader: Reader
) -> None:
    """Someone's own view under the readers' name would show every version there ever was."""
    async with prepared(revenue, settings) as sink:
        source = revenue.versioned_table.physical
        await reader.command(f"CREATE OR REPLACE VIEW {revenue.name} AS SELECT order_id, day, cents FROM {source}")

        with pytest.raises(Misconfigured, match="without its tombstones"):
            await sink.check()


async def test_lanes_share_a_sink(revenue: ClickHouse, settings: Settings, reader: Reader) -> None:
    """Lanes write at once: a session would let only one of them."""
    async with prepared(revenue, settings) as sink:
        await asyncio.gather(*(apply(sink, [order(n) for n in range(500)]) for _ in range(6)))

    assert await reader.value(f"SELECT count() FROM {revenue.name}") == 500
