"""What a real broker tells about how long it keeps records, and what a worker makes of it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec
import pytest
from pydantic import SecretStr

from tidegate import App, CloudEvents, ConsumerJob, Context, Event, Json, Topic, handle, on
from tidegate.stack.names import StackAddresses
from tidegate.worker import run_worker
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.kafka import create_topics
from tidegate_kernel.kafka_retention import Retention, read_retention
from tidegate_kernel.postgres import connect
from tidegate_kernel.settings import KafkaSettings, Settings

DAY = timedelta(days=1)
_CONFIG = {"retention.ms": "259200000", "segment.ms": "3600000"}


class Noted(msgspec.Struct):
    n: int


def to_note(event: Event[Noted]) -> Noted:
    return event.data


async def note(command: Noted, ctx: Context[None]) -> None:
    return None


@pytest.fixture
def kafka(stack: StackAddresses) -> KafkaSettings:
    return KafkaSettings(bootstrap=stack.kafka_bootstrap)


@pytest.fixture
async def topic(kafka: KafkaSettings, topic_prefix: str) -> str:
    """A topic that keeps records for three days, and the one for dead letters beside it."""
    await create_topics(kafka, {topic_prefix: 1}, configs=_CONFIG)
    await create_topics(kafka, {f"{topic_prefix}.notes.dlq": 1})
    return topic_prefix


def application(topic: str, horizon: timedelta | None) -> App:
    job = ConsumerJob(
        code="notes",
        topics=[Topic(topic, Json(), CloudEvents())],
        unlisted="skip",
        runbook="-",
        events=[on("noted", Noted, to_note)],
        dedupe_horizon=horizon,
    )
    return App(service=topic, owner="tests", jobs=[job], handlers=[handle(Noted, note)])


async def run_briefly(app: App, kafka: KafkaSettings, database: str) -> int | None:
    """Runs a worker that is told to stop at once; returns the horizon that it stored, in days."""
    stop = asyncio.Event()
    stop.set()
    settings = Settings(postgres_dsn=SecretStr(database), http_port=0).model_copy(update={"kafka": kafka})
    await run_worker(app, settings, ["notes"], stop=stop)
    async with connect(database) as connection:
        days: int | None = await connection.fetchval("SELECT horizon_days FROM tidegate.job")
        return days


async def test_retention_is_what_the_broker_says(kafka: KafkaSettings, topic: str) -> None:
    """What the topic's own settings and the broker's defaults come to, per topic."""
    await create_topics(kafka, {f"{topic}-compacted": 1}, configs={"cleanup.policy": "compact"})

    found = await read_retention(kafka, [topic, f"{topic}-compacted"])

    assert found[topic] == Retention(3 * DAY, timedelta(hours=1))
    assert (found[f"{topic}-compacted"].kept, found[f"{topic}-compacted"].is_compacted) == (None, True)
    assert await read_retention(kafka, []) == {}


async def test_worker_stores_the_horizon_that_upkeep_goes_by(kafka: KafkaSettings, topic: str, database: str) -> None:
    """Case 78: by default two weeks here; a declared one counts; upkeep of any worker then knows it."""
    assert await run_briefly(application(topic, None), kafka, database) == 14
    assert await run_briefly(application(topic, 4 * DAY), kafka, database) == 4
    assert await run_briefly(application(topic, timedelta.max), kafka, database) is None


async def test_worker_refuses_to_start_with_a_horizon_below_retention(
    kafka: KafkaSettings, topic: str, database: str
) -> None:
    """Case 78: it would forget what Kafka can still bring back."""
    with pytest.raises(Misconfigured, match=r"its dedupe_horizon is 2 days, but topic .* keeps records for 3 days"):
        await run_briefly(application(topic, 2 * DAY), kafka, database)
