"""`explain` and what workers say, on real servers: the answer an operator gets in each situation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from uuid import uuid4

import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition as ClientPartition
from pydantic import SecretStr

from consumers.loop import Join
from tests.integration.notes import Note
from tests.integration.pausing import OPERATOR, Bench, keep, running, until
from tidegate import App, Context, RetryLater
from tidegate.backfilling import BackfillOptions, BackfillStart, run_backfill
from tidegate.console.explaining import JobExplanation, explain_job
from tidegate.console.explanation import Cause, Explanation
from tidegate.console.status import Verdict, read_status
from tidegate.jobs.declaration import Job
from tidegate.jobs.intents import pause
from tidegate.jobs.selection import select
from tidegate.stack.names import StackAddresses
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import create_topics, join_group, open_reader, open_writer
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import KafkaSettings, Settings

pytestmark = pytest.mark.timeout(120)


@dataclass
class KafkaBench(Bench):
    """The service on a real Kafka, with a topic of its own of one partition."""

    kafka: KafkaSettings = field(default_factory=KafkaSettings)

    @property
    def settings(self) -> Settings:
        return Settings(postgres_dsn=SecretStr(self.dsn), kafka=self.kafka, drain_timeout=timedelta(seconds=5))

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)

    def join(self, app: App, job: Job) -> Join:
        group = app.group(job.job_code)
        return lambda assigned, revoked: join_group(
            self.kafka, group=group, topics=[self.topic], on_assigned=assigned, on_revoked=revoked
        )

    async def produce(self, *numbers: int, tenant: str = "calm") -> None:
        async with open_writer(self.kafka) as writer:
            assert not any(await writer.write([self.event(n, tenant=tenant) for n in numbers]))

    async def answer(self, settings: Settings | None = None) -> JobExplanation:
        return await explain_job(self.app, settings or self.settings, self.app.job("notes"), SystemClock())

    async def explained(self) -> Explanation:
        [(_, found)] = (await self.answer()).partitions
        return found

    async def is_explained_by(self, cause: Cause) -> Explanation:
        """Returns the explanation once it comes down to `cause`."""
        found: list[Explanation] = []

        async def is_it() -> bool:
            found[:] = [await self.explained()]
            return found[0].cause is cause

        await until(is_it)
        return found[0]

    async def pause(self, *, tenant: str | None = None) -> None:
        await pause(self.pool, OPERATOR, select(self.app, "notes", tenant=tenant), reason="looking")


@pytest.fixture
async def bench(pool: Pool, database: str, stack: StackAddresses, unique_name: Callable[[str], str]) -> KafkaBench:
    kafka = KafkaSettings(
        bootstrap=stack.kafka_bootstrap, session_timeout=timedelta(seconds=6), heartbeat_interval=timedelta(seconds=1)
    )
    topic = unique_name("explain")
    await create_topics(kafka, {topic: 1}, replication=1)
    async with open_reader(kafka) as reader:
        while not await reader.partitions_of(topic):
            await asyncio.sleep(0.05)  # a broker tells of a new topic a moment after it made it
    return KafkaBench(pool, database, topic=topic, kafka=kafka)


async def test_a_job_that_never_started_says_so(bench: KafkaBench) -> None:
    """The first question after a deployment that did not happen."""
    await bench.produce(0)
    found = await bench.explained()
    assert (found.cause, list(found.commands)) == (Cause.NEVER_OWNED, ["tidegate run notes"])


async def test_caught_up_then_without_an_owner(bench: KafkaBench) -> None:
    """While it runs it is caught up; after its stop records wait, and who let it go is known."""
    await bench.produce(0)
    async with running(await bench.loop(owner="host:7")):
        assert (await bench.is_explained_by(Cause.CAUGHT_UP)).sentence == "caught up at offset 1"
    await bench.produce(1)

    found = await bench.explained()
    assert found.cause is Cause.NO_OWNER
    assert "host:7 let it go" in found.sentence
    assert "1 offsets wait" in found.sentence


async def test_an_owner_that_is_not_seen_is_no_owner(bench: KafkaBench) -> None:
    """A killed worker says nothing more; its last word is told with its age."""
    async with running(await bench.loop(owner="host:7")):
        await bench.is_explained_by(Cause.CAUGHT_UP)
    await bench.pool.execute("UPDATE tidegate.presence SET state = 'moving', seen_at = now() - interval '40 s'")

    found = await bench.explained()
    assert (found.cause, "host:7 has not been seen for 40 s" in found.sentence) == (Cause.NO_OWNER, True)


async def test_moving_slowly_is_moving(bench: KafkaBench) -> None:
    """Many small batches, each of which settles: nothing is wrong."""

    async def sluggish(command: Note, ctx: Context[None]) -> None:
        await asyncio.sleep(0.05)
        await keep(command, ctx)

    bench.handler = sluggish
    bench.batch_size = 1
    await bench.produce(*range(200))
    async with running(await bench.loop()):
        found = await bench.is_explained_by(Cause.MOVING)
        assert "offsets to go from" in found.sentence


async def test_a_paused_job_is_explained_and_shown_by_the_status(bench: KafkaBench) -> None:
    """Whoever looks sees who stopped it, and what ends that; no alert about lateness."""
    async with running(await bench.loop()):
        await bench.is_explained_by(Cause.CAUGHT_UP)
        await bench.pause()
        await bench.says("paused", bench.partition)
        await bench.produce(0)
        found = await bench.explained()
        notes, index = (await read_status(bench.app, bench.settings, SystemClock())).jobs

    assert found == Explanation(
        Cause.PAUSED, "paused by alice until somebody resumes it: looking", ["tidegate resume notes"]
    )
    assert (notes.verdict, list(notes.resting), notes.records_behind) == (Verdict.PAUSED, [f"{bench.topic}:0"], 1)
    assert index.verdict is not Verdict.PAUSED


async def test_a_paused_tenant_is_explained_where_its_record_comes_next(bench: KafkaBench) -> None:
    """And the status knows that the partition waits for that."""
    await bench.pause(tenant="acme")
    await bench.produce(0)
    await bench.produce(1, tenant="acme")
    async with running(await bench.loop()):
        found = await bench.is_explained_by(Cause.TENANT_PAUSED)
        [notes, _] = (await read_status(bench.app, bench.settings, SystemClock())).jobs

    assert "its next record at offset 1 is of tenant 'acme'" in found.sentence
    assert found.commands == ["tidegate resume notes --tenant acme"]
    assert list(notes.resting) == [f"{bench.topic}:0"]


async def test_a_gap_is_explained_with_a_worker_and_without(bench: KafkaBench) -> None:
    """Case 63: retention removed records that were not handled."""
    await bench.produce(0)
    async with running(await bench.loop()):
        await bench.is_explained_by(Cause.CAUGHT_UP)
    await bench.produce(*range(1, 6))
    await delete_before(bench, 4)

    assert (await bench.explained()).cause is Cause.GAP
    async with running(await bench.loop()):
        await bench.says("blocked", bench.partition)
        found = await bench.explained()
    assert found.cause is Cause.GAP
    assert "offsets 1 to 3" in found.sentence
    assert f"tidegate offsets accept-gap notes {bench.topic}:0 --reason '…'" in found.commands


async def test_a_re_created_topic_is_explained(bench: KafkaBench) -> None:
    """Case 64: the offsets mean other records."""
    await bench.produce(0)
    async with running(await bench.loop()):
        await bench.is_explained_by(Cause.CAUGHT_UP)
    await bench.pool.execute("UPDATE tidegate.position SET topic_id = $1", uuid4())

    found = await bench.explained()
    assert (found.cause, "adopt" in found.commands[1]) == (Cause.RECREATED, True)


async def test_a_batch_that_waits_is_explained_by_its_error(bench: KafkaBench) -> None:
    """Which attempt, which error, since when: without a look into the logs."""

    async def failing(command: Note, ctx: Context[None]) -> None:
        raise RetryLater("the bank is closed", after=3600)

    bench.handler = failing
    await bench.produce(0)
    async with running(await bench.loop()):
        found = await bench.is_explained_by(Cause.WAITING_FOR_RETRY)
    assert "try 1 failed at offset 0: RetryLater" in found.sentence


async def test_a_slow_handler_is_explained_by_its_name(bench: KafkaBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose code holds the partition is the first question."""
    monkeypatch.setattr("consumers.presence.SLOW_SECONDS", 0.5)
    may_end = asyncio.Event()

    async def slow(command: Note, ctx: Context[None]) -> None:
        await may_end.wait()
        await keep(command, ctx)

    bench.handler = slow
    await bench.produce(0)
    async with running(await bench.loop()):
        found = await bench.is_explained_by(Cause.SLOW_HANDLER)
        may_end.set()
    assert "slow, in a batch from offset 0" in found.sentence


