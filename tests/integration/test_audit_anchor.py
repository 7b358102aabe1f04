"""The audit against its topic, on real Postgres and Kafka: what a restore of the database takes away is named."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg
import pytest

from tidegate.auditing import AuditReport, verify_audit
from tidegate.jobs.relay import OutboxRelay
from tidegate.jobs.topic_plan import audit_topic, create_missing
from tidegate.migrations.schema import migrate
from tidegate.stack.names import StackAddresses
from tidegate_kernel.audit import permitted
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.kafka import open_writer
from tidegate_kernel.permissions import Action, Actor, Deed, Role
from tidegate_kernel.postgres import connect, open_pool
from tidegate_kernel.settings import KafkaSettings

pytestmark = pytest.mark.timeout(120)


@dataclass
class Database:
    """A database whose audit is published to the topic that all of them share."""

    dsn: str
    kafka: KafkaSettings

    async def act(self, *targets: str) -> None:
        """One deed for each, published."""
        async with open_pool(self.dsn, size=2) as pool, open_writer(self.kafka) as writer:
            for target in targets:
                async with permitted(pool, Actor("anna", Role.ADMIN), Deed(Action.CHECKPOINT_CREATE, target)):
                    pass
            relay = OutboxRelay(pool, writer, SystemClock())
            while await relay.relay_once():
                pass

    async def verify(self, *, after: int = 0) -> AuditReport:
        async with connect(self.dsn) as connection:
            return await verify_audit(connection, self.kafka, after=after)


@pytest.fixture
async def original(empty_database: str, stack: StackAddresses) -> Database:
    """Freshly migrated: its chain has an id of its own, unlike those of databases that tests copy."""
    kafka = KafkaSettings(bootstrap=stack.kafka_bootstrap)
    await migrate(empty_database)
    (topic,) = await create_missing(kafka, [audit_topic()])
    assert topic.partitions == 1
    return Database(empty_database, kafka)


@asynccontextmanager
async def _backup(of: Database, stack: StackAddresses) -> AsyncIterator[Database]:
    """The database as it is now, under another name."""
    name, base = f"backup_{secrets.token_hex(6)}", of.dsn.rpartition("/")
    server = await asyncpg.connect(stack.postgres_dsn)
    try:
        await server.execute(f"CREATE DATABASE {name} TEMPLATE {base[2]}")
        yield Database(f"{base[0]}/{name}", of.kafka)
    finally:
        await server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await server.close()


async def test_published_rows_are_confirmed_by_the_topic(original: Database) -> None:
    """Also beside the rows of every other database that shares the Kafka."""
    await original.act("one", "two", "three")

    report = await original.verify()

    assert (report.is_intact, report.rows, report.anchored, report.notes) == (True, 3, 3, [])


async def test_restore_to_an_earlier_time_is_named_row_by_row(original: Database, stack: StackAddresses) -> None:
    """The chain of the restored database is whole; that it once was longer, only what left the database knows."""
    await original.act("one", "two", "three")
    async with _backup(original, stack) as restored:
        await original.act("four", "five")
        assert (await original.verify()).anchored == 5

        await restored.act("another four")
        report = await restored.verify()
        known = await restored.verify(after=5)

    told = [text.partition(" with hash")[0] for text in report.breaks]
    assert told == ["row 4 is in the topic", "row 5 is in the topic"]
    assert "'four' by anna" in report.breaks[0]
    assert "the table has none: the database was restored to an earlier time" in report.breaks[1]
    assert report.anchored == 4
    assert any("before row 4" in note and "became another" in note for note in report.notes)
    assert known.is_intact


async def test_rewritten_chain_differs_from_the_topic(original: Database) -> None:
    """Whoever owns the database can hash all rows anew; the topic keeps the old hashes."""
    await original.act("one", "two")
    async with connect(original.dsn) as connection:
        await connection.execute(
            """
            ALTER TABLE tidegate.audit DISABLE TRIGGER audit_is_append_only;
            UPDATE tidegate.audit SET actor = 'somebody else' WHERE seq = 2;
            UPDATE tidegate.audit AS a
            SET hash = sha256(a.previous_hash || convert_to(tidegate.audit_text(a), 'UTF8')) WHERE seq = 2;
            UPDATE tidegate.audit_head SET hash = (SELECT hash FROM tidegate.audit WHERE seq = 2);
            """
        )

    report = await original.verify()

    assert [text.partition(" with hash")[0] for text in report.breaks] == ["row 2 is in the topic"]


async def test_chain_that_was_replaced_with_another_is_named(original: Database) -> None:
    """With all rows gone and another id no row differs from the topic; that this database had a chain before does."""
    await original.act("one", "two")
    async with connect(original.dsn) as connection:
        was = await connection.fetchval("SELECT chain FROM tidegate.audit_head")
        await connection.execute(
            """
            ALTER TABLE tidegate.audit DISABLE TRIGGER audit_is_append_only;
            DELETE FROM tidegate.audit;
            UPDATE tidegate.audit_head SET chain = gen_random_uuid(), seq = 0;
            UPDATE tidegate.audit_head SET hash = sha256(convert_to(chain::text, 'UTF8'));
            """
        )
    await original.act("innocent")

    report = await original.verify()

    assert [text.partition(", which")[0] for text in report.breaks] == [f"the topic has rows up to 2 of chain {was}"]
    assert (await original.verify(after=1)).is_intact, "once it is known, as with a restore"


async def test_without_kafka_the_table_alone_decides_and_it_is_said(original: Database) -> None:
    """An outage of Kafka is no sign of tampering, and no proof of the contrary."""
    await original.act("one")
    alone = Database(original.dsn, KafkaSettings(bootstrap="127.0.0.1:1"))

    report = await alone.verify()

    assert (report.is_intact, report.anchored) == (True, None)
    assert "compared without its anchor" in report.notes[0]


async def test_rows_on_their_way_are_not_missed(original: Database) -> None:
    """A row waits in the outbox until a worker takes it along."""
    await original.act("one")
    deed = Deed(Action.CHECKPOINT_CREATE, "two")
    async with connect(original.dsn) as connection, permitted(connection, Actor("anna", Role.ADMIN), deed):
        pass

    report = await asyncio.wait_for(original.verify(), timeout=60)

    assert (report.is_intact, report.anchored) == (True, 1)
    assert report.notes == ["1 rows wait in the outbox for a worker to publish them"]
