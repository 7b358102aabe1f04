"""Offsets at a log's end that hold no record: markers and aborted records of a producer's transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import msgspec
from pydantic import SecretStr

from consumers.loop import ConsumerLoop
from tidegate import App, CloudEvents, ConsumerJob, Context, Event, Json, Topic, handle, on
from tidegate.assembly import Resources, assemble, live_loop
from tidegate.jobs.publishing import cloud_event
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import Settings
from tidegate_kernel.source import Outgoing

_DEADLINE_SECONDS = 30.0


class Noted(msgspec.Struct):
    n: int


@dataclass(frozen=True)
class Note:
    id: str


def to_note(event: Event[Noted]) -> Note:
    return Note(event.id)


async def note(command: Note, ctx: Context[None]) -> None:
    await ctx.db.execute("INSERT INTO effect (id) VALUES ($1)", command.id)


def noted(topic: str, n: int) -> Outgoing:
    record = cloud_event(topic, {"n": n}, attributes={"id": f"e{n}", "source": "tests", "type": "noted"})
    return Outgoing(topic, record.value, record.key, record.headers, partition=0)


async def make_loop(pool: Pool, dsn: str, broker: MemoryBroker, topic: str) -> ConsumerLoop:
    declared = Topic(topic, format=Json(), envelope=CloudEvents())
    job = ConsumerJob(
        code="notes", topics=[declared], unlisted="skip", runbook="-", events=[on("noted", Noted, to_note)]
    )
    app = App(service="tails", owner="tests", jobs=[job], handlers=[handle(Note, note)])
    settings = Settings(postgres_dsn=SecretStr(dsn), drain_timeout=timedelta(seconds=5))
    resources = Resources(settings, pool, SystemClock(), Metrics(), ThreadPoolExecutor(1), "worker")
    parts = await assemble(app, job, resources, sink=None)
    return live_loop(parts, partial(broker.join, "tails.notes", [topic]), SystemClock())


@asynccontextmanager
async def running(loop: ConsumerLoop) -> AsyncIterator[None]:
    task = asyncio.create_task(loop.run())
    try:
        yield
    finally:
        loop.stop()
        await task


async def stands_at(pool: Pool, offset: int) -> None:
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while await pool.fetchval("SELECT next_offset FROM tidegate.position") != offset:
            await asyncio.sleep(0.02)  # rows in a database tell nobody of their change


async def test_an_idle_topic_of_a_transactional_producer_is_no_gap_after_retention(
    pool: Pool, database: str, unique_name: Callable[[str], str]
) -> None:
    """G1, case 38: every transaction ends in a marker. A position that stays before the last one is a gap as soon as
    retention has emptied the topic: the next start would stop all partitions for records that never were."""
    broker, topic = MemoryBroker(), unique_name("tail")
    broker.create_topic(topic, 1)
    log = broker.log(TopicPartition(topic, 0))
    assert log is not None
    broker.append(noted(topic, 0))
    log.skip(1)
    async with running(await make_loop(pool, database, broker, topic)):
        await stands_at(pool, 2)

    log.trim(2)
    again = await make_loop(pool, database, broker, topic)
    async with running(again):
        broker.append(noted(topic, 1))
        await stands_at(pool, 3)

    assert [row["id"] for row in await pool.fetch("SELECT id FROM effect ORDER BY id")] == ["e0", "e1"]
