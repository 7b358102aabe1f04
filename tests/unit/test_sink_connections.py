"""What a sink's client is told of a login and of an authority, before it connects anywhere."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError
from elastic_transport import ApiResponseMeta, HttpHeaders, NodeConfig
from elasticsearch import ApiError
from pydantic import SecretStr

from projections import clickhouse_connection
from projections.clickhouse_connection import Connection
from projections.elasticsearch import Elasticsearch
from projections.elasticsearch_sink import connect
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.settings import Settings

NODE = NodeConfig("http", "127.0.0.1", 9200)


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


async def open_elasticsearch(file: Path) -> None:
    async with connect(Settings(elasticsearch_url="https://127.0.0.1:9200", elasticsearch_ca_file=file)):
        pass


async def open_clickhouse(file: Path) -> None:
    Connection(Settings(clickhouse_url="https://127.0.0.1:8443", clickhouse_ca_file=file))


@pytest.mark.parametrize("open_sink, server", [(open_elasticsearch, "ELASTICSEARCH"), (open_clickhouse, "CLICKHOUSE")])
@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_authority_that_cannot_be_used_is_named_with_its_setting(
    open_sink: Callable[[Path], object], server: str, content: str | None, tmp_path: Path
) -> None:
    """A wrong mount is the commonest mistake with TLS; the clients only say that a value or a file is wrong."""
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)

    with pytest.raises(Misconfigured, match=f"TIDEGATE_{server}_CA_FILE: .*ca.pem") as caught:
        await open_sink(file)  # type: ignore[misc]  # both are coroutines

    assert "\n" not in str(caught.value)


async def test_elasticsearch_login_may_hold_any_letter() -> None:
    """The client encodes as Latin-1 and fails on anything else; the server reads UTF-8."""
    settings = Settings(elasticsearch_user="søren", elasticsearch_password=SecretStr("пароль"))
    async with connect(settings) as client:
        told = str(client._headers["authorization"])
    assert b64decode(told.removeprefix("Basic ")).decode() == "søren:пароль"


async def test_missing_clickhouse_database_is_not_taken_for_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tidegate migrate` makes tables, no database: it would be typed in vain."""

    async def refused(**_: object) -> None:
        raise DatabaseError("Database nowhere does not exist", code=81, name="UNKNOWN_DATABASE")

    monkeypatch.setattr(clickhouse_connection, "get_async_client", refused)
    with pytest.raises(Transient, match="TIDEGATE_CLICKHOUSE_DATABASE") as caught:
        await Connection(Settings()).client()
    assert "migrate" not in str(caught.value)
    assert "table" not in str(caught.value)


@pytest.mark.parametrize(
    "error, words",
    [
        (_caused(OperationalError("quotes a row"), OSError("Connect call failed")), "OSError: Connect call failed"),
        (TimeoutError(), "no answer in time"),
        (DatabaseError("<html>404</html>"), "does another server answer there?"),
    ],
)
async def test_clickhouse_that_is_none_is_told_by_what_happened_on_the_way(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a class alone, which is all that may be told of a refused row, helps nobody to find an address."""

    async def fails(**_: object) -> None:
        raise error

    monkeypatch.setattr(clickhouse_connection, "get_async_client", fails)
    with pytest.raises(Transient) as caught:
        await Connection(Settings()).client()
    assert words in str(caught.value)
    assert "quotes" not in str(caught.value)


async def test_clickhouse_that_is_silent_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that an insert may take is too long for the first question."""

    async def silent(**_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(clickhouse_connection, "get_async_client", silent)
    monkeypatch.setattr(clickhouse_connection, "_FIRST_ANSWERS_TIMEOUT_SECONDS", 0.01)
    with pytest.raises(Transient, match="no answer in time"):
        await Connection(Settings()).client()


@pytest.mark.parametrize(
    "status, body, words",
    [
        (401, {"error": {"reason": "unable to authenticate"}}, "TIDEGATE_ELASTICSEARCH_USER"),
        (400, {"error": {"reason": "mapper cannot be changed"}}, "changed; compare the declaration with what is there"),
        (405, {"error": "no such method"}, "is TIDEGATE_ELASTICSEARCH_URL the address of an Elasticsearch?"),
        (404, "Not Found", "is TIDEGATE_ELASTICSEARCH_URL the address of an Elasticsearch?"),
    ],
)
async def test_elasticsearch_that_refuses_the_first_question_is_told_with_the_setting(
    status: int, body: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong credentials, addresses and declarations are mistakes of whoever made them; an outage they are not."""
    declared = Elasticsearch(index="orders", mappings={"properties": {"id": {"type": "keyword"}}})
    async with declared.open(Settings()) as sink:

        async def refused(*_: object, **__: object) -> None:
            raise ApiError("refused", ApiResponseMeta(status, "1.1", HttpHeaders(), 0.0, NODE), body)

        monkeypatch.setattr(sink._client.indices, "get", refused)
        with pytest.raises(Misconfigured) as caught:
            await sink.check()
    assert words in str(caught.value)
