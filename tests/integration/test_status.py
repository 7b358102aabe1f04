"""The status, from Postgres and Kafka alone: right when idle, behind transactions, after retention, without workers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition as ClientPartition
from pydantic import SecretStr

from projections.memory import MemorySink
from tidegate import App, CloudEvents, Event, Json, ProjectionJob, Topic, Upsert, on
from tidegate.console.lag import PartitionStatus
from tidegate.console.status import JobStatus, Verdict, read_status
from tidegate.stack.names import StackAddresses
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.kafka import create_topics, open_reader, open_writer
from tidegate_kernel.postgres import connect
from tidegate_kernel.settings import KafkaSettings, Settings
from tidegate_kernel.source import Outgoing

_SLA = timedelta(seconds=30)


def _document(event: Event[dict[str, Any]]) -> Upsert:
    return Upsert(id=event.id, version=1, document={})


@dataclass
class Bench:
    """One projection on one topic of one partition; its position is whatever a test says."""

    app: App
    settings: Settings
    topic: str
    topic_id: UUID

    async def write(self, count: int, *, age: timedelta = timedelta(0)) -> None:
        at = int((datetime.now(UTC) - age).timestamp() * 1000)
        async with open_writer(self.settings.kafka) as writer:
            assert not any(await writer.write([Outgoing(self.topic, b"{}", timestamp=at)] * count))

    async def stand_at(self, offset: int, *, topic_id: UUID | None = None) -> None:
        async with connect(self.settings.postgres_dsn.get_secret_value()) as connection:
            job = await connection.fetchval(
                "INSERT INTO tidegate.job (service, code, claim_rule) VALUES ($1, 'search', '') RETURNING id",
                self.app.service,
            )
            await connection.execute(
                "INSERT INTO tidegate.position (job, topic, partition, next_offset, topic_id, owner) "
                "VALUES ($1, $2, 0, $3, $4, 'host:1')",
                job,
                self.topic,
                offset,
                topic_id or self.topic_id,
            )

    async def job(self) -> JobStatus:
        [job] = (await read_status(self.app, self.settings, SystemClock())).jobs
        return job

    async def partition(self) -> PartitionStatus:
        [partition] = (await self.job()).partitions
        return partition


@pytest.fixture
async def bench(stack: StackAddresses, database: str, topic_prefix: str) -> Bench:
    topic = Topic(topic_prefix, format=Json(), envelope=CloudEvents())
    job = ProjectionJob(
        code="search",
        topics=[topic],
        unlisted="skip",
        runbook="docs/search.md",
        events=[on("made", dict, _document)],
        sink=MemorySink(),
        freshness_sla=_SLA,
    )
    settings = Settings(postgres_dsn=SecretStr(database), kafka=KafkaSettings(bootstrap=stack.kafka_bootstrap))
    await create_topics(settings.kafka, {topic.name: 1})
    async with open_reader(settings.kafka) as reader:
        while not await reader.partitions_of(topic.name):
            await asyncio.sleep(0.05)  # a broker tells of a new topic a moment after it made it
        topic_id = await reader.topic_id(topic.name)
    return Bench(App(service=topic_prefix, owner="tests", jobs=[job]), settings, topic.name, topic_id)


async def test_caught_up_is_zero_however_old_the_last_record_is(bench: Bench) -> None:
    """Case 104: a quiet night is no lag."""
    await bench.write(3, age=timedelta(hours=2))
    await bench.stand_at(3)
    job = await bench.job()
    assert (job.records_behind, job.seconds_behind, job.verdict) == (0, 0.0, Verdict.OK)


async def test_behind_shows_the_age_of_the_first_record_not_handled(bench: Bench) -> None:
    """G11: no worker is alive, and still the seconds are those of the oldest waiting record, not of the newest."""
    await bench.write(2, age=timedelta(hours=2))
    await bench.write(3, age=timedelta(minutes=5))
    await bench.write(1)
    await bench.stand_at(2)
    job = await bench.job()
    assert job.records_behind == 4
    assert job.seconds_behind == pytest.approx(300, abs=30)
    assert job.verdict is Verdict.LATE


async def test_behind_within_the_sla_is_ok(bench: Bench) -> None:
    """An alert for what readers were promised anyway would be ignored the next time."""
    await bench.write(1, age=timedelta(seconds=2))
    await bench.stand_at(0)
    job = await bench.job()
    assert job.records_behind == 1
    assert job.verdict is Verdict.OK


async def test_control_record_at_the_end_is_no_lag(bench: Bench) -> None:
    """A transaction's marker takes an offset that no consumer ever sees: position 2, end 3, nothing left."""
    producer = AIOKafkaProducer(bootstrap_servers=bench.settings.kafka.bootstrap, transactional_id=bench.topic)
    await producer.start()
    try:
        async with producer.transaction():
            await producer.send_and_wait(bench.topic, b"{}")
            await producer.send_and_wait(bench.topic, b"{}")
    finally:
        await producer.stop()
    await bench.stand_at(2)
    async with asyncio.timeout(30):
        while (partition := await bench.partition()).end == 0:
            await asyncio.sleep(0.05)  # a broker confirms a transaction a moment before it writes the marker
    assert (partition.position, partition.end) == (2, 3)
    assert (partition.records_behind, partition.seconds_behind) == (0, 0.0)


