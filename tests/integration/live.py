"""One consumer that notes each event, on real Kafka and Postgres, in as many copies as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import msgspec
from pydantic import SecretStr

from consumers.loop import ConsumerLoop
from tidegate import App, CloudEvents, ConsumerJob, Context, Event, Json, Topic, handle, on
from tidegate.assembly import JobParts, assemble, live_loop
from tidegate.jobs.publishing import cloud_event
from tidegate.resources import Resources
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.kafka import join_group, open_writer
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import KafkaSettings, Settings
from tidegate_kernel.source import Assigned, RecordSource, Revoked


class Noted(msgspec.Struct):
    n: int


@dataclass(frozen=True)
class Note:
    id: str
    n: int


def to_note(event: Event[Noted]) -> Note:
    return Note(event.id, event.data.n)


async def note(command: Note, ctx: Context[None]) -> None:
    await ctx.db.execute("INSERT INTO effect (id, n) VALUES ($1, $2)", command.id, command.n)


@dataclass
class Service:
    """An application with one consumer on a topic of its own, run as often and in as many copies as a test wants."""

    pool: Pool
    kafka: KafkaSettings
    dsn: str
    topic: str
    handler: Any = note
    drain_timeout: timedelta = timedelta(seconds=5)
    metrics: list[Metrics] = field(default_factory=list)

    async def loop(self, owner: str = "worker", **job: Any) -> ConsumerLoop:
        return live_loop(await self.parts(owner, **job), self.join, SystemClock())

    async def parts(self, owner: str = "worker", **job: Any) -> JobParts:
        app, settings = self.application(**job)
        self.metrics.append(Metrics())
        resources = Resources(settings, self.pool, SystemClock(), self.metrics[-1], ThreadPoolExecutor(1), owner)
        return await assemble(app, app.job("notes"), resources, sink=None)

    def application(self, **job: Any) -> tuple[App, Settings]:
        topic = Topic(self.topic, format=Json(), envelope=CloudEvents())
        consumer = ConsumerJob(
            code="notes", topics=[topic], unlisted="skip", runbook="-", events=[on("noted", Noted, to_note)], **job
        )
        app = App(service=self.topic, owner="tests", jobs=[consumer], handlers=[handle(Note, self.handler)])
        settings = Settings(postgres_dsn=SecretStr(self.dsn), kafka=self.kafka, drain_timeout=self.drain_timeout)
        return app, settings

    def join(self, assigned: Assigned, revoked: Revoked) -> AbstractAsyncContextManager[RecordSource]:
        return join_group(
            self.kafka, group=f"{self.topic}.notes", topics=[self.topic], on_assigned=assigned, on_revoked=revoked
        )

    def as_member(self, name: str) -> Service:
        """The same service, whose processes join as the static member `name`."""
        return replace(self, kafka=self.kafka.model_copy(update={"instance_id": name}))

    async def produce(self, numbers: range, *, prefix: str = "e") -> None:
        async with open_writer(self.kafka) as writer:
            records = [
                cloud_event(
                    self.topic,
                    {"n": n},
                    key=str(n),
                    attributes={"id": f"{prefix}{n}", "source": "tests", "type": "noted"},
                )
                for n in numbers
            ]
            assert not any(await writer.write(records))

    async def effects(self) -> list[int]:
        return [row["n"] for row in await self.pool.fetch("SELECT n FROM effect ORDER BY n")]

    async def settled(self) -> int:
        return await self.pool.fetchval("SELECT coalesce(sum(next_offset), 0)::bigint FROM tidegate.position") or 0

    async def committed(self) -> int:
        """What Kafka's group says, summed over the partitions."""
        from aiokafka.admin import AIOKafkaAdminClient

        admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka.bootstrap)
        await admin.start()
        try:
            offsets = await admin.list_consumer_group_offsets(f"{self.topic}.notes")
        finally:
            await admin.close()
        return sum(max(0, told.offset) for told in offsets.values())


@asynccontextmanager
async def running(loop: ConsumerLoop) -> AsyncIterator[asyncio.Task[None]]:
    """The loop runs inside; it is stopped gracefully afterwards unless it has ended."""
    task = asyncio.create_task(loop.run())
    try:
        yield task
    finally:
        loop.stop()
        if not task.done():
            await task


async def until(condition: Callable[[], Any], *, seconds: float = 30) -> None:
    """Returns once `condition` (awaited if need be) is true."""
    async with asyncio.timeout(seconds):
        while True:
            result = condition()
            if await result if asyncio.iscoroutine(result) else result:
                return
            await asyncio.sleep(0.02)


async def has_settled(service: Service, offsets: int) -> bool:
    return await service.settled() >= offsets
