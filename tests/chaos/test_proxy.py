"""The proxy misbehaves as it is told and only then: a chaos run proves nothing if its faults are none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.chaos.process import free_ports
from tests.chaos.proxy import Proxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """In front of a server that answers each line with ten of it."""
    target, via = free_ports(2)
    server = await asyncio.start_server(_answer_lines, "127.0.0.1", target)
    async with Proxy("echo", via, target).listening() as listening:
        yield listening
    server.close()
    await server.wait_closed()


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    yield reader, writer
    writer.transport.abort()


async def test_undisturbed_everything_passes(client: Streams) -> None:
    """Else every run would be chaos, and none could tell which fault did it."""
    assert await _ask(client, b"one") == b"one\n" * 10
    assert await _ask(client, b"two") == b"two\n" * 10


async def test_dropped_connections_are_broken_and_new_ones_taken(proxy: Proxy, client: Streams) -> None:
    """As a failover does it."""
    await _ask(client, b"one")

    assert proxy.drop() == 1

    with pytest.raises(ConnectionResetError):
        await _ask(client, b"two")
    again = await asyncio.open_connection("127.0.0.1", proxy.port)
    assert await _ask(again, b"three") == b"three\n" * 10
    again[1].transport.abort()


async def test_truncated_answer_ends_in_its_middle(proxy: Proxy, client: Streams) -> None:
    """The hardest case: the server did it, and the client has half of the answer."""
    await _ask(client, b"one")
    proxy.truncate()

    client[1].write(b"two\n")

    assert await asyncio.wait_for(client[0].read(), 10) == b"two\n" * 5


async def test_black_road_passes_nothing_and_then_everything(proxy: Proxy, client: Streams) -> None:
    """A partition of the network: nobody is told, and TCP delivers afterwards."""
    await _ask(client, b"one")
    with proxy.black():
        client[1].write(b"two\n")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client[0].read(1), 0.2)
        assert len(proxy.open_exchanges) == 1

    assert await client[0].readexactly(40) == b"two\n" * 10
    assert proxy.open_exchanges == []


async def test_delayed_road_takes_longer(proxy: Proxy, client: Streams) -> None:
    """Slow is another fault than away: time-outs fire while the work is done."""
    loop = asyncio.get_running_loop()
    with proxy.delayed(0.1):
        started = loop.time()
        await _ask(client, b"one")

    assert loop.time() - started >= 0.2


async def _answer_lines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while line := await reader.readline():
            writer.write(line * 10)
    except OSError:
        pass
    finally:
        writer.transport.abort()


async def _ask(client: Streams, text: bytes) -> bytes:
    reader, writer = client
    writer.write(text + b"\n")
    return await asyncio.wait_for(reader.readexactly(10 * (len(text) + 1)), 10)
