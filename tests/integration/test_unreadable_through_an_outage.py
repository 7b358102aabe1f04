"""A record that the client cannot hand over, and Postgres away at that very moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import msgspec
import pytest
from pydantic import SecretStr

from tidegate import App, CloudEvents, ConsumerJob, Context, Event, Json, Topic, handle, on
from tidegate.assembly import Resources, assemble, live_loop
from tidegate.jobs.publishing import cloud_event
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import Settings
from tidegate_kernel.source import Outgoing, UnreadableRecord

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


@pytest.fixture
def broker_with_a_bad_record(unique_name: Callable[[str], str]) -> tuple[MemoryBroker, str]:
    """Offset 1 of three is the one that the client refuses."""
    broker, topic = MemoryBroker(), unique_name("unread")
    broker.create_topic(topic, 1)
    for n in range(3):
        broker.append(noted(topic, n))
    log = broker.log(TopicPartition(topic, 0))
    assert log is not None
    log.faults[1] = UnreadableRecord("the name of a header is not UTF-8", offset=1)
    return broker, topic


async def test_an_unreadable_record_becomes_a_dead_letter_also_at_the_second_try(
    pool: Pool, database: str, broker_with_a_bad_record: tuple[MemoryBroker, str]
) -> None:
    """G1: its first burial is rolled back by an outage. Tried again as an ordinary record it would be one without a
    value, which a ConsumerJob passes over: the position would move past it and nobody would ever know."""
    broker, topic = broker_with_a_bad_record
    declared = Topic(topic, format=Json(), envelope=CloudEvents())
    job = ConsumerJob(
        code="notes", topics=[declared], unlisted="skip", runbook="-", events=[on("noted", Noted, to_note)]
    )
    app = App(service="unread", owner="tests", jobs=[job], handlers=[handle(Note, note)])
    settings = Settings(postgres_dsn=SecretStr(database), drain_timeout=timedelta(seconds=5))
    resources = Resources(settings, pool, SystemClock(), Metrics(), ThreadPoolExecutor(1), "worker")
    parts = await assemble(app, job, resources, sink=None)
    loop = live_loop(parts, partial(broker.join, "unread.notes", [topic]), SystemClock())
    # As a demoted primary: the letter cannot be written (25006), while records that read nothing else go on.
    await pool.execute(_REFUSE_FIRST_LETTER)

    task = asyncio.create_task(loop.run())
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while await pool.fetchval("SELECT max(next_offset) FROM tidegate.position") != 3:
            await asyncio.sleep(0.02)
    loop.stop()
    await task

    assert await pool.fetchval("SELECT last_value FROM burials") == 2
    letters = await pool.fetch('SELECT "offset", reason FROM tidegate.dead_letter')
    assert [tuple(letter) for letter in letters] == [(1, "client_parse")]
    assert [row["id"] for row in await pool.fetch("SELECT id FROM effect ORDER BY id")] == ["e0", "e2"]


# A sequence is not rolled back: only the first burial meets the outage.
_REFUSE_FIRST_LETTER = """
CREATE SEQUENCE burials;
CREATE FUNCTION away() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('burials') = 1 THEN
        RAISE EXCEPTION 'cannot execute INSERT in a read-only transaction' USING ERRCODE = '25006';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER away BEFORE INSERT ON tidegate.dead_letter FOR EACH ROW EXECUTE FUNCTION away();
"""
