"""Postgres demoted, restarted, or ending its connections, under a running job."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from consumers.failure import RetryPolicy
from consumers.loop import ConsumerLoop
from consumers.ownership import Hold
from tests.bouncer import Bouncer
from tests.integration.notes import Note, make_loop, note, noted, noted_ids, running, stands_at, until
from tidegate import Context
from tidegate.migrations.schema import migrate
from tidegate.stack.names import ServerName
from tidegate.stack.progress import Silence
from tidegate.stack.stack import Stack
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.postgres import Connections, Pool, is_writable, open_pool

_SIZE = 6
# One failed attempt, of whichever kind, is the last: what counts as one shows as a dead letter.
_UNFORGIVING = RetryPolicy(attempts=1, unexpected_attempts=1)
# What breaks its connection whenever it is tried alone is given up in the end: two strikes can look like that.
_STRUCK_AGAIN = RetryPolicy(attempts=10, unexpected_attempts=1, first_delay=timedelta(milliseconds=5))


@asynccontextmanager
async def as_worker(dsn: str) -> AsyncIterator[tuple[Pool, Connections]]:
    """A worker's pool, which reaches a table `effect`."""
    connections = Connections()
    async with open_pool(dsn, size=_SIZE, connections=connections) as pool:
        await pool.execute("CREATE TABLE public.effect (id text)")
        yield pool, connections


async def demote(admin: asyncpg.Connection[asyncpg.Record], *, is_demoted: bool) -> None:
    """New connections to the database may only read, or may write again; those that are open stay as they are."""
    name = await admin.fetchval("SELECT current_database()")
    await admin.execute(
        f"ALTER DATABASE {name} {'SET default_transaction_read_only = on' if is_demoted else 'RESET ALL'}"
    )


async def end_all(admin: asyncpg.Connection[asyncpg.Record]) -> None:
    """Every other connection to the database is gone, as when its server is."""
    await admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


