"""What the sink makes of the server's answers, on a client that plays them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from clickhouse_connect.driver.ctypes import RespBuffCls
from clickhouse_connect.driver.exceptions import DatabaseError, DataError, OperationalError
from clickhouse_connect.driver.transform import NativeTransform

from projections.clickhouse import ClickHouse
from projections.clickhouse_connection import Connection
from projections.clickhouse_sink import ClickHouseSink
from projections.sink import Applied
from projections.writes import Delete, Upsert, Write
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Misconfigured, Reason, TidegateError, Transient
from tidegate_kernel.settings import Settings

COLUMNS = {"order_id": "String", "cents": "Int64"}
ORDERS = ClickHouse(table="orders", columns=COLUMNS, order_by=("order_id",))


class Client:
    """Takes inserts as long as `refusal` names no error for the rows."""

    def __init__(self, refusal: Callable[[Sequence[Any]], Exception | None]) -> None:
        self._refusal = refusal
        self.inserts: list[list[Any]] = []
        self.stored: list[Any] = []

    async def raw_insert(self, *, insert_block: bytes, settings: dict[str, str]) -> None:
        assert settings == {}
        rows = rows_of(insert_block)
        self.inserts.append(rows)
        if error := self._refusal([row[1] for row in rows]):
            raise error
        self.stored += [row[1] for row in rows]


class Body:
    """A request's body, as the client reads an answer in the same format."""

    last_message = exception_tag = None

    def __init__(self, block: bytes) -> None:
        self.gen = iter([block])

    def close(self) -> None:
        """Nothing is open."""


def rows_of(body: bytes) -> list[Any]:
    """What the server makes of an insert."""
    statement, _, block = body.partition(b"\n")
    assert statement.startswith(b"INSERT INTO `orders_g1` (`order_id`, `cents`, ")
    assert statement.endswith(b") FORMAT Native")
    source: Any = RespBuffCls  # built in C, without types
    answer: Any = NativeTransform.parse_response(source(Body(block)))
    return list(answer.result_rows)


class Played(Connection):
    def __init__(self, client: Client) -> None:
        super().__init__(Settings())
        self._played: Any = client

    async def client(self) -> Any:
        return self._played


class Sink(ClickHouseSink):
    """Its table fits whenever it is asked, and counts the questions."""

    checks = 0

    async def check(self) -> None:
        self.checks += 1


class StoppedClock(SystemClock):
    def now(self) -> datetime:
        return datetime(2024, 1, 1, tzinfo=UTC)


def refusing(*bad: int, code: int = 469) -> Callable[[Sequence[Any]], Exception | None]:
    return lambda cents: (
        DatabaseError("quotes 's3cret'", code=code, name="SOME_NAME") if set(bad) & set(cents) else None
    )


def failing(error: Exception) -> Callable[[Sequence[Any]], Exception | None]:
    return lambda _cents: error


def rows(sink: ClickHouseSink, count: int) -> list[Any]:
    return [sink.encode(Upsert(f"o{n}", 1, {"order_id": f"o{n}", "cents": n})) for n in range(count)]


async def test_a_batch_is_one_insert() -> None:
    """Each insert is a part on disk, and parts must be few."""
    client = Client(refusing())
    sink = Sink(ORDERS.versioned_table, ORDERS.rows, Played(client))

    await sink.apply(rows(sink, 10_000))

    assert [len(each) for each in client.inserts] == [10_000]


async def test_batch_encoded_at_once_is_the_same_request() -> None:
    """What is made a column at a time is what the server gets row by row, deletes in between included."""
    client = Client(refusing())
    sink = Sink(ORDERS.versioned_table, ORDERS.rows, Played(client), StoppedClock())
    upserts: list[Write] = [Upsert(f"o{n}", n, {"order_id": f"o{n}", "cents": n}) for n in range(4)]

    for writes in (upserts, [*upserts, Delete("o2", 9), *upserts]):
        await sink.apply(sink.encode_all(writes))
        await sink.apply([sink.encode(write) for write in writes])

    once, one_by_one, mixed, mixed_one_by_one = client.inserts
    assert once == one_by_one
    assert mixed == mixed_one_by_one
    assert [row[:4] for row in mixed[3:6]] == [("o3", 3, 3, 0), ("o2", 0, 9, 1), ("o0", 0, 0, 0)]


