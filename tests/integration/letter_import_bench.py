"""A job whose dead letters stand on a real DLQ topic, and the database that had them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
from pydantic import SecretStr

from consumers.loop import ConsumerLoop
from dlq.letters import Failure, Origin, record_dead_letters
from dlq.outcomes import Decided, tell_outcomes
from dlq.states import LetterState
from tidegate import App, CloudEvents, ConsumerJob, Context, Event, Json, Rejected, Topic, handle, on
from tidegate.assembly import assemble, live_loop, origin_of
from tidegate.jobs.publishing import cloud_event
from tidegate.jobs.relay import OutboxRelay
from tidegate.letter_import import ImportPlan, ImportReport, import_letters, plan_import
from tidegate.resources import Resources
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import InvalidEvent, Reason
from tidegate_kernel.event import LIVE, Headers, JobId, Record
from tidegate_kernel.kafka import create_topics, join_group, open_reader, open_writer
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import KafkaSettings, Settings
from tidegate_kernel.source import Outgoing

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TOPIC_ID = UUID(int=77)
OPERATOR = Actor("olga", Role.OPERATOR)


class Noted(msgspec.Struct):
    n: int
    customer: str = ""


@dataclass(frozen=True)
class Note:
    id: str
    n: int


def to_note(event: Event[Noted]) -> Note:
    return Note(event.id, event.data.n)


async def note(command: Note, ctx: Context[None]) -> None:
    """Notes the event; refuses a negative one."""
    if command.n < 0:
        raise Rejected("negative")
    await ctx.db.execute("INSERT INTO effect (id, n) VALUES ($1, $2)", command.id, command.n)


@dataclass
class Given:
    """A record with only the fields that matter."""

    offset: int = 0
    value: bytes | None = b'{"n":1}'
    key: bytes | None = b"k"
    headers: Headers = field(default_factory=list)
    timestamp: int = 1_700_000_000_000
    topic: str = ""
    partition: int = 0


@dataclass
class Bench:
    """One service on one Kafka; `pool` is the database that saw the failures, `fresh` the one that never did."""

    kafka: KafkaSettings
    name: str
    pool: Pool
    fresh: Pool
    job: ConsumerJob
    app: App
    origin: Origin
    topic_id: UUID = TOPIC_ID

    @property
    def dlq(self) -> str:
        return self.origin.dlq_topic

    @property
    def orders(self) -> str:
        return f"{self.name}.orders"

    def failure(self, record: Given, **fields: Any) -> Failure:
        named = replace(record, topic=record.topic or self.orders)
        plain = Failure(
            record=named, topic_id=self.topic_id, reason=Reason.INVALID_EVENT, error=InvalidEvent("field 'id'")
        )
        return replace(plain, **fields)

    async def fail(self, *failures: Failure, at: datetime = NOW, **origin: Any) -> list[UUID]:
        """The failures are letters, on the topic too; returns their ids."""
        async with self.pool.acquire() as connection, connection.transaction():
            kept = await record_dead_letters(connection, replace(self.origin, **origin), failures, at)
        await self.relay()
        return list(kept.values())

    async def decide(self, letter: UUID, state: LetterState, *, at: datetime, key: bytes | None = b"k") -> None:
        async with self.pool.acquire() as connection, connection.transaction():
            failed_at = await connection.fetchval(
                """UPDATE tidegate.dead_letter SET state = $1, decided_at = $2 WHERE id = $3
                RETURNING last_failed_at""",
                state,
                at,
                letter,
            )
            await tell_outcomes(connection, self.origin, [Decided(letter, key, state, at, failed_at)])
        await self.relay()

    async def relay(self) -> None:
        async with open_writer(self.kafka) as writer:
            relay = OutboxRelay(self.pool, writer, SystemClock())
            while await relay.relay_once():
                pass

    async def write(self, *records: Outgoing) -> None:
        async with open_writer(self.kafka) as writer:
            assert not any(await writer.write(records))

    async def published(self) -> list[Record]:
        """Everything on the DLQ topic, by partition and offset."""
        async with open_reader(self.kafka) as asking:
            partitions = await asking.partitions_of(self.dlq)
        records: list[Record] = []
        async with open_reader(self.kafka, partitions) as reader:
            ends = {partition: held.end for partition, held in (await reader.ranges(partitions)).items()}
            for partition, end in sorted(ends.items()):
                reader.seek(partition, 0)
                read = 0
                while read < end:
                    fetched = (await reader.fetch([partition], max_records=1000, timeout=5)).get(partition, ())
                    records += fetched
                    read += len(fetched)
        return records

    async def do(self, actor: Actor = OPERATOR, *, into: Pool | None = None) -> ImportReport:
        return await import_letters(self.app, self._settings(), self.job, into or self.fresh, actor=actor)

    async def plan(self) -> ImportPlan:
        async with self.fresh.acquire() as connection:
            return await plan_import(self.app, self._settings(), self.job, connection)

    def _settings(self) -> Settings:
        return Settings(postgres_dsn=SecretStr("postgresql://unused"), kafka=self.kafka)

    async def produce(self, *events: tuple[str, int]) -> None:
        """Events `(key, n)`, with the ids e0, e1 and so on."""
        await self.write(
            *(
                cloud_event(self.orders, {"n": n}, key=key, attributes={"id": f"e{i}", "source": "t", "type": "noted"})
                for i, (key, n) in enumerate(events)
            )
        )

    async def loop(self, pool: Pool) -> ConsumerLoop:
        """The job's live consumer, on that database, in a group of that database's own."""
        resources = Resources(self._settings(), pool, SystemClock(), Metrics(), ThreadPoolExecutor(1), "worker")
        parts = await assemble(self.app, self.job, resources, sink=None)
        group = f"{self.name}.{id(pool)}"
        return live_loop(
            parts,
            lambda assigned, revoked: join_group(
                self.kafka, group=group, topics=[self.orders], on_assigned=assigned, on_revoked=revoked
            ),
            SystemClock(),
        )

    async def letters(self, pool: Pool | None = None) -> dict[UUID, asyncpg.Record]:
        rows = await (pool or self.fresh).fetch("SELECT * FROM tidegate.dead_letter ORDER BY id")
        return {row["id"]: row for row in rows}

    async def states(self) -> dict[UUID, str]:
        return {letter: row["state"] for letter, row in (await self.letters()).items()}


async def make_bench(
    kafka: KafkaSettings, pool: Pool, fresh: Pool, unique_name: Callable[[str], str], **job: Any
) -> Bench:
    """The service `name` with its topics, known to the database that saw the failures."""
    name = unique_name("s")
    topic = Topic(f"{name}.orders", format=Json(), envelope=CloudEvents())
    declared = ConsumerJob(
        code="notes", topics=[topic], unlisted="skip", runbook="-", events=[on("noted", Noted, to_note)], **job
    )
    app = App(service=name, owner="tests", jobs=[declared], handlers=[handle(Note, note)])
    number = await pool.fetchval(
        "INSERT INTO tidegate.job (service, code, claim_rule) VALUES ($1, 'notes', $2) RETURNING id",
        name,
        declared.claim_rule.spell(),
    )
    origin = origin_of(app, declared, JobId(number), LIVE)
    await create_topics(kafka, {origin.dlq_topic: 3, f"{name}.orders": 1}, replication=1)
    return Bench(kafka, name, pool, fresh, declared, app, origin)


def named(rows: Sequence[asyncpg.Record]) -> list[dict[str, Any]]:
    """Rows as values, without the number of their job, which every database counts by itself."""
    return [{name: value for name, value in row.items() if name != "job"} for row in rows]
