"""Through Debian's PgBouncer in transaction mode, where each transaction may get another server connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import asyncpg
import pytest

from consumers.failure import RetryPolicy
from consumers.loop import ConsumerLoop
from tests.bouncer import SERVER_CONNECTIONS, Bouncer
from tests.integration.live import until
from tests.integration.notes import make_loop, noted, noted_ids, running, stands_at
from tidegate.migrations.schema import migrate
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.outbox import enqueue
from tidegate_kernel.postgres import Connections, Pool, connect, is_writable, open_pool
from tidegate_kernel.source import Outgoing

# One failed attempt, of whichever kind, is the last: what counts as one shows as a dead letter.
_UNFORGIVING = RetryPolicy(attempts=1, unexpected_attempts=1)
_ASK = "SELECT current_setting('statement_timeout'), current_setting('idle_in_transaction_session_timeout')"


@pytest.fixture
def pooled(bouncer: Bouncer, database: str) -> str:
    """The DSN of the test's database, through the pooler."""
    return bouncer.dsn(database)


@pytest.fixture
async def clients(pooled: str) -> AsyncIterator[list[Pool]]:
    """Four processes' pools with three connections each, all on three server connections."""
    pools = [open_pool(pooled, size=3, application_name=f"client {n}") for n in range(4)]
    opened = [await pool.__aenter__() for pool in pools]
    yield opened
    for pool in pools:
        await pool.__aexit__(None, None, None)


async def left_behind(dsn: str) -> list[str]:
    """Names of prepared statements on all of the pooler's server connections."""
    async with AsyncExitStack() as opened:
        connections = [await opened.enter_async_context(connect(dsn)) for _ in range(SERVER_CONNECTIONS)]
        for connection in connections:
            await opened.enter_async_context(connection.transaction())
        told = [await c.fetch("SELECT pg_backend_pid() AS pid, name FROM pg_prepared_statements") for c in connections]
        pids = {await connection.fetchval("SELECT pg_backend_pid()") for connection in connections}
    assert len(pids) == SERVER_CONNECTIONS
    return [row["name"] for rows in told for row in rows]


async def test_a_statement_never_meets_what_another_process_left(clients: list[Pool], pooled: str) -> None:
    """Case 115: a prepared statement, a setting or a lock of a session stays on the server connection, and the next
    statement gets another one. Statements, transactions, COPY and cursors of many clients at once, and no error."""

    async def work(pool: Pool, number: int) -> None:
        for n in range(25):
            assert await pool.fetchval(f"SELECT $1::int + {n % 5}", n) == n + n % 5
            async with pool.acquire() as connection, connection.transaction():
                assert await connection.fetchval(f"SELECT $1::text || '{n % 3}'", "x") == f"x{n % 3}"
                prepared = await connection.prepare("SELECT $1::int")
                async with connection.transaction():
                    await enqueue(connection, [Outgoing("t", b"v", b"k", [("h", str(number).encode())])])
                assert await prepared.fetchval(n) == n
                assert [row["n"] async for row in connection.cursor("SELECT generate_series(1, $1::int) AS n", 3)]

    async with asyncio.TaskGroup() as tasks:
        for number, pool in enumerate(clients * 3):
            tasks.create_task(work(pool, number))

    assert await clients[0].fetchval("SELECT count(*) FROM tidegate.outbox") == 300
    assert await left_behind(pooled) == []


async def test_limits_hold_in_each_transaction_and_not_beyond(clients: list[Pool]) -> None:
    """As startup parameters they are refused by the pooler, and as settings of a session the next client would have
    them: a paused process must be ended by Postgres all the same."""
    for pool in clients:
        async with pool.acquire() as connection:
            async with connection.transaction():
                assert tuple(await connection.fetchrow(_ASK) or ()) == ("1min", "1min")
                async with connection.transaction():
                    assert await connection.fetchval("SELECT current_schema()") == "public", (
                        "handlers' SQL means theirs"
                    )
            assert tuple(await connection.fetchrow(_ASK) or ()) == ("0", "0")


async def test_each_client_keeps_its_name_and_time_zone(clients: list[Pool]) -> None:
    """The pooler sets both anew for whoever gets the server connection; the driver's reset would undo it for good."""
    for _ in range(3):
        told = await asyncio.gather(
            *(p.fetchval("SELECT current_setting('application_name') || current_setting('timezone')") for p in clients)
        )
        assert told == [f"client {n}UTC" for n in range(4)]


async def test_a_refused_statement_gives_its_server_connection_back(clients: list[Pool]) -> None:
    """An argument that does not fit is found after the server was asked for the statement's types: what has begun
    there must end, or the pooler keeps a server connection for nobody. Three of them are all there are."""
    first, other, *_ = clients
    async with AsyncExitStack() as acquired:
        for _ in range(SERVER_CONNECTIONS):
            connection = await acquired.enter_async_context(first.acquire())
            with pytest.raises(asyncpg.DataError):
                await connection.fetchval("SELECT $1::int", "no number")

    async with asyncio.timeout(10):
        assert await other.fetchval("SELECT 1") == 1