async def test_servers_that_cannot_be_reached_are_an_answer(bench: KafkaBench) -> None:
    """At night half of the questions come because one of them is away."""
    async with running(await bench.loop(owner="host:7")):
        await bench.is_explained_by(Cause.CAUGHT_UP)
        without_kafka = await bench.answer(
            bench.settings.model_copy(update={"kafka": KafkaSettings(bootstrap="127.0.0.1:1")})
        )
        dsn = SecretStr("postgresql://127.0.0.1:1/nowhere")
        without_postgres = await bench.answer(bench.settings.model_copy(update={"postgres_dsn": dsn}))

    [(_, found)] = without_kafka.partitions
    assert found.cause is Cause.KAFKA_UNREACHABLE
    assert "host:7 said" in found.sentence
    assert without_postgres.trouble is not None
    assert without_postgres.trouble.cause is Cause.POSTGRES_UNREACHABLE
    assert "127.0.0.1:1" in without_postgres.trouble.sentence


async def test_a_missing_topic_and_an_unknown_partition_are_told(bench: KafkaBench) -> None:
    """A typing error and a forgotten release look alike: Kafka has no such partition."""
    job = bench.app.job("notes")
    answer = await explain_job(bench.app, bench.settings, job, SystemClock(), topic=bench.topic, partition=9)
    assert [found.cause for _, found in answer.partitions] == [Cause.MISSING]
    gone = await replace(bench, topic=f"{bench.topic}-gone").answer()
    assert list(gone.partitions) == []


async def test_a_backfill_runs_while_its_job_is_paused(bench: KafkaBench) -> None:
    """It is a deliberate act of its own, and told what it passes by; the live consumer finds its work done."""
    await bench.pause()
    await bench.pause(tenant="acme")
    await bench.produce(0, 1)
    await bench.produce(2, tenant="acme")
    told: list[str] = []
    options = BackfillOptions(BackfillStart(is_beginning=True), on_wait=told.append)

    report = await run_backfill(bench.app, bench.settings, "notes", options, actor=OPERATOR, stop=asyncio.Event())

    assert (report.is_done, report.tally.applied) == (True, 3)
    assert [each.split(" is paused")[0] for each in told] == ["job 'notes': all of it", "job 'notes': tenant 'acme'"]
    assert await bench.noted() == ["e0", "e1", "e2"]


async def delete_before(bench: KafkaBench, offset: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bench.kafka.bootstrap)
    await admin.start()
    try:
        await admin.delete_records({ClientPartition(bench.topic, 0): RecordsToDelete(before_offset=offset)})
    finally:
        await admin.close()
