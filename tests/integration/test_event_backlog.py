"""A topic that a consumer publishes to takes nothing: its events wait in Postgres, up to a bound at which it rests."""

from __future__ import annotations

from functools import partial

import pytest

from consumers.backlog import EventBacklog
from consumers.loop import ConsumerLoop
from consumers.ownership import Hold
from consumers.presence import State
from tests.integration.notes import Note, make_loop, noted, noted_ids, running, until
from tidegate import Context
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool
from tidegate_kernel.source import Outgoing

pytestmark = pytest.mark.servers

P0 = TopicPartition("notes", 0)


async def tell(command: Note, ctx: Context[None]) -> None:
    await ctx.db.execute("INSERT INTO effect (id) VALUES ($1)", command.id)
    ctx.publish("told", {"note": command.id}, key=command.id)


async def start(pool: Pool, dsn: str, broker: MemoryBroker) -> ConsumerLoop:
    return await make_loop(pool, dsn, broker, "notes", handler=tell, batch_size=4, settings={"outbox_limit": 20})


async def rests(loop: ConsumerLoop) -> bool:
    held = loop.holdings.get(P0)
    return held is not None and Hold.BACKLOG in held.holds


async def waiting(pool: Pool) -> int:
    return int(await pool.fetchval("SELECT count(*) FROM tidegate.outbox WHERE topic = 'told'"))


async def test_consumer_rests_while_too_much_that_it_published_waits_for_kafka(database: str, pool: Pool) -> None:
    """Kafka goes on and one topic does not: a consumer that went on as well would fill the database that everything
    stands on, as fast as it reads. Once half of it is in Kafka it goes on by itself."""
    broker = MemoryBroker()
    broker.create_topic("notes", 1)
    assert not any(await broker.writer().write([noted("notes", n) for n in range(20)]))
    loop = await start(pool, database, broker)

    async with running(loop):
        await until(partial(rests, loop))
        assert not any(await broker.writer().write([noted("notes", n) for n in range(20, 40)]))
        await until(partial(_said, pool, State.BACKLOG))
        assert await waiting(pool) == 20
        told = loop.holdings.get(P0)
        assert told is not None
        assert "has not taken 20 events of the topics that it publishes to" in told.holds[Hold.BACKLOG]

        await pool.execute("DELETE FROM tidegate.outbox WHERE topic = 'told'")
        await until(partial(_are_noted, pool, 40))


async def test_what_others_publish_makes_no_consumer_rest(pool: Pool) -> None:
    """One job's broken topic must not stop its neighbours."""
    await pool.execute("INSERT INTO tidegate.outbox (kind, topic) SELECT 'event', 'others' FROM generate_series(1, 50)")
    metrics = Metrics()
    backlog = EventBacklog(pool, SystemClock(), most=20, is_full=metrics.events_backlog_full.labels("notes"))
    backlog.note([Outgoing("told", b"{}")])

    await backlog.read()

    assert not backlog.is_full
    assert metrics.registry.get_sample_value("tidegate_event_backlog_full", {"job": "notes"}) == 0


async def _said(pool: Pool, state: State) -> bool:
    return bool(await pool.fetchval("SELECT state FROM tidegate.presence") == state)


async def _are_noted(pool: Pool, count: int) -> bool:
    return len(await noted_ids(pool)) == count