async def test_a_direct_server_is_not_taken_for_a_pooler(database: str, pooled: str) -> None:
    """Where nothing stands in between, statements are prepared once and settings belong to the session."""
    async with open_pool(database, size=1) as direct, open_pool(pooled, size=1) as through:
        assert tuple(await direct.fetchrow(_ASK) or ()) == ("1min", "1min")
        assert await direct.fetchval("SELECT count(*) FROM pg_prepared_statements") > 0
        assert await through.fetchval("SELECT count(*) FROM pg_prepared_statements") == 0


async def test_migrations_of_two_processes_run_once(bouncer: Bouncer, empty_database: str) -> None:
    """The lock is a transaction's: one of a session would be taken on one server connection and released on another."""
    dsn = bouncer.dsn(empty_database)

    done = await asyncio.gather(migrate(dsn), migrate(dsn))

    assert sorted(len(names) > 0 for names in done) == [False, True]
    assert await left_behind(dsn) == []


async def test_the_probe_answers_beside_busy_clients(clients: list[Pool], pooled: str) -> None:
    """A probe that fails because of a name that somebody else's statement has would be taken for an outage."""

    async def busy(pool: Pool) -> None:
        for n in range(20):
            await pool.fetchval(f"SELECT {n}")

    *answers, _ = await asyncio.gather(*(is_writable(pooled) for _ in range(20)), asyncio.gather(*map(busy, clients)))

    assert answers == [True] * 20


async def test_a_job_moves_between_processes_and_applies_once(
    clients: list[Pool], pooled: str, unique_name: Callable[[str], str]
) -> None:
    """G2 and G9 through the pooler: each takeover and each settle is one transaction, whatever connection it gets."""
    broker, topic = MemoryBroker(), unique_name("pooled")
    broker.create_topic(topic, 1)
    await clients[0].execute("CREATE TABLE public.effect (id text)")
    for round_, pool in enumerate(clients):
        for n in range(50):
            broker.append(noted(topic, round_ * 50 + n))
        async with running(await make_loop(pool, pooled, broker, topic)):
            await stands_at(pool, (round_ + 1) * 50)

    assert await noted_ids(clients[0]) == sorted(f"e{n}" for n in range(200))
    assert await clients[0].fetchval("SELECT count(*) FROM tidegate.dead_letter") == 0


async def test_takeover_ends_a_silent_owner_behind_the_pooler(
    clients: list[Pool], pooled: str, unique_name: Callable[[str], str]
) -> None:
    """The server's process that blocks is found at that moment, so it is the right one also where processes are
    shared; its client learns it by a lost connection."""
    broker, topic = MemoryBroker(), unique_name("silent")
    broker.create_topic(topic, 1)
    broker.append(noted(topic, 0))
    first, second, *_ = clients
    await first.execute("CREATE TABLE public.effect (id text)")
    async with running(await make_loop(first, pooled, broker, topic)):
        await stands_at(first, 1)
    broker.append(noted(topic, 1))
    async with first.acquire() as silent:
        await silent.execute("BEGIN; SELECT FROM tidegate.position FOR UPDATE")

        async with running(await make_loop(second, pooled, broker, topic)):
            await stands_at(second, 2)

        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
            await silent.execute("COMMIT")
    assert await noted_ids(second) == ["e0", "e1"]


async def test_a_restart_of_the_pooler_under_load_is_waited_out(
    bouncer: Bouncer, database: str, unique_name: Callable[[str], str]
) -> None:
    """A deployment of the pooler ends every connection through it at once, again and again: each event is there once,
    no attempt is burnt, and work goes on by itself."""
    broker, topic = MemoryBroker(), unique_name("restarted")
    broker.create_topic(topic, 1)
    dsn, connections = bouncer.dsn(database), Connections()
    async with open_pool(dsn, size=4, connections=connections) as pool:
        await pool.execute("CREATE TABLE public.effect (id text)")
        loop = await make_loop(pool, dsn, broker, topic, connections=connections, retry=_UNFORGIVING, batch_size=20)
        async with running(loop):
            for round_ in range(4):
                for n in range(round_ * 200, round_ * 200 + 200):
                    broker.append(noted(topic, n))
                await _settles_more(loop)
                bouncer.kill()
                await asyncio.sleep(0.3 * round_)
                await asyncio.to_thread(bouncer.start)
            await _stands(loop, 800)
        assert await noted_ids(pool) == sorted(f"e{n}" for n in range(800))
        assert await pool.fetchval("SELECT count(*) FROM tidegate.dead_letter") == 0


async def _settles_more(loop: ConsumerLoop) -> None:
    """Returns with a batch settled just now and others to come."""
    await until(lambda: bool(loop.holdings.all()))
    (held,) = loop.holdings.all()
    stood = held.position.next_offset
    await until(lambda: held.position.next_offset > stood)


async def _stands(loop: ConsumerLoop, offset: int) -> None:
    (held,) = loop.holdings.all()
    await until(lambda: held.position.next_offset == offset)