async def test_job_that_never_started_is_behind_from_the_log_s_start(bench: Bench) -> None:
    """Case 105: no position is not no lag."""
    await bench.write(4, age=timedelta(minutes=5))
    job = await bench.job()
    [partition] = job.partitions
    assert (partition.position, partition.owner) == (None, None)
    assert job.records_behind == 4
    assert job.verdict is Verdict.LATE


async def test_empty_topic_of_a_job_that_never_started_is_ok(bench: Bench) -> None:
    """A new service is not late before its first event."""
    job = await bench.job()
    assert (job.records_behind, job.seconds_behind, job.verdict) == (0, 0.0, Verdict.OK)


async def test_what_retention_removed_is_a_gap_and_no_lag(bench: Bench) -> None:
    """Cases 63 and 105: the records are gone; what is left counts."""
    await bench.write(5)
    await _delete_before(bench, 3)
    await bench.stand_at(1)
    job = await bench.job()
    [partition] = job.partitions
    assert (partition.obstacle or "").startswith("gap: retention removed offsets 1 to 2 ")
    assert f"'tidegate offsets accept-gap search {bench.topic}:0 " in (partition.obstacle or "")
    assert partition.records_behind == 2
    assert job.verdict is Verdict.BLOCKED


@pytest.mark.parametrize("case", ["another id", "beyond the end"])
async def test_re_created_topic_is_told_and_its_lag_is_not_negative(bench: Bench, case: str) -> None:
    """Cases 64 and 65: offsets of another topic mean nothing here."""
    await bench.write(2)
    if case == "another id":
        await bench.stand_at(1, topic_id=uuid4())
    else:
        await bench.stand_at(9)
    job = await bench.job()
    [partition] = job.partitions
    assert partition.obstacle is not None
    assert partition.obstacle.startswith("re-created")
    assert f"'tidegate offsets adopt search {bench.topic}:0 " in partition.obstacle
    assert partition.records_behind == 0
    assert job.verdict is Verdict.BLOCKED


async def test_record_from_the_future_makes_no_negative_age(bench: Bench) -> None:
    """Case 107: a producer's clock may be ahead of ours."""
    await bench.write(1, age=-timedelta(seconds=30))
    await bench.stand_at(0)
    assert (await bench.partition()).seconds_behind == 0.0


async def _delete_before(bench: Bench, offset: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bench.settings.kafka.bootstrap)
    await admin.start()
    try:
        await admin.delete_records({ClientPartition(bench.topic, 0): RecordsToDelete(before_offset=offset)})
    finally:
        await admin.close()