@pytest.fixture
async def admin(database: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A connection that is not the worker's."""
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


@pytest.fixture
def topic(unique_name: Callable[[str], str]) -> str:
    return unique_name("failover")


@pytest.fixture
def broker(topic: str) -> MemoryBroker:
    broker = MemoryBroker()
    broker.create_topic(topic, 1)
    return broker


def send(broker: MemoryBroker, topic: str, numbers: range) -> None:
    for n in numbers:
        broker.append(noted(topic, n))


def all_noted(events: int) -> list[str]:
    return sorted(f"e{n}" for n in range(events))


async def letters(admin: asyncpg.Connection[asyncpg.Record]) -> int:
    count: int = await admin.fetchval("SELECT count(*) FROM tidegate.dead_letter")
    return count


async def is_resting(loop: ConsumerLoop) -> bool:
    return any(Hold.OUTAGE in held.holds for held in loop.holdings.all())


async def test_the_probe_wants_a_server_that_writes(database: str, admin: asyncpg.Connection[asyncpg.Record]) -> None:
    """Case 83: SELECT 1 is answered by a demoted primary for days."""
    assert await is_writable(database)
    await demote(admin, is_demoted=True)

    assert not await is_writable(database)


async def test_connections_pinned_to_a_demoted_primary_are_renewed(
    database: str, admin: asyncpg.Connection[asyncpg.Record], broker: MemoryBroker, topic: str
) -> None:
    """Case 83: a name leads to the new primary, the pool's connections still to the old one, and they answer. The
    probe, on a connection of its own, says that all is well; nothing may be dead-lettered for days of 25006."""
    async with as_worker(database) as (pool, connections):
        loop = await make_loop(pool, database, broker, topic, connections=connections, retry=_UNFORGIVING)
        await pool.expire_connections()
        await demote(admin, is_demoted=True)
        async with AsyncExitStack() as all_of_them:
            for _ in range(_SIZE):
                pinned = await all_of_them.enter_async_context(pool.acquire())
                assert await pinned.fetchval("SELECT 1") == 1
        await demote(admin, is_demoted=False)
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await pool.execute("INSERT INTO effect VALUES ('never')")
        send(broker, topic, range(20))

        async with running(loop):
            await stands_at(pool, 20)

        assert await noted_ids(pool) == all_noted(20)
    assert await letters(admin) == 0


async def test_a_failover_in_the_middle_of_a_batch_is_waited_out(
    database: str, admin: asyncpg.Connection[asyncpg.Record], broker: MemoryBroker, topic: str
) -> None:
    """Case 83, G5: connections break, then nothing can be written, then all is well. The job rests meanwhile, no
    attempt counts, and it goes on within five seconds."""
    at_work, may_go = asyncio.Event(), asyncio.Event()

    async def slow_note(command: Note, ctx: Context[None]) -> None:
        await note(command, ctx)
        at_work.set()
        await may_go.wait()

    async with as_worker(database) as (pool, connections):
        loop = await make_loop(
            pool, database, broker, topic, connections=connections, handler=slow_note, retry=_UNFORGIVING
        )
        async with running(loop):
            send(broker, topic, range(20))
            await at_work.wait()
            await demote(admin, is_demoted=True)
            await end_all(admin)
            may_go.set()
            await until(lambda: is_resting(loop))
            await demote(admin, is_demoted=False)
            healed = time.monotonic()
            await stands_at(pool, 20)
            assert time.monotonic() - healed < 5

        assert await noted_ids(pool) == all_noted(20)
    assert await letters(admin) == 0


@pytest.mark.parametrize("way", ["direct", "pooled"])
async def test_connections_that_break_at_any_moment_cost_nothing(
    database: str,
    admin: asyncpg.Connection[asyncpg.Record],
    broker: MemoryBroker,
    topic: str,
    bouncer: Bouncer,
    way: str,
) -> None:
    """G2 and G5: every connection is ended again and again, in claims, handlers, settles and commits whose answer is
    lost. Each event acts once, none becomes a dead letter, and the job never ends."""
    dsn, events, chance = bouncer.dsn(database) if way == "pooled" else database, 300, random.Random(7)
    async with as_worker(dsn) as (pool, connections):
        loop = await make_loop(pool, dsn, broker, topic, connections=connections, retry=_STRUCK_AGAIN, batch_size=10)
        async with running(loop):
            for strike in range(10):
                send(broker, topic, range(strike * 30, strike * 30 + 30))
                await asyncio.sleep(chance.random() * 0.1)  # a random instant, not a wait for something
                await end_all(admin)
            await until(lambda: _stands_at(admin, events))

    ids = [row["id"] for row in await admin.fetch("SELECT id FROM public.effect ORDER BY id")]
    assert ids == all_noted(events)
    assert await letters(admin) == 0


async def _stands_at(admin: asyncpg.Connection[asyncpg.Record], offset: int) -> bool:
    return bool(await admin.fetchval("SELECT max(next_offset) FROM tidegate.position") == offset)


@pytest.mark.timeout(120)
async def test_a_restart_of_postgres_is_waited_out(tmp_path: Path, broker: MemoryBroker, topic: str) -> None:
    """Case 21, G5: stopped for seconds under load and started again, at one address: the job rests, tells the group
    nothing new, and goes on by itself; each event is there once."""
    own = Stack(tmp_path, names=[ServerName.POSTGRES], environment={})
    dsn = (await asyncio.to_thread(own.up, Silence()))[ServerName.POSTGRES]
    try:
        await migrate(dsn)
        async with as_worker(dsn) as (pool, connections):
            loop = await make_loop(pool, dsn, broker, topic, connections=connections, retry=_UNFORGIVING)
            async with running(loop):
                send(broker, topic, range(50))
                await until(lambda: _is_told(broker, topic, 50))
                await asyncio.to_thread(own.down, wipe=False)
                send(broker, topic, range(50, 100))
                await until(lambda: is_resting(loop))
                assert await _is_told(broker, topic, 50)
                await asyncio.to_thread(own.up, Silence())
                started = time.monotonic()
                await until(lambda: _settles(pool, 100))
                assert time.monotonic() - started < 5
            assert await noted_ids(pool) == all_noted(100)
            assert await pool.fetchval("SELECT count(*) FROM tidegate.dead_letter") == 0
    finally:
        await asyncio.to_thread(own.down, wipe=True)


async def _is_told(broker: MemoryBroker, topic: str, offset: int) -> bool:
    return broker.group("notes.notes").committed == {TopicPartition(topic, 0): offset}


async def _settles(pool: Pool, offset: int) -> bool:
    try:
        return bool(await pool.fetchval("SELECT max(next_offset) FROM tidegate.position") == offset)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        return False
