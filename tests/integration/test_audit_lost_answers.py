"""A command has one connection and it breaks at COMMIT: what the audit says afterwards is what came of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum, auto
from typing import Any
from urllib.parse import urlsplit

import pytest

from tidegate_kernel.audit import permitted
from tidegate_kernel.errors import Transient
from tidegate_kernel.permissions import Action, Actor, Deed, Receipt, Role
from tidegate_kernel.postgres import Pool, connect

_DEED = Deed(Action.CHECKPOINT_CREATE, "nightly")
_LATE_SECONDS = 0.5

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Loss(Enum):
    """What becomes of the first COMMIT on its way; the client's connection breaks each time."""

    ANSWER = auto()
    COMMIT = auto()
    LATE = auto()  # it arrives after the client has come back to ask
    ALL = auto()  # and nobody gets through any more


class Road:
    """To the database, until the first COMMIT."""

    def __init__(self, host: str, port: int, loss: Loss) -> None:
        self._to, self._loss, self._is_lost = (host, port), loss, False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_lost and self._loss is Loss.ALL:
            writer.close()
            return
        server, to_server = await asyncio.open_connection(*self._to)
        back = asyncio.create_task(_pass_on(server, writer))
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if b"COMMIT" in data and not self._is_lost:
                    self._is_lost = True
                    back.cancel()
                    await asyncio.wait([back])  # two cannot read the answer
                    await self._lose(data, (server, to_server), writer)
                    break
                to_server.write(data)
        to_server.close()
        back.cancel()
        writer.close()

    async def _lose(self, data: bytes, server: _Streams, writer: asyncio.StreamWriter) -> None:
        answers, to_server = server
        if self._loss is Loss.LATE:
            writer.close()
            await asyncio.sleep(_LATE_SECONDS)  # what happens meanwhile on another connection is the test
        if self._loss is not Loss.COMMIT:
            to_server.write(data)
            await to_server.drain()
            await answers.read(1)  # the answer: what is asked afterwards finds it committed


async def _pass_on(server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await server.read(65536):
            writer.write(data)
        writer.close()


@asynccontextmanager
async def _road(dsn: str, loss: Loss) -> AsyncIterator[str]:
    """Yields a DSN that leads over it."""
    parts = urlsplit(dsn)
    assert parts.hostname is not None
    assert parts.port is not None
    server = await asyncio.start_server(Road(parts.hostname, parts.port, loss).serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    credentials = parts.netloc.rpartition("@")[0]
    try:
        yield f"{parts.scheme}://{credentials}@127.0.0.1:{port}{parts.path}"
    finally:
        server.close()


async def _act(dsn: str, receipts: list[Receipt]) -> None:
    async with connect(dsn) as connection:
        actor = Actor("anna", Role.OPERATOR, origin="tests", on_receipt=receipts.append)
        async with permitted(connection, actor, _DEED) as deed:
            await deed.execute("INSERT INTO effect (id) VALUES ('x')")


async def _seen(pool: Pool) -> tuple[int, list[Any]]:
    outcomes = await pool.fetch("SELECT outcome FROM tidegate.audit ORDER BY seq")
    return await pool.fetchval("SELECT count(*) FROM effect"), [row["outcome"] for row in outcomes]


@pytest.mark.parametrize("loss", [Loss.ANSWER, Loss.LATE])
async def test_command_whose_answer_was_lost_is_done(pool: Pool, database: str, loss: Loss) -> None:
    """Another connection finds the row of it: a second one that says 'failed' would make somebody do it again."""
    receipts: list[Receipt] = []
    async with _road(database, loss) as dsn:
        await _act(dsn, receipts)

    assert await _seen(pool) == (1, ["done"])
    assert [receipt.seq for receipt in receipts] == [1]


async def test_command_whose_commit_was_lost_has_failed(pool: Pool, database: str) -> None:
    """The other side of it: nothing was done, and the audit says so."""
    receipts: list[Receipt] = []
    async with _road(database, Loss.COMMIT) as dsn:
        with pytest.raises(Transient):
            await _act(dsn, receipts)

    assert await _seen(pool) == (0, ["failed"])
    assert [receipt.seq for receipt in receipts] == [1]


async def test_command_that_cannot_ask_says_how_to_find_out(pool: Pool, database: str) -> None:
    """Nobody knows then. The receipt of the row, if it is there, answers it later."""
    async with _road(database, Loss.ALL) as dsn:
        with pytest.raises(Transient) as raised:
            await _act(dsn, [])

    row = await pool.fetchrow("SELECT seq, hash FROM tidegate.audit")
    assert row is not None
    (note,) = raised.value.__notes__
    assert note.startswith("whether it was done is not known")
    assert f"tidegate audit verify --receipt {Receipt(row['seq'], row['hash'])}" in note
