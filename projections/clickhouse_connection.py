"""The way to ClickHouse: a client with the settings that keep rows safe, and its errors turned into ours."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
from clickhouse_connect import get_async_client
from clickhouse_connect.driver.exceptions import ClickHouseError, DataError

from projections.authority import authority_file
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.settings import Settings

if TYPE_CHECKING:
    from clickhouse_connect.driver.asyncclient import AsyncClient

_CONNECT_TIMEOUT_SECONDS = 5
_ANSWER_TIMEOUT_SECONDS = 60
# The first questions are small ones: whoever waits longer for them is not talking to ClickHouse.
_FIRST_ANSWERS_TIMEOUT_SECONDS = 15

# Error codes: https://github.com/ClickHouse/ClickHouse/blob/master/src/Common/ErrorCodes.cpp
_DENIED = frozenset({164, 192, 193, 194, 497, 516})  # read-only, unknown user, wrong or missing password, no grant
_NO_TABLE, _NO_DATABASE = 60, 81
_TOO_MANY_PARTS = 252
# Cannot parse or convert, type mismatch, out of bounds, incorrect data, too long, null in a column that takes none,
# violated constraint: the rows, if the table is as declared.
_ABOUT_ROWS = frozenset({6, 27, 38, 41, 53, 70, 72, 117, 131, 321, 349, 407, 469})
# No such column, bad argument, unknown function, identifier, type, syntax: a declaration that the server does not take.
_ABOUT_DECLARATION = frozenset({16, 36, 42, 43, 44, 46, 47, 50, 62})


_PUSHED_TO = re.compile(r"while pushing to view ([\w.`-]+)")


class RowsRefused(Misconfigured):
    """The server took none of an insert's rows, because of what is in some of them."""


class TooManyPartitions(Transient):
    """An insert's rows lie in more table partitions than the server takes at once. None of them is in."""


class ViewRefused(Transient):
    """A materialized view did not take what an insert brought it. The table itself has the rows already."""


# An asynchronous insert may be acknowledged before it is stored, and mixes our rows with those of others.
_SYNCHRONOUS = {"async_insert": "0", "wait_for_async_insert": "1"}
# Without a token ClickHouse would pass over a block because its content has been there before: rows that were removed
# since, as by a reset, would not come back. And it is to refuse what is no single partition before it writes any of it.
VERSIONED_SESSION = {
    **_SYNCHRONOUS,
    "insert_deduplicate": "0",
    "deduplicate_insert": "disable",
    "max_partitions_per_insert_block": "1",
    "throw_on_max_partitions_per_insert_block": "1",
}
# The limit of partitions would hold for the tables behind views too, which are cut in their own way.
STABLE_SESSION = {
    **_SYNCHRONOUS,
    "insert_deduplicate": "1",
    "deduplicate_insert": "enable",
    "deduplicate_blocks_in_dependent_materialized_views": "1",
    "materialized_views_ignore_errors": "0",
}
# Servers before 26 do not know it, and go by insert_deduplicate alone.
_NOT_EVERYWHERE = frozenset({"deduplicate_insert"})