async def test_refused_row_of_a_batch_encoded_at_once_is_found() -> None:
    """Halves of columns are halves of rows, in their places."""
    client = Client(refusing(5))
    sink = Sink(ORDERS.versioned_table, ORDERS.rows, Played(client))
    writes = [Upsert(f"o{n}", 1, {"order_id": f"o{n}", "cents": n}) for n in range(8)]

    applied = await sink.apply(sink.encode_all(writes))

    assert [each.index for each in applied.refused] == [5]
    assert sorted(client.stored) == [0, 1, 2, 3, 4, 6, 7]


async def test_nothing_to_write_is_no_insert() -> None:
    """A batch of events that no projection wants."""
    client = Client(refusing())
    sink = Sink(ORDERS.versioned_table, ORDERS.rows, Played(client))

    applied = await sink.apply(sink.encode_all([]))

    assert applied == Applied()
    assert client.inserts == []


async def test_rows_of_one_table_partition_stay_columns() -> None:
    """Cutting by partition costs a look at each row only where there is something to cut."""
    monthly = ClickHouse(table="orders", columns=COLUMNS, order_by=("order_id",), partition_by="intDiv(cents, 100)")
    client = Client(refusing())
    sink = Sink(monthly.versioned_table, monthly.rows, Played(client))

    for cents in (range(3), (1, 250, 2)):
        await sink.apply(sink.encode_all([Upsert(f"o{n}", 1, {"order_id": f"o{n}", "cents": n}) for n in cents]))

    assert [[row[1] for row in rows] for rows in client.inserts] == [[0, 1, 2], [1, 2], [250]]


async def test_refused_rows_are_found_by_halving() -> None:
    """G6: k bad rows of n cost O(k log n) inserts, and the others are in."""
    client = Client(refusing(37, 600))
    sink = Sink(ORDERS.versioned_table, ORDERS.rows, Played(client))

    applied = await sink.apply(rows(sink, 1024))

    assert [(each.index, each.reason) for each in applied.refused] == [
        (37, Reason.INVALID_DOCUMENT),
        (600, Reason.INVALID_DOCUMENT),
    ]
    assert "s3cret" not in "".join(each.message for each in applied.refused)
    assert sorted(client.stored) == [n for n in range(1024) if n not in (37, 600)]
    assert len(client.inserts) <= 2 * 2 * 10 + 1


async def test_table_that_was_altered_refuses_no_rows() -> None:
    """A column of another type makes every row wrong: that is an operator's error, not ten thousand dead letters."""

    class Altered(Sink):
        async def check(self) -> None:
            raise Misconfigured("column 'cents' is String")

    sink = Altered(ORDERS.versioned_table, ORDERS.rows, Played(Client(refusing(*range(8), code=53))))

    with pytest.raises(Misconfigured, match="cents"):
        await sink.apply(rows(sink, 8))


async def test_too_many_table_partitions_are_halved() -> None:
    """Case 101: a backfill over years would be refused for ever, with a code that also means 'later'."""
    message = "Too many partitions for single INSERT block (more than 100)"
    client = Client(lambda cents: DatabaseError(message, code=252, name="TOO_MANY_PARTS") if len(cents) > 3 else None)
    sink = Sink(ORDERS.versioned_table, ORDERS.rows, Played(client))

    applied = await sink.apply(rows(sink, 8))

    assert applied.refused == ()
    assert sorted(client.stored) == list(range(8))


