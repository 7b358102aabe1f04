"""Gathers what is known of a job's partitions: positions, what owners say, what is wanted, what Kafka has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime

from consumers.intents import Intent
from tidegate.app import App
from tidegate.console.explanation import Cause, Explanation, explain
from tidegate.console.facts import UNSEEN_SECONDS, Facts, Said
from tidegate.console.lag import LivePosition, Log, read_logs
from tidegate.console.rendering import RenderingStatus, rendering_status
from tidegate.console.status import live_positions, parked_of_job, said_of_job
from tidegate.console.views import View, views_of_job
from tidegate.jobs.declaration import Job
from tidegate.jobs.intents import standing_intents
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import open_reader
from tidegate_kernel.postgres import Connection, connect, translated_errors
from tidegate_kernel.settings import KafkaSettings, Settings


@dataclass(frozen=True, slots=True)
class JobExplanation:
    """The answer for a job: for each partition that was asked for, or for the job where nothing of it can be told."""

    job: str
    runbook: str
    asked_at: datetime
    partitions: Sequence[tuple[Facts, Explanation]]
    trouble: Explanation | None = None
    rendering: RenderingStatus | None = None


@dataclass(frozen=True, slots=True)
class _Told:
    """What Postgres knows of a job."""

    positions: Mapping[TopicPartition, LivePosition]
    said: Mapping[TopicPartition, Said]
    intents: Sequence[Intent]
    parked: Mapping[TopicPartition, int]
    rendering: RenderingStatus | None
    views: Mapping[TopicPartition, View]


async def explain_job(
    app: App, settings: Settings, job: Job, clock: Clock, *, topic: str | None = None, partition: int | None = None
) -> JobExplanation:
    """Returns why the partitions of a job do not move, or that they do; with `partition` only that one.

    A server that cannot be asked is an answer too. Raises Misconfigured for a schema that is not up to date.
    """
    answer = JobExplanation(job.code, job.runbook, clock.now(), [])
    dsn = settings.postgres_dsn.get_secret_value()
    async with AsyncExitStack() as opened:
        try:
            connection = await opened.enter_async_context(connect(dsn))
        except Misconfigured as error:
            return replace(answer, trouble=_unreachable(error))
        await require_schema(dsn)
        try:
            told = await _read(connection, app.service, job)
        except Transient as error:
            return replace(answer, trouble=_unreachable(error))
    logs, trouble = await _ask_kafka(settings.kafka, job)
    every = [_facts(job, told, logs, each, now=clock.now(), trouble=trouble) for each in _partitions(job, told, logs)]
    meant = [facts for facts in every if partition is None or _is_meant(facts.partition, topic, partition)]
    if not meant and partition is not None:
        unknown = TopicPartition(topic or job.topics[0].name, partition)
        meant = [_facts(job, told, logs, unknown, now=clock.now(), trouble=trouble)]
    return replace(answer, rendering=told.rendering, partitions=[(facts, explain(facts)) for facts in meant])


async def _read(connection: Connection, service: str, job: Job) -> _Told:
    with translated_errors("explain"):
        positions = await live_positions(connection, service, job)
        said = await said_of_job(connection, service, job)
        intents = (await standing_intents(connection, service)).get(job.code, [])
        parked = await parked_of_job(connection, service, job)
        rendering = await rendering_status(connection, service, job)
        views = await views_of_job(connection, service, job)
    return _Told(positions, said, intents, parked, rendering, views)


async def _ask_kafka(settings: KafkaSettings, job: Job) -> tuple[dict[TopicPartition, Log], str | None]:
    """What Kafka has now, or why it cannot be asked from here."""
    try:
        async with open_reader(settings) as reader:
            return await read_logs(reader, [topic.name for topic in job.topics]), None
    except (Misconfigured, Transient) as error:
        return {}, f"Kafka cannot be asked from here: {error}"


def _partitions(job: Job, told: _Told, logs: Mapping[TopicPartition, Log]) -> list[TopicPartition]:
    """Of the topics that the job reads today."""
    names = {topic.name for topic in job.topics}
    return sorted(each for each in told.positions.keys() | told.said.keys() | logs.keys() if each.topic in names)


def _is_meant(each: TopicPartition, topic: str | None, partition: int) -> bool:
    return each.partition == partition and topic in (None, each.topic)


def _facts(
    job: Job,
    told: _Told,
    logs: Mapping[TopicPartition, Log],
    partition: TopicPartition,
    *,
    now: datetime,
    trouble: str | None,
) -> Facts:
    position = told.positions.get(partition)
    return Facts(
        job=job.code,
        partition=partition,
        position=position,
        log=logs.get(partition),
        kafka_trouble=trouble,
        said=told.said.get(partition),
        intents=told.intents,
        still_seconds=0.0 if position is None else max(0.0, (now - position.moved_at).total_seconds()),
        parked=told.parked.get(partition, 0),
        view=told.views.get(partition),
        has_workers=any(each.seen_seconds <= UNSEEN_SECONDS for each in told.said.values()),
    )


def _unreachable(error: Exception) -> Explanation:
    return Explanation(
        Cause.POSTGRES_UNREACHABLE,
        f"{error}. Workers that cannot reach it either hold their partitions and go on by themselves when it answers",
    )
