"""A TCP proxy between the workers and one server, which can misbehave on demand in the ways that networks do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

_CHUNK = 256 * 1024


@dataclass(eq=False)
class _Link:
    """One client's connection and the one to the server behind it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    client_port: int
    awaits_answer: bool = False
    cuts_next_answer: bool = False

    def close(self) -> None:
        """Both ends see the other one leave, behind what was sent before."""
        for writer in (self.client, self.server):
            writer.transport.abort()

    def reset(self) -> None:
        """Both ends see a connection that broke (RST), with whatever was under way lost."""
        for writer in (self.client, self.server):
            raw: socket.socket | None = writer.get_extra_info("socket")
            if raw is not None and not writer.transport.is_closing():
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


@dataclass(eq=False)
class Proxy:
    """Listens on one port for the whole run, whatever happens to the server behind it."""

    name: str
    port: int
    target: int
    delay_seconds: float = 0.0
    _links: set[_Link] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _is_clear: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._is_clear.set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=_CHUNK)
        try:
            yield self
        finally:
            server.close()
            await self._end()

    @property
    def open_exchanges(self) -> list[int]:
        """Ports of the clients that have asked something and are not answered yet."""
        return [link.client_port for link in self._links if link.awaits_answer]

    @property
    def is_in_use(self) -> bool:
        return bool(self._links)

    def drop(self) -> int:
        """Every connection is broken; returns how many there were."""
        links = list(self._links)
        for link in links:
            link.reset()
        return len(links)

    def truncate(self) -> int:
        """The next answer on each connection ends in its middle, and so does the connection. Returns how many."""
        for link in self._links:
            link.cuts_next_answer = True
        return len(self._links)

    @contextlib.contextmanager
    def delayed(self, seconds: float) -> Iterator[None]:
        """Inside, everything arrives that much later."""
        self.delay_seconds = seconds
        try:
            yield
        finally:
            self.delay_seconds = 0.0

    @contextlib.contextmanager
    def black(self) -> Iterator[None]:
        """Inside, nothing passes and nobody is told; afterwards what was under way arrives, as TCP does it."""
        self._is_clear.clear()
        try:
            yield
        finally:
            self._is_clear.set()

    async def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._is_clear.wait()
            await self._connect(reader, client)
        except (OSError, asyncio.CancelledError):
            # A task that ends as cancelled would be reported by the stream server as an unhandled error.
            client.transport.abort()
        finally:
            self._tasks.discard(task)

    async def _connect(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        answers, server = await asyncio.open_connection("127.0.0.1", self.target, limit=_CHUNK)
        link = _Link(client, server, client.get_extra_info("peername")[1])
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump_requests(reader, link), name=f"{self.name}-requests")
                pumps.create_task(self._pump_answers(answers, link), name=f"{self.name}-answers")
        except* OSError:
            pass
        finally:
            self._links.discard(link)
            link.close()

    async def _pump_requests(self, reader: asyncio.StreamReader, link: _Link) -> None:
        while data := await reader.read(_CHUNK):
            link.awaits_answer = True
            await self._pass_on(data, link.server)
        raise ConnectionResetError("the client left")

    async def _pump_answers(self, reader: asyncio.StreamReader, link: _Link) -> None:
        while data := await reader.read(_CHUNK):
            if link.cuts_next_answer:
                await self._pass_on(data[: len(data) // 2], link.client)
                break
            await self._pass_on(data, link.client)
            link.awaits_answer = False
        raise ConnectionResetError("the server left")

    async def _pass_on(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        await self._is_clear.wait()
        writer.write(data)
        await writer.drain()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