@pytest.mark.parametrize(
    "error,expected",
    [
        (DatabaseError("x", code=252, name="TOO_MANY_PARTS"), Transient),
        (DatabaseError("x", code=159, name="TIMEOUT_EXCEEDED"), Transient),
        (DatabaseError("x", code=209, name="SOCKET_TIMEOUT"), Transient),
        (DatabaseError("x", code=210, name="NETWORK_ERROR"), Transient),
        (DatabaseError("x", code=241, name="MEMORY_LIMIT_EXCEEDED"), Transient),
        (DatabaseError("x", code=60, name="UNKNOWN_TABLE"), Transient),
        (DatabaseError("x", code=81, name="UNKNOWN_DATABASE"), Transient),
        (DatabaseError("x", code=999_999), Transient),
        (OperationalError("Network Error"), Transient),
        (aiohttp.ServerDisconnectedError(), Transient),
        (TimeoutError(), Transient),
        (ConnectionResetError(), Transient),
        (DatabaseError("x", code=516, name="AUTHENTICATION_FAILED"), Misconfigured),
        (DatabaseError("x", code=192, name="UNKNOWN_USER"), Misconfigured),
        (DatabaseError("x", code=193, name="WRONG_PASSWORD"), Misconfigured),
        (DatabaseError("x", code=497, name="ACCESS_DENIED"), Misconfigured),
        (DatabaseError("x", code=16, name="NO_SUCH_COLUMN_IN_TABLE"), Misconfigured),
    ],
)
async def test_error_is_what_the_caller_does_next(error: Exception, expected: type[TidegateError]) -> None:
    """G5: an outage pauses, a wrong password stops, and neither makes a dead letter."""
    sink = Sink(ORDERS.versioned_table, ORDERS.rows, Played(Client(failing(error))))

    with pytest.raises(expected, match="'orders'") as caught:
        await sink.apply(rows(sink, 3))

    assert type(caught.value) is expected


async def test_missing_table_names_the_remedy() -> None:
    """The table may have been dropped, or the release not been migrated."""
    sink = Sink(
        ORDERS.versioned_table, ORDERS.rows, Played(Client(failing(DatabaseError("x", code=60, name="UNKNOWN_TABLE"))))
    )

    with pytest.raises(Transient, match=r"UNKNOWN_TABLE \(60\); run 'tidegate migrate'"):
        await sink.apply(rows(sink, 1))


@pytest.mark.parametrize(
    "error", [*(DatabaseError("x", code=code) for code in (6, 27, 38, 53, 70, 72, 117, 321, 349, 407)), DataError("x")]
)
async def test_error_about_a_row_is_a_refusal(error: Exception) -> None:
    """Encoded and still refused: a dead letter, never a batch that fails for ever."""
    sink = Sink(ORDERS.versioned_table, ORDERS.rows, Played(Client(failing(error))))

    applied = await sink.apply(rows(sink, 1))

    assert [refusal.index for refusal in applied.refused] == [0]
    assert sink.checks == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"table": "or`ders"},
        {"columns": {"order id": "String"}},
        {"columns": {**COLUMNS, "tg_deleted": "Bool"}},
        {"columns": {**COLUMNS, "tg_deleted_at": "Date"}},
        {"version_column": "tg_deleted_at"},
        {"columns": {**COLUMNS, "tg_version": "Int8"}},
        {"columns": {**COLUMNS, "x": "Map(String, String)"}},
        {"order_by": ()},
        {"order_by": "order_id"},
        {"order_by": ("day",)},
        {"order_by": ("order_id", "cents"), "id_column": "order_id"},
        {"id_column": "cents"},
    ],
)
def test_unusable_declaration_is_told_at_once(changed: dict[str, Any]) -> None:
    """The developer sees it at import, not the operator at start."""
    arguments: dict[str, Any] = {"table": "orders", "columns": COLUMNS, "order_by": ("order_id",), **changed}

    with pytest.raises(Misconfigured):
        ClickHouse(**arguments)


@pytest.mark.parametrize("url", ["127.0.0.1:8123", "ftp://host", "http://"])
async def test_unusable_url_names_its_setting(url: str) -> None:
    """Not the URL itself: it may hold a password. Settings that were read are checked earlier; others are not."""
    with pytest.raises(Misconfigured, match="TIDEGATE_CLICKHOUSE_URL"):
        async with ORDERS.open(Settings().model_copy(update={"clickhouse_url": url})):
            pass
