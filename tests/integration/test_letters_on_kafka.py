"""Dead letters of whole workers on a real Kafka and Postgres: when there are none, what is told, and where they go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from consumers.loop import ConsumerLoop
from consumers.ownership import Hold
from projections.memory import MemorySink
from tests.integration.live import Note, Noted, Service, has_settled, running, to_note, until
from tidegate import App, CloudEvents, ConsumerJob, Context, Event, Json, ProjectionJob, Topic, Upsert, handle, on
from tidegate.assembly import assemble, live_loop
from tidegate.jobs.relay import OutboxRelay
from tidegate.resources import Resources
from tidegate.stack.names import StackAddresses
from tidegate.worker import run_worker
from tidegate_kernel import logs
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import create_topics, join_group, open_reader, open_writer
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import KafkaSettings, Settings

SECRET = "jane@example.org"


class HandlerError(Exception):
    """An application's own wrapper."""


async def wrap_and_fail(command: Note, ctx: Context[None]) -> None:
    try:
        raise ValueError(f"invalid literal for int(): {SECRET!r}")
    except ValueError as error:
        raise HandlerError(f"note of {SECRET}") from error


@pytest.fixture
def kafka(stack: StackAddresses) -> KafkaSettings:
    return KafkaSettings(bootstrap=stack.kafka_bootstrap)


async def test_root_cause_is_kept_and_logged_once_with_coordinates_and_nobodys_data(
    pool: Pool, database: str, kafka: KafkaSettings, unique_name: Callable[[str], str]
) -> None:
    """Case 52: the wrapper hides what to repair; the words of both may quote the record."""
    topic = unique_name("notes")
    await create_topics(kafka, {topic: 1}, replication=1)
    service = Service(pool, kafka, database, topic, handler=wrap_and_fail)
    await service.produce(range(1))

    with capture_logs() as entries:
        async with running(await service.loop()):
            await until(partial(has_settled, service, 1))

    (row,) = await pool.fetch("SELECT * FROM tidegate.dead_letter")
    (told,) = [entry for entry in entries if entry["event"] == logs.DEAD_LETTER]
    assert row["error_class"] == told["error_class"] == "ValueError"
    assert (told["topic"], told["partition"], told["offset"]) == (topic, 0, 0)
    assert SECRET not in f"{row['error_class']}{row['error_message']}{row['stack']}{entries}"


def document(event: Event[Noted]) -> Upsert:
    return Upsert(str(event.data.n), version=1, document={"n": event.data.n})


async def test_an_outage_of_a_sink_makes_no_letters_and_costs_no_membership(
    pool: Pool, database: str, kafka: KafkaSettings, unique_name: Callable[[str], str]
) -> None:
    """Case 48: a thousand events meet a store that is away; afterwards they are all there, and nobody rebalanced."""
    topic = unique_name("notes")
    await create_topics(kafka, {topic: 2}, replication=1)
    sink = MemorySink()
    await sink.prepare()
    sink.is_down = True
    service = Service(pool, kafka, database, topic)
    await service.produce(range(1000))
    loop = await _projection(service, sink)

    async with running(loop):
        await until(lambda: [held.holds.keys() for held in loop.holdings.all()] == [{Hold.OUTAGE}] * 2)
        owned = await _epochs(pool)
        sink.is_down = False
        await until(partial(has_settled, service, 1000))
        assert await _epochs(pool) == owned

    assert len(sink.rows()) == 1000
    assert await pool.fetchval("SELECT count(*) FROM tidegate.dead_letter") == 0


async def _epochs(pool: Pool) -> list[int]:
    """They grow with every rebalance."""
    return [row["epoch"] for row in await pool.fetch("SELECT epoch FROM tidegate.position ORDER BY partition")]


async def _projection(service: Service, sink: MemorySink) -> ConsumerLoop:
    job = ProjectionJob(
        code="shown",
        topics=[Topic(service.topic, format=Json(), envelope=CloudEvents())],
        unlisted="skip",
        runbook="-",
        events=[on("noted", Noted, document)],
        sink=sink,
        freshness_sla=timedelta(seconds=5),
    )
    app = App(service=service.topic, owner="tests", jobs=[job])
    settings = Settings(postgres_dsn=SecretStr(service.dsn), kafka=service.kafka)
    resources = Resources(settings, service.pool, SystemClock(), Metrics(), ThreadPoolExecutor(1), "worker")
    parts = await assemble(app, job, resources, sink=sink)
    group = f"{service.topic}.shown"
    return live_loop(
        parts,
        lambda assigned, revoked: join_group(
            service.kafka, group=group, topics=[service.topic], on_assigned=assigned, on_revoked=revoked
        ),
        SystemClock(),
    )


async def test_worker_without_its_dlq_topic_does_not_start_and_names_it(
    pool: Pool, database: str, kafka: KafkaSettings, unique_name: Callable[[str], str]
) -> None:
    """Case 45: found before anything is consumed, not when the first letter has nowhere to go."""
    topic = unique_name("notes")
    await create_topics(kafka, {topic: 1}, replication=1)
    await Service(pool, kafka, database, topic).produce(range(1))
    app = _app(topic)
    settings = Settings(postgres_dsn=SecretStr(database), kafka=kafka, http_port=0)

    with pytest.raises(Misconfigured, match=rf"'{topic}\.notes\.dlq'; run 'tidegate topics create'"):
        await run_worker(app, settings, ["notes"], stop=asyncio.Event())

    assert await pool.fetchval("SELECT count(*) FROM tidegate.position") == 0


def _app(topic: str) -> App:
    async def unused(command: Note, ctx: Context[None]) -> None:
        raise AssertionError

    job = ConsumerJob(
        code="notes",
        topics=[Topic(topic, format=Json(), envelope=CloudEvents())],
        unlisted="skip",
        runbook="-",
        events=[on("noted", Noted, to_note)],
    )
    return App(service=topic, owner="tests", jobs=[job], handlers=[handle(Note, unused)])


async def test_letters_of_many_partitions_go_to_a_dlq_topic_of_one(
    pool: Pool, database: str, kafka: KafkaSettings, unique_name: Callable[[str], str]
) -> None:
    """A letter keeps its partition as a header; to write it to the same number would fail for ever."""
    topic = unique_name("notes")
    await create_topics(kafka, {topic: 4}, replication=1)
    await create_topics(kafka, {f"{topic}.notes.dlq": 1}, replication=1)
    service = Service(pool, kafka, database, topic, handler=wrap_and_fail)
    await service.produce(range(40))
    async with running(await service.loop()):
        await until(partial(has_settled, service, 40))

    async with open_writer(kafka) as writer:
        relay = OutboxRelay(pool, writer, SystemClock(), metrics=Metrics())
        while await relay.relay_once():
            pass

    letters = await pool.fetch("SELECT DISTINCT partition FROM tidegate.dead_letter")
    assert len(letters) > 1
    assert await pool.fetchval("SELECT count(*) FROM tidegate.outbox") == 0
    async with open_reader(kafka) as reader:
        (log,) = (await reader.ranges([TopicPartition(f"{topic}.notes.dlq", 0)])).values()
    assert log.end - log.start == 40
