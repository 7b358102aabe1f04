"""A service with two jobs that note each event, its tenants told apart, on a real Postgres and the Kafka in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from pydantic import SecretStr

from consumers.loop import ConsumerLoop, Join
from projections.memory import MemorySink
from tests.integration.notes import Note, Noted, to_note
from tidegate import (
    App,
    CloudEvents,
    ConsumerJob,
    Context,
    Event,
    Json,
    ProjectionJob,
    ScopeFields,
    Topic,
    Upsert,
    handle,
    on,
)
from tidegate.assembly import assemble, live_loop
from tidegate.jobs.declaration import Job
from tidegate.jobs.publishing import cloud_event
from tidegate.resources import Resources
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import Settings
from tidegate_kernel.source import Outgoing

OPERATOR = Actor("alice", Role.OPERATOR)
P0, P1 = TopicPartition("notes", 0), TopicPartition("notes", 1)
_DEADLINE_SECONDS = 30.0


def as_document(event: Event[Noted]) -> Upsert:
    return Upsert(id=event.id, version=1, document={"n": event.data.n})


@dataclass
class Bench:
    """The service; each loop it makes is another process."""

    pool: Pool
    dsn: str
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    sink: MemorySink = field(default_factory=MemorySink)
    handler: Callable[[Note, Context[None]], Awaitable[None]] | None = None

    topic: str = "notes"
    batch_size: int | None = None

    def __post_init__(self) -> None:
        self.broker.create_topic(self.topic, 2)

    def join(self, app: App, job: Job) -> Join:
        return partial(self.broker.join, app.group(job.job_code), [self.topic])

    @property
    def settings(self) -> Settings:
        return Settings(postgres_dsn=SecretStr(self.dsn), drain_timeout=timedelta(seconds=5))

    @property
    def app(self) -> App:
        topic = Topic(self.topic, format=Json(), envelope=CloudEvents(), scope=ScopeFields(tenant="tenantid"))
        named: dict[str, Any] = {"topics": [topic], "unlisted": "skip", "runbook": "-", "batch_size": self.batch_size}
        notes = ConsumerJob(code="notes", events=[on("noted", Noted, to_note)], **named)
        index = ProjectionJob(
            code="index",
            events=[on("noted", Noted, as_document)],
            sink=self.sink,
            freshness_sla=timedelta(seconds=5),
            **named,
        )
        return App(
            service=self.topic, owner="tests", jobs=[notes, index], handlers=[handle(Note, self.handler or keep)]
        )

    async def loop(self, code: str = "notes", *, owner: str = "worker") -> ConsumerLoop:
        app = self.app
        job: Job = app.job(code)
        resources = Resources(self.settings, self.pool, SystemClock(), Metrics(), ThreadPoolExecutor(1), owner)
        parts = await assemble(app, job, resources, sink=self.sink if isinstance(job, ProjectionJob) else None)
        return live_loop(parts, self.join(app, job), SystemClock())

    def send(self, *numbers: int, partition: int = 0, tenant: str = "calm") -> None:
        """Events `e<n>` of a tenant; a number below zero stands for a value that nobody can decode."""
        for n in numbers:
            self.broker.append(self.event(n, partition=partition, tenant=tenant))

    def event(self, n: int, *, partition: int = 0, tenant: str = "calm") -> Outgoing:
        told = {"id": f"e{n}", "source": "tests", "type": "noted", "tenantid": tenant}
        record = cloud_event(self.topic, {"n": n}, attributes=told)
        return Outgoing(
            self.topic, b"no json" if n < 0 else record.value, record.key, record.headers, partition=partition
        )

    async def noted(self) -> list[str]:
        return [row["id"] for row in await self.pool.fetch("SELECT id FROM effect ORDER BY id")]

    async def position(self, partition: TopicPartition = P0) -> int | None:
        found: int | None = await self.pool.fetchval(
            "SELECT max(next_offset) FROM tidegate.position WHERE topic = $1 AND partition = $2", *partition
        )
        return found

    async def stands_at(self, offset: int, partition: TopicPartition = P0) -> None:
        async def is_there() -> bool:
            return await self.position(partition) == offset

        await until(is_there)

    async def state(self, partition: TopicPartition = P0) -> str | None:
        """What the partition's owner says of it."""
        told: str | None = await self.pool.fetchval(
            "SELECT state FROM tidegate.presence WHERE topic = $1 AND partition = $2", *partition
        )
        return told

    async def says(self, state: str, partition: TopicPartition = P0) -> None:
        async def is_said() -> bool:
            return await self.state(partition) == state

        await until(is_said)


async def keep(command: Note, ctx: Context[None]) -> None:
    await ctx.db.execute("INSERT INTO effect (id) VALUES ($1)", command.id)


@asynccontextmanager
async def running(loop: ConsumerLoop) -> AsyncIterator[None]:
    """The loop runs inside and is stopped gracefully afterwards."""
    task = asyncio.create_task(loop.run())
    try:
        yield
    finally:
        loop.stop()
        await task


async def until(condition: Callable[[], Awaitable[bool]], *, seconds: float = _DEADLINE_SECONDS) -> None:
    """Returns once `condition` holds."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.02)  # rows in a database tell nobody of their change
