"""A topic that is deleted and made anew under a running consumer which does not notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from uuid import uuid4

import msgspec
import pytest
from pydantic import SecretStr

from consumers import recreation
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


async def test_a_topic_made_anew_unnoticed_stops_its_partition_instead_of_reading_on_in_the_middle(
    pool: Pool, database: str, unique_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1, case 65: a worker cut off while the topic was re-created sees no error, for the new log is long enough. It
    would read on at its old offset, and everything before it would be lost without a word."""
    monkeypatch.setattr(recreation, "LOOK_EVERY_SECONDS", 0.05)
    broker, topic = MemoryBroker(), unique_name("anew")
    broker.create_topic(topic, 1)
    for n in range(3):
        broker.append(noted(topic, n))
    job = ConsumerJob(
        code="notes",
        topics=[Topic(topic, format=Json(), envelope=CloudEvents())],
        unlisted="skip",
        runbook="-",
        events=[on("noted", Noted, to_note)],
    )
    app = App(service="anew", owner="tests", jobs=[job], handlers=[handle(Note, note)])
    settings = Settings(postgres_dsn=SecretStr(database), drain_timeout=timedelta(seconds=5))
    resources = Resources(settings, pool, SystemClock(), Metrics(), ThreadPoolExecutor(1), "worker")
    loop = live_loop(
        await assemble(app, job, resources, sink=None), partial(broker.join, "anew.notes", [topic]), SystemClock()
    )
    task = asyncio.create_task(loop.run())
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while await pool.fetchval("SELECT max(next_offset) FROM tidegate.position") != 3:
            await asyncio.sleep(0.02)

    # The name has another topic now, as long as the old one, and no member of the group was told.
    broker._topics[topic].id = uuid4()
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while not (held := loop.holdings.get(TopicPartition(topic, 0))) or held.blocked is None:
            await asyncio.sleep(0.02)
    loop.stop()
    await task

    assert "re-created" in held.blocked
    assert not held.is_ready
    assert [row["id"] for row in await pool.fetch("SELECT id FROM effect ORDER BY id")] == ["e0", "e1", "e2"]
