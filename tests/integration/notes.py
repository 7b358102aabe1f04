"""One consumer that notes each event it got, on a real Postgres and the Kafka in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
from pydantic import SecretStr

from consumers.loop import ConsumerLoop
from tidegate import App, CloudEvents, ConsumerJob, Context, Event, Json, Topic, handle, on
from tidegate.assembly import assemble, live_loop
from tidegate.jobs.publishing import cloud_event
from tidegate.resources import Resources
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Connections, Pool
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


async def note_nothing(_: Note, __: Context[None]) -> None:
    """Leaves no effect."""


def noted(topic: str, n: int, *, id: str | None = None) -> Outgoing:
    """An event of id `e<n>` unless given, for partition 0."""
    told = {"id": f"e{n}" if id is None else id, "source": "tests", "type": "noted"}
    record = cloud_event(topic, {"n": n}, attributes=told)
    return Outgoing(topic, record.value, record.key, record.headers, partition=0)


async def make_loop(
    pool: Pool,
    dsn: str,
    broker: MemoryBroker,
    topic: str,
    *,
    handler: Any = note,
    prepare: Any = None,
    connections: Connections | None = None,
    settings: Mapping[str, Any] | None = None,
    **job_fields: Any,
) -> ConsumerLoop:
    """The job's live consumer; each call is another process. `connections` are those of `pool`."""
    declared = Topic(topic, format=Json(), envelope=CloudEvents())
    job = ConsumerJob(
        code="notes",
        topics=[declared],
        unlisted="skip",
        runbook="-",
        events=[on("noted", Noted, to_note)],
        **job_fields,
    )
    app = App(service="notes", owner="tests", jobs=[job], handlers=[handle(Note, handler, prepare=prepare)])
    plain = {"postgres_dsn": SecretStr(dsn), "drain_timeout": timedelta(seconds=5)}
    resources = Resources(
        Settings(**{**plain, **(settings or {})}),
        pool,
        SystemClock(),
        Metrics(),
        ThreadPoolExecutor(1),
        "worker",
        connections=connections or Connections(),
    )
    parts = await assemble(app, job, resources, sink=None)
    return live_loop(parts, partial(broker.join, app.group(job.job_code), [topic]), SystemClock())


@asynccontextmanager
async def running(loop: ConsumerLoop) -> AsyncIterator[None]:
    """The loop runs inside and is stopped gracefully afterwards."""
    task = asyncio.create_task(loop.run())
    try:
        yield
    finally:
        loop.stop()
        await task


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Returns once `condition` holds."""
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while not await condition():
            await asyncio.sleep(0.02)  # rows in a database tell nobody of their change


async def stands_at(pool: Pool, offset: int) -> None:
    """Returns once the position of the only partition is `offset`."""

    async def is_there() -> bool:
        return bool(await pool.fetchval("SELECT max(next_offset) FROM tidegate.position") == offset)

    await until(is_there)


async def noted_ids(pool: Pool) -> list[str]:
    """What was noted so far, sorted."""
    return [row["id"] for row in await pool.fetch("SELECT id FROM effect ORDER BY id")]
