"""Connections to a Postgres that is gone without a word, as after a failover behind an address that moved."""

from __future__ import annotations

import contextlib
import socket
import time
from urllib.parse import urlsplit

import pytest

from tests.chaos.process import free_ports
from tests.chaos.proxy import Proxy
from tidegate_kernel import postgres
from tidegate_kernel.postgres import Connections, connect, open_pool


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such option")
async def test_a_connection_whose_other_end_is_gone_is_given_up_in_seconds(database: str) -> None:
    """Nobody refuses what is sent to the old address: by itself the kernel would try for a quarter of an hour, and a
    batch that only waits for its answer would never be told."""
    connections = Connections()
    async with open_pool(database, size=1, connections=connections) as pool, pool.acquire() as connection:
        await connection.fetchval("SELECT 1")
        (opened,) = connections._open
        told = opened._transport.get_extra_info("socket")  # type: ignore[attr-defined]  # the driver's own

        quiet, between, probes = (
            told.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert told.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 10_000
        assert told.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert quiet + between * probes <= 15


async def test_a_goodbye_that_nobody_hears_fails_no_command(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked was answered: the command has done its work, and must neither say that it failed nor wait."""
    monkeypatch.setattr(postgres, "_GOODBYE_SECONDS", 0.1)
    parts = urlsplit(database)
    (port,) = free_ports(1)
    proxy = Proxy("postgres", port, parts.port or 5432)
    dsn = parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}").geturl()
    async with proxy.listening():
        with contextlib.ExitStack() as network:
            async with connect(dsn) as connection:
                assert await connection.fetchval("SELECT 1") == 1
                network.enter_context(proxy.black())
                asked = time.monotonic()
            assert time.monotonic() - asked < 5
