"""A job on real Kafka and Postgres whose positions are moved by hand, and whose topic is broken on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition as ClientPartition
from pydantic import SecretStr

from consumers.loop import ConsumerLoop
from tests.integration.notes import running, until
from tidegate import App, ConsumerJob, Context, Event, Json, PlainJson, Topic, handle, on
from tidegate.assembly import assemble, live_loop
from tidegate.console.moves import Ask
from tidegate.console.offsets import Plan, Target, move_offsets, plan_offsets
from tidegate.console.stands import show_offsets
from tidegate.jobs.intents import pause, resume
from tidegate.jobs.selection import select
from tidegate.resources import Resources
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import create_topics, join_group, open_reader, open_writer
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import KafkaSettings, Settings
from tidegate_kernel.source import Outgoing

ADMIN, OPERATOR = Actor("anna", Role.ADMIN), Actor("olaf", Role.OPERATOR)


class Noted(msgspec.Struct):
    text: str


@dataclass(frozen=True)
class Note:
    text: str


def to_note(event: Event[Noted]) -> Note:
    return Note(event.data.text)


async def note(command: Note, ctx: Context[None]) -> None:
    await ctx.db.execute("INSERT INTO effect (id) VALUES ($1)", command.text)


@dataclass
class Bench:
    """A job on topics of its own; each loop is another process. An event without an id is known by its place."""

    pool: Pool
    dsn: str
    kafka: KafkaSettings
    topics: Sequence[str]

    @property
    def topic(self) -> str:
        return self.topics[0]

    @property
    def app(self) -> App:
        envelope = PlainJson(type=None, type_value="noted", id="id")
        topics = [Topic(name, format=Json(), envelope=envelope) for name in self.topics]
        events = [on("noted", Noted, to_note)]
        job = ConsumerJob(code="notes", topics=topics, unlisted="skip", runbook="-", events=events)
        return App(service=self.topic, owner="tests", jobs=[job], handlers=[handle(Note, note)])

    @property
    def settings(self) -> Settings:
        return Settings(postgres_dsn=SecretStr(self.dsn), kafka=self.kafka, drain_timeout=timedelta(seconds=5))

    async def loop(self, *, group: str = "notes") -> ConsumerLoop:
        job = self.app.jobs[0]
        resources = Resources(self.settings, self.pool, SystemClock(), Metrics(), ThreadPoolExecutor(1), "tests")
        parts = await assemble(self.app, job, resources, sink=None)
        return live_loop(
            parts,
            lambda assigned, revoked: join_group(
                self.kafka,
                group=f"{self.topic}.{group}",
                topics=self.topics,
                on_assigned=assigned,
                on_revoked=revoked,
            ),
            SystemClock(),
        )

    async def send(self, *texts: str, ids: bool = False, topic: str | None = None, partition: int = 0) -> None:
        values = [msgspec.json.encode({"text": text} | ({"id": text} if ids else {})) for text in texts]
        async with open_writer(self.kafka) as writer:
            records = [Outgoing(topic or self.topic, value, partition=partition) for value in values]
            assert not any(await writer.write(records))

    async def effects(self) -> list[str]:
        return [row["id"] for row in await self.pool.fetch("SELECT id FROM effect ORDER BY id")]

    async def position(self, partition: int = 0, *, topic: str | None = None) -> int | None:
        found: int | None = await self.pool.fetchval(
            "SELECT max(next_offset) FROM tidegate.position WHERE topic = $1 AND partition = $2",
            topic or self.topic,
            partition,
        )
        return found

    async def stands_at(self, offset: int, partition: int = 0, *, topic: str | None = None) -> None:
        async def is_there() -> bool:
            return await self.position(partition, topic=topic) == offset

        await until(is_there)

    async def skipped(self) -> list[tuple[int, int, str, str, str]]:
        rows = await self.pool.fetch(
            "SELECT first_offset, last_offset, cause, actor, reason FROM tidegate.skipped_range ORDER BY id"
        )
        return [tuple(row.values()) for row in rows]

    async def pause(self) -> None:
        await pause(self.pool, OPERATOR, select(self.app, "notes"), reason="offsets")

    async def resume(self) -> None:
        await resume(self.pool, OPERATOR, select(self.app, "notes"), reason="")

    async def plan(self, ask: Ask, target: Target | None = None) -> Plan:
        return await plan_offsets(self.app, self.settings, self.app.jobs[0], target or Target(self.topic, 0), ask)

    async def move(self, plan: Plan, actor: Actor = ADMIN, *, reason: str = "told to") -> None:
        async with self.pool.acquire() as connection:
            await move_offsets(self.app, connection, actor, plan, reason=reason)

    async def resolve(self, ask: Ask, target: Target | None = None) -> None:
        """As an operator does: pause, plan and move, resume."""
        await self.pause()
        await self.move(await self.plan(ask, target))
        await self.resume()

    async def obstacle(self) -> str:
        [shown] = await show_offsets(self.app, self.settings, self.app.jobs[0])
        return "" if shown.obstacle is None else shown.obstacle.told("notes")

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[Any]:
        client = AIOKafkaAdminClient(bootstrap_servers=self.kafka.bootstrap)
        await client.start()
        try:
            yield client
        finally:
            await client.close()

    async def delete_before(self, offset: int) -> None:
        async with self.admin() as admin:
            await admin.delete_records({ClientPartition(self.topic, 0): RecordsToDelete(before_offset=offset)})

    async def recreate(self) -> None:
        async with self.admin() as admin:
            await admin.delete_topics([self.topic])
        await until(self._is_gone)
        await make_topic(self.kafka, self.topic)

    async def _is_gone(self) -> bool:
        async with open_reader(self.kafka) as reader:
            return not await reader.partitions_of(self.topic)


async def make_topic(kafka: KafkaSettings, name: str, partitions: int = 1) -> None:
    await create_topics(kafka, {name: partitions}, replication=1)
    async with open_reader(kafka) as reader:
        while len(await reader.partitions_of(name)) < partitions:
            await asyncio.sleep(0.05)  # a broker tells of a new topic a moment after it made it


def letters(first: int, last: int) -> list[str]:
    return [f"n{n:02}" for n in range(first, last)]


async def settle(bench: Bench, texts: Sequence[str], *, until_offset: int) -> None:
    """The texts are produced, and a worker that has ended since has handled them."""
    await bench.send(*texts)
    async with running(await bench.loop()):
        await bench.stands_at(until_offset)


async def is_blocked(bench: Bench, loop: ConsumerLoop) -> str:
    """Returns why the partition is blocked, once it is."""

    async def blocked() -> bool:
        held = loop.holdings.get(TopicPartition(bench.topic, 0))
        return held is not None and held.blocked is not None

    await until(blocked)
    held = loop.holdings.get(TopicPartition(bench.topic, 0))
    assert held is not None
    return held.blocked or ""
