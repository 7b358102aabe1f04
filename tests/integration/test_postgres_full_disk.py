"""Postgres on a disk that is full: a small file system of the test's own, and a server on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from consumers.failure import RetryPolicy
from consumers.loop import ConsumerLoop
from consumers.ownership import Hold
from tests.integration.live import until
from tests.integration.notes import Note, make_loop, noted, running
from tidegate import Context
from tidegate.migrations.schema import migrate
from tidegate.stack.names import ServerName
from tidegate.stack.progress import Silence
from tidegate.stack.stack import Stack
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.postgres import Connections, Pool, open_pool

_FOR_A_SERVER = 160 * 2**20
_FOR_A_TABLE = 32 * 2**20
_TOPIC = "full"
# One failed attempt, of whichever kind, is the last: what counts as one shows as a dead letter.
_UNFORGIVING = RetryPolicy(attempts=1, unexpected_attempts=1)
# A batch of these needs a table to grow by megabytes.
_BALLAST = """
INSERT INTO effect (id, ballast)
SELECT $1, string_agg(md5(random()::text), '') FROM generate_series(1, 3000)
"""


@contextlib.contextmanager
def _small_disk(size: int) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="small-disk-"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        folder.rmdir()
        pytest.skip("no file system can be mounted by this user")
    folder.chmod(0o755)  # the server's user has to reach its data
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


@contextlib.asynccontextmanager
async def _server(folder: Path) -> AsyncIterator[tuple[Stack, str]]:
    own = Stack(folder, names=[ServerName.POSTGRES], environment={})
    dsn = (await asyncio.to_thread(own.up, Silence()))[ServerName.POSTGRES]
    try:
        await migrate(dsn)
        yield own, dsn
    finally:
        await asyncio.to_thread(own.down, wipe=True)


@contextlib.contextmanager
def _full(disk: Path, *, but_for: int) -> Iterator[None]:
    """Inside, `but_for` bytes are left."""
    room = os.statvfs(disk)
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize - but_for)
    try:
        yield
    finally:
        filler.unlink()


async def _note_with_ballast(command: Note, ctx: Context[None]) -> None:
    await ctx.db.execute(_BALLAST, command.id)


@pytest.mark.timeout(180)
async def test_a_table_without_room_is_waited_out() -> None:
    """G5: what handlers write to is on a disk of its own that is full, while Postgres answers every probe: no attempt
    is burnt, and work goes on by itself once there is room."""
    broker = _broker()
    with _small_disk(_FOR_A_SERVER) as disk, _small_disk(_FOR_A_TABLE) as small:
        async with _server(disk / "stack") as (_, dsn), _job(dsn, broker, place=small) as (pool, loop):
            _send(broker, range(20))
            await until(lambda: _stands_at(pool, 20))
            with _full(small, but_for=2**20):
                _send(broker, range(20, 100))
                await until(lambda: _rests(loop, tries=3))
            await _all_are_there(pool, 100)


@pytest.mark.timeout(180)
async def test_a_write_ahead_log_without_room_is_waited_out() -> None:
    """G5: Postgres ends itself where its log has no room, and is started again when there is some."""
    broker = _broker()
    with _small_disk(_FOR_A_SERVER) as disk:
        async with _server(disk / "stack") as (own, dsn), _job(dsn, broker) as (pool, loop):
            _send(broker, range(20))
            await until(lambda: _stands_at(pool, 20))
            with _full(disk, but_for=9 * 2**20):
                await _use_up_log(dsn)
                _send(broker, range(20, 100))
                await until(lambda: _rests(loop, tries=3))
            await asyncio.to_thread(own.up, Silence())
            await _all_are_there(pool, 100)


async def _all_are_there(pool: Pool, events: int) -> None:
    await until(lambda: _stands_at(pool, events))
    assert await pool.fetchval("SELECT count(*) FROM tidegate.dead_letter") == 0
    assert await pool.fetchval("SELECT count(*) FROM effect") == events
    assert await pool.fetchval("SELECT count(DISTINCT id) FROM effect") == events


def _broker() -> MemoryBroker:
    broker = MemoryBroker()
    broker.create_topic(_TOPIC, 1)
    return broker


@contextlib.asynccontextmanager
async def _job(
    dsn: str, broker: MemoryBroker, *, place: Path | None = None
) -> AsyncIterator[tuple[Pool, ConsumerLoop]]:
    """Its handlers write to a table that stands in the folder `place`, if one is given."""
    connections = Connections()
    async with open_pool(dsn, size=6, connections=connections) as pool:
        if place is not None:
            data = Path(await pool.fetchval("SHOW data_directory")).stat()
            os.chown(place, data.st_uid, data.st_gid)
            await pool.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
        where = "" if place is None else " TABLESPACE small"
        await pool.execute(f"CREATE TABLE public.effect (id text, ballast text){where}")
        loop = await make_loop(
            pool, dsn, broker, _TOPIC, connections=connections, retry=_UNFORGIVING, handler=_note_with_ballast
        )
        async with running(loop):
            yield pool, loop


async def _use_up_log(dsn: str) -> None:
    """The next segment of the log does not fit any more: the server is gone."""
    connection = await asyncpg.connect(dsn)
    with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        while True:
            await connection.execute("CREATE TABLE public.filler (n int)")
            await connection.execute("DROP TABLE public.filler")
            await connection.execute("SELECT pg_switch_wal()")


def _rests(loop: ConsumerLoop, *, tries: int) -> bool:
    (held,) = loop.holdings.all()
    return Hold.OUTAGE in held.holds or (held.waiting is not None and held.waiting.attempts.tries >= tries)


def _send(broker: MemoryBroker, numbers: range) -> None:
    for n in numbers:
        broker.append(noted(_TOPIC, n))


async def _stands_at(pool: Pool, offset: int) -> bool:
    try:
        return bool(await pool.fetchval("SELECT max(next_offset) FROM tidegate.position") == offset)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        return False
