"""What a connection that was closed under the client is to it: a broken one, and nothing worse."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import GroupAuthorizationFailedError, KafkaConnectionError, NodeNotReadyError
from aiokafka.protocol.metadata import MetadataRequest

from tidegate_kernel import kafka_reach
from tidegate_kernel.errors import Misconfigured, Unreachable
from tidegate_kernel.kafka_connection import guard, guard_connections
from tidegate_kernel.kafka_reach import started, unusable
from tidegate_kernel.settings import KafkaSettings

CLOSED = "unable to perform operation on <TCPTransport closed=True>; the handler is closed"


class ClosedWriter:
    """As uvloop's: it has closed, and nobody was told yet."""

    def write(self, _: bytes) -> None:
        raise RuntimeError(CLOSED)

    def close(self) -> None:
        return None


async def connection() -> Any:
    """A connection that looks well and is closed."""
    opened = AIOKafkaConnection("broker", 9092)
    opened._reader, opened._writer = asyncio.StreamReader(), ClosedWriter()
    opened._versions = {3: (0, 12)}
    opened._read_task = asyncio.ensure_future(asyncio.sleep(0))
    return opened


async def test_writing_on_a_closed_connection_is_told_as_a_broken_one() -> None:
    """The client waits and tries again after a KafkaConnectionError; a RuntimeError ends its tasks for good."""
    closed = await connection()
    guard(closed)
    guard(closed)

    with pytest.raises(KafkaConnectionError, match="the handler is closed"):
        closed.send(MetadataRequest([]))

    assert not closed.connected(), "the next request opens another"


@pytest.mark.parametrize("node", [1, "bootstrap"])
async def test_all_connections_of_a_client_are_guarded(node: Any) -> None:
    """Requests, metadata updates, and the first connection where the cluster has told of no broker yet."""
    client = AIOKafkaClient(bootstrap_servers="broker:9092")
    guard_connections(client)
    client._conns[(node, 0)] = await connection()

    with pytest.raises(KafkaConnectionError):
        await client.send(node, MetadataRequest([]))


async def test_a_connection_that_breaks_while_it_is_opened_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first requests are sent before anybody could have guarded it."""

    async def break_down(*_: Any, **__: Any) -> Any:
        raise RuntimeError(CLOSED)

    monkeypatch.setattr("aiokafka.client.create_conn", break_down)
    client = AIOKafkaClient(bootstrap_servers="broker:9092")
    monkeypatch.setattr(client.cluster, "broker_metadata", lambda _: SimpleNamespace(host="broker", port=9092))
    guard_connections(client)

    with pytest.raises(NodeNotReadyError):
        await client.send(1, MetadataRequest([]))
    with pytest.raises(KafkaConnectionError):
        await client.bootstrap()


class Client:
    """A client that does not start."""

    def __init__(self, error: Exception) -> None:
        self._error, self.was_closed = error, False
        self._client = AIOKafkaClient(bootstrap_servers="broker:9092")

    async def start(self) -> None:
        raise self._error

    async def close(self) -> None:
        self.was_closed = True


@pytest.mark.parametrize(
    "error, told",
    [
        (KafkaConnectionError("broken"), Unreachable),
        (TimeoutError(), Unreachable),
        (ValueError("odd"), ValueError),
    ],
)
async def test_what_does_not_start_is_closed_and_tells_why(
    error: Exception, told: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client left open goes on trying, and heartbeats for a member that nobody reads for."""

    async def reachable(*_: Any) -> None:
        return None

    monkeypatch.setattr(kafka_reach, "require_reachable", reachable)
    client = Client(error)

    with pytest.raises(told):
        async with started(client, KafkaSettings(), close=Client.close):
            pass

    assert client.was_closed


def test_a_broker_that_says_no_is_told_apart_from_one_that_is_away() -> None:
    """The first is a setting to be repaired; the second is waited for once it has answered before."""
    refusal = GroupAuthorizationFailedError("g")

    assert type(unusable(KafkaSettings(), "no", refusal)) is Misconfigured
    assert type(unusable(KafkaSettings(), "the token is invalid")) is Misconfigured
    for away in (KafkaConnectionError(), OSError(), TimeoutError(), EOFError()):
        assert type(unusable(KafkaSettings(), "away", away)) is Unreachable