class Connection:
    """One client, connected at its first use: the client asks the server for its settings when it is made.

    `session` are settings that every statement has, and without which it must not be sent.
    """

    def __init__(self, settings: Settings, session: Mapping[str, str] = VERSIONED_SESSION) -> None:
        self._session = session
        parts = urlsplit(settings.clickhouse_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Misconfigured("TIDEGATE_CLICKHOUSE_URL is not of the form http://host:8123 or https://host:8443")
        self._options: dict[str, Any] = {
            "interface": parts.scheme,
            "host": parts.hostname,
            "port": parts.port or (8443 if parts.scheme == "https" else 8123),
            "username": settings.clickhouse_user,
            "password": settings.clickhouse_password.get_secret_value(),
            "database": settings.clickhouse_database,
            "ca_cert": authority_file(settings.clickhouse_ca_file, setting="TIDEGATE_CLICKHOUSE_CA_FILE"),
        }
        self._client: AsyncClient | None = None
        self._connecting = asyncio.Lock()

    async def client(self) -> AsyncClient:
        """The client. Raises Transient if the server cannot be reached, Misconfigured if it does not let us in."""
        if self._client is not None:
            return self._client
        async with self._connecting:
            if self._client is None:
                self._client = await self._connect()
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connect(self) -> AsyncClient:
        with _translated("ClickHouse"):
            async with asyncio.timeout(_FIRST_ANSWERS_TIMEOUT_SECONDS):
                return await self._let_in()

    async def _let_in(self) -> AsyncClient:
        client = await get_async_client(
            **self._options,
            connect_timeout=_CONNECT_TIMEOUT_SECONDS,
            send_receive_timeout=_ANSWER_TIMEOUT_SECONDS,
            query_retries=0,
            compress=False,
            # A session allows one statement at a time: several lanes write at once.
            autogenerate_session_id=False,
        )
        async with AsyncExitStack() as unless_it_will_do:
            unless_it_will_do.push_async_callback(client.close)
            known = {n: value for n, value in self._session.items() if n in client.server_settings or _is_needed(n)}
            for name, value in known.items():
                client.set_client_setting(name, value)
            await require_session(client, known)
            unless_it_will_do.pop_all()
        return client


def _is_needed(name: str) -> bool:
    return name not in _NOT_EVERYWHERE


async def require_session(client: AsyncClient, session: Mapping[str, str]) -> None:
    """Raises Misconfigured where a server's profile overrules one of the settings (Case 100)."""
    asked = ", ".join(f"toString(getSetting('{name}'))" for name in session)
    found = (await client.query(f"SELECT {asked}")).result_rows[0]
    for (name, wanted), value in zip(session.items(), found, strict=True):
        if {"true": "1", "false": "0"}.get(value, value) != wanted:
            raise Misconfigured(
                f"ClickHouse keeps {name}={value} for our user, and could lose or double rows that it acknowledged; "
                f"allow the setting {name}={wanted} in the user's profile"
            )


def translated_errors(table: str) -> AbstractContextManager[None]:
    """Raises ours instead of the client's. Codes and names only: ClickHouse's messages quote the rows."""
    return _translated(f"table {table!r}")


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise RowsRefused(f"{what}: the client cannot write a row ({type(error).__name__})") from error
    except ClickHouseError as error:
        raise _translation(what, error) from error
    except (OSError, aiohttp.ClientError) as error:
        raise Transient(f"{what}: {_way(error)}") from error


def _way(error: BaseException) -> str:
    """What happened on the way, where no row is: an error of sockets or of HTTP."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _translation(what: str, error: ClickHouseError) -> Exception:
    code, name = getattr(error, "code", None), getattr(error, "name", None)
    if code is None and isinstance(error.__cause__, (OSError, aiohttp.ClientError)):
        return Transient(f"{what}: {_way(error.__cause__)}")
    found = f"{what}: {name or type(error).__name__}" + (f" ({code})" if code else "")
    if view := _PUSHED_TO.search(str(error)):
        return ViewRefused(f"{found} of materialized view {view[1]!r}; mend the view or drop it")
    if code in _ABOUT_ROWS:
        return RowsRefused(found)
    if code in _DENIED:
        return Misconfigured(f"{found}; check TIDEGATE_CLICKHOUSE_USER, its password and its grants")
    if code in _ABOUT_DECLARATION:
        return Misconfigured(f"{found}; compare the declaration with the table")
    if code == _NO_TABLE:
        return Transient(f"{found}; run 'tidegate migrate'")
    if code == _NO_DATABASE:
        return Transient(f"{found}; create the database, or check TIDEGATE_CLICKHOUSE_DATABASE")
    if code == _TOO_MANY_PARTS and "partitions for single INSERT block" in str(error):
        return TooManyPartitions(found)
    return Transient(found if code else f"{found}, without a code: does another server answer there?")
