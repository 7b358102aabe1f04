"""What clickhouse-connect's async client needs of ClickHouse's HTTP interface, the front gives it unchanged.

The same tests pass on a real server whose address the environment gives.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from urllib.parse import urlsplit

import clickhouse_connect
import httpx
import pytest
from clickhouse_connect.driver.asyncclient import AsyncClient
from clickhouse_connect.driver.exceptions import DatabaseError

from tidegate.stack.names import StackAddresses

NOW = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
SHOWN = NOW.replace(tzinfo=None)  # the client returns times of zone UTC without a zone


async def _client(stack: StackAddresses, **options: object) -> AsyncClient:
    parts = urlsplit(stack.clickhouse_url)
    return await clickhouse_connect.get_async_client(
        host=parts.hostname,
        port=parts.port,
        username=parts.username or "default",
        password=parts.password or "",
        **options,  # type: ignore[arg-type]  # the client's own keywords
    )


@pytest.fixture
async def client(stack: StackAddresses) -> AsyncIterator[AsyncClient]:
    made = await _client(stack)
    yield made
    await made.close()


@pytest.fixture
async def table(client: AsyncClient, unique_name: Callable[[str], str]) -> AsyncIterator[str]:
    """The quoted name of a table that remembers insert tokens."""
    name = f"`{unique_name('rows')}`"
    await client.command(
        f"CREATE TABLE {name} (id UInt32, text String, at DateTime64(3, 'UTC')) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 100"
    )
    yield name
    await client.command(f"DROP TABLE {name}")


async def _insert(client: AsyncClient, table: str, rows: list[list[object]], **settings: object) -> int:
    plain = table.strip("`")
    summary = await client.insert(
        plain, rows, column_names=["id", "text", "at"], settings={"async_insert": 0, **settings}
    )
    return int(summary.written_rows)


async def test_native_insert_returns_exactly_what_was_sent(client: AsyncClient, table: str) -> None:
    """Text that looks like SQL, a format clause or binary must pass as rows."""
    texts = ["plain", "x FORMAT Native\n", "it's `quoted`\\", "ü€\u0000", "", "INSERT INTO t FORMAT CSV\n1"]
    written = await _insert(client, table, [[number, text, NOW] for number, text in enumerate(texts)])
    result = await client.query(f"SELECT text, at FROM {table} ORDER BY id")
    assert written == len(texts)
    assert result.result_rows == [(text, SHOWN) for text in texts]


@pytest.mark.parametrize("compression", ["lz4", "zstd", "gzip", False])
async def test_compressed_insert_is_understood(stack: StackAddresses, table: str, compression: str | bool) -> None:
    client = await _client(stack, compress=compression)
    try:
        assert await _insert(client, table, [[number, "x" * 50, NOW] for number in range(40_000)]) == 40_000
        result = await client.query(f"SELECT count(), sum(id) FROM {table}")
        assert result.result_rows == [(40_000, 799_980_000)]
    finally:
        await client.close()


async def test_same_insert_token_is_applied_once(client: AsyncClient, table: str) -> None:
    """Stable batches rest on this."""
    for _ in range(2):
        await _insert(client, table, [[1, "a", NOW]], insert_deduplication_token="batch-1")
    await _insert(client, table, [[1, "a", NOW]], insert_deduplication_token="batch-2")
    assert (await client.query(f"SELECT count() FROM {table}")).result_rows == [(2,)]


async def test_parameters_are_bound_by_the_server(client: AsyncClient) -> None:
    parameters = {"number": 41, "text": "it's\t\\ \n ü", "many": ["a'b", "c"], "at": NOW}
    result = await client.query(
        "SELECT {number:UInt32} + 1, {text:String}, {many:Array(String)}, {at:DateTime64(3, 'UTC')}",
        parameters=parameters,
    )
    assert result.result_rows == [(42, parameters["text"], parameters["many"], SHOWN)]


async def test_settings_hold_for_their_query_only(client: AsyncClient) -> None:
    """A setting that stuck to a shared connection would change other jobs' queries."""
    inside = await client.query("SELECT getSetting('max_block_size')", settings={"max_block_size": 77})
    # More queries than the front has connections, so that each of them is asked.
    outside = [await client.query("SELECT getSetting('max_block_size')") for _ in range(8)]
    assert inside.result_rows == [(77,)]
    assert all(each.result_rows != [(77,)] for each in outside)


async def test_settings_are_restored_after_a_failure(client: AsyncClient) -> None:
    for _ in range(8):
        with pytest.raises(DatabaseError):
            await client.query("SELECT throwIf(1)", settings={"max_block_size": 77})
    after = [await client.query("SELECT getSetting('max_block_size')") for _ in range(8)]
    assert all(each.result_rows != [(77,)] for each in after)


@pytest.mark.parametrize(
    "query,code",
    [("SELECT * FROM no_such_table", 60), ("SELEC 1", 62), ("SELECT no_such_column", 47), ("SELECT throwIf(1)", 395)],
)
async def test_error_carries_clickhouses_code(client: AsyncClient, query: str, code: int) -> None:
    """Poison and outage are told apart by it."""
    with pytest.raises(DatabaseError) as caught:
        await client.query(query)
    assert caught.value.code == code


async def test_bad_insert_carries_clickhouses_code(client: AsyncClient, table: str) -> None:
    with pytest.raises(DatabaseError) as caught:
        await client.raw_insert(table, ["id", "text", "at"], b"not a number,x,2026-01-01\n", fmt="CSV")
    assert caught.value.code in (6, 27, 72)


async def test_unknown_setting_is_refused(stack: StackAddresses) -> None:
    async with httpx.AsyncClient() as http:
        answer = await http.post(stack.clickhouse_url, params={"no_such_setting": "1"}, content="SELECT 1")
    assert answer.headers["X-ClickHouse-Exception-Code"] == "115"
    assert answer.status_code >= 400


async def test_statement_runs_in_the_named_database(
    stack: StackAddresses, client: AsyncClient, unique_name: Callable[[str], str]
) -> None:
    name = unique_name("db").replace("-", "_")
    await client.command(f"CREATE DATABASE {name}")
    inside = await _client(stack, database=name)
    try:
        assert await inside.command("SELECT currentDatabase()") == name
        assert await client.command("SELECT currentDatabase()") == "default"
    finally:
        await inside.close()
        await client.command(f"DROP DATABASE {name}")


async def test_streamed_result_is_complete(client: AsyncClient) -> None:
    count = 0
    async with await client.query_rows_stream("SELECT number FROM numbers(200000)") as rows:
        async for _ in rows:
            count += 1
    assert count == 200_000


async def test_result_without_rows_is_empty(client: AsyncClient) -> None:
    assert (await client.query("SELECT 1 WHERE 0")).result_rows == []


async def test_values_and_select_inserts_work_as_commands(client: AsyncClient, table: str) -> None:
    await client.command(f"INSERT INTO {table} VALUES (1, 'a', now64(3))")
    await client.command(f"INSERT INTO {table} SELECT number, 'b', now64(3) FROM numbers(3)")
    assert (await client.query(f"SELECT count() FROM {table}")).result_rows == [(4,)]


async def test_slow_statement_does_not_hold_up_others(client: AsyncClient) -> None:
    slow = asyncio.create_task(client.query("SELECT sleepEachRow(1) FROM numbers(3)"))
    assert (await client.query("SELECT 1")).result_rows == [(1,)]
    assert not slow.done()
    await slow


async def test_ping_answers(client: AsyncClient) -> None:
    assert await client.ping()
