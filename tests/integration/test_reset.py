"""`projections reset`: a sink that is not as declared is made anew and filled again; refused unless that is safe."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition as ClientPartition
from elasticsearch import NotFoundError
from pydantic import SecretStr

from consumers.backfill import Progress
from projections.clickhouse import ClickHouse
from projections.clickhouse_connection import Connection
from projections.elasticsearch import Elasticsearch
from projections.elasticsearch_sink import connect as connect_elasticsearch
from projections.visibility import Point, Visibility
from tidegate import App, CloudEvents, Event, Json, ProjectionJob, Topic, Upsert, on
from tidegate.backfilling import BackfillOptions, BackfillReport, BackfillStart, run_backfill
from tidegate.console import resetting
from tidegate.console.projections import SinkState, sink_statuses
from tidegate.console.resetting import ResetPlan, plan_reset, reset_projection
from tidegate.jobs.publishing import cloud_event
from tidegate.stack.names import StackAddresses
from tidegate.worker import run_worker
from tidegate_kernel.errors import Denied, Misconfigured, NeedsRebuild, Transient
from tidegate_kernel.event import JobCode, JobId, TopicPartition
from tidegate_kernel.kafka import create_topics, open_writer
from tidegate_kernel.lease import Lease
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import KafkaSettings, Settings

pytestmark = [pytest.mark.servers, pytest.mark.timeout(120)]

ADMIN, OPERATOR = Actor("ada", Role.ADMIN), Actor("olga", Role.OPERATOR)


class Noted(msgspec.Struct):
    n: int


def document(event: Event[Noted]) -> Upsert:
    return Upsert(f"d{event.data.n}", version=1, document={"id": f"d{event.data.n}", "n": event.data.n})


@dataclass
class Service:
    """A projection of one topic; `declared` may be changed as a release changes it."""

    pool: Pool
    settings: Settings
    topic: str
    declared: Elasticsearch | ClickHouse
    before: list[Elasticsearch | ClickHouse] = field(default_factory=list)

    def app(self) -> App:
        shown = ProjectionJob(
            code="shown",
            topics=[Topic(self.topic, format=Json(), envelope=CloudEvents())],
            unlisted="skip",
            runbook="-",
            events=[on("noted", Noted, document)],
            sink=self.declared,
            freshness_sla=timedelta(seconds=5),
            batch_size=50,
        )
        return App(service=self.topic, owner="tests", jobs=[shown])

    def release(self) -> None:
        """From now on `n` is a text to readers."""
        if isinstance(self.declared, Elasticsearch):
            fields = {**self.declared.mappings["properties"], "n": {"type": "keyword"}}
            self.declared = replace(self.declared, mappings={"properties": fields})
        else:
            self.declared = replace(self.declared, columns={**self.declared.columns, "n": "Int32"})

    async def produce(self, count: int) -> None:
        told = {"source": "tests", "type": "noted"}
        events = [
            cloud_event(self.topic, {"n": n}, key=str(n), attributes={"id": f"e{n}", **told}) for n in range(count)
        ]
        async with open_writer(self.settings.kafka) as writer:
            assert not any(await writer.write(events))

    async def fill(self, *, stop: asyncio.Event | None = None, **options: Any) -> BackfillReport:
        chosen = BackfillOptions(BackfillStart(is_beginning=True), **options)
        return await run_backfill(self.app(), self.settings, "shown", chosen, actor=ADMIN, stop=stop or asyncio.Event())

    async def pause(self) -> None:
        await self.pool.execute(
            "INSERT INTO tidegate.intent (kind, job, reason, actor) SELECT 'pause', id, 'x', 'x' FROM tidegate.job"
        )

    async def plan(self) -> ResetPlan:
        app = self.app()
        return await plan_reset(app, self.settings, app.job("shown"))

    async def reset(
        self, actor: Actor = ADMIN, *, reason: str = "new mapping", stop: asyncio.Event | None = None, **options: Any
    ) -> BackfillReport:
        chosen = BackfillOptions(BackfillStart(is_beginning=True), **options)
        report = await reset_projection(
            self.app(),
            self.settings,
            await self.plan(),
            chosen,
            actor=actor,
            reason=reason,
            stop=stop or asyncio.Event(),
        )
        assert report.backfill is not None
        return report.backfill

    async def shown(self) -> set[str]:
        """What a reader finds."""
        if isinstance(self.declared, Elasticsearch):
            async with connect_elasticsearch(self.settings) as client:
                with contextlib.suppress(NotFoundError):
                    await client.indices.refresh(index=self.declared.physical)
                    found = await client.search(index=self.declared.name, size=1000)
                    return {hit["_source"]["id"] for hit in found["hits"]["hits"]}
                return set()
        async with _clickhouse(self.settings) as client:
            return {row[0] for row in (await client.query(f"SELECT id FROM {self.declared.name}")).result_rows}

    async def audit(self) -> list[tuple[str, str]]:
        rows = await self.pool.fetch("SELECT actor, outcome FROM tidegate.audit WHERE action = 'projection:reset'")
        return [(row["actor"], row["outcome"]) for row in rows]


@contextlib.asynccontextmanager
async def _clickhouse(settings: Settings) -> AsyncIterator[Any]:
    connection = Connection(settings)
    try:
        yield await connection.client()
    finally:
        await connection.close()


@pytest.fixture(params=["elasticsearch", "clickhouse"])
async def service(
    request: pytest.FixtureRequest,
    pool: Pool,
    database: str,
    stack: StackAddresses,
    unique_name: Callable[[str], str],
) -> AsyncIterator[Service]:
    settings = Settings(
        postgres_dsn=SecretStr(database),
        elasticsearch_url=stack.elasticsearch_url,
        clickhouse_url=stack.clickhouse_url,
        kafka=KafkaSettings(bootstrap=stack.kafka_bootstrap),
        http_port=0,
    )
    # The rows of a parametrized test share the beginning of their names.
    topic, name = map(unique_name, ("notes", "shown"))
    await create_topics(settings.kafka, {topic: 2}, replication=1)
    fields: Mapping[str, Any] = {"id": {"type": "keyword"}, "n": {"type": "long"}}
    declared: Elasticsearch | ClickHouse = Elasticsearch(
        index=name, mappings={"properties": fields}, settings={"number_of_replicas": 0}
    )
    if request.param == "clickhouse":
        columns = {"id": "String", "n": "Int64"}
        declared = ClickHouse(table=name.replace("-", "_"), columns=columns, order_by=("id",))
    made = Service(pool, settings, topic, declared)
    async with declared.open(settings) as sink:
        await sink.prepare()
    await made.produce(200)
    await made.fill()
    yield made
    await _drop(declared, settings)


async def _drop(declared: Elasticsearch | ClickHouse, settings: Settings) -> None:
    if isinstance(declared, Elasticsearch):
        async with connect_elasticsearch(settings) as client:
            await client.indices.delete(index=declared.physical, ignore_unavailable=True)
            with contextlib.suppress(NotFoundError):
                await client.indices.delete_index_template(name=f"tidegate-{declared.physical}")
        return
    async with _clickhouse(settings) as clickhouse:
        await clickhouse.command(f"DROP VIEW IF EXISTS {declared.name}")
        await clickhouse.command(f"DROP TABLE IF EXISTS {declared.versioned_table.physical}")


ALL = {f"d{n}" for n in range(200)}


async def test_changed_schema_is_refused_at_start_and_reset_fills_the_declared_one(service: Service) -> None:
    """From `needs rebuild` to a sink that is as declared, with every document, and the job may start."""
    service.release()
    async with service.declared.open(service.settings) as sink:
        with pytest.raises(NeedsRebuild, match="needs rebuild"):
            await sink.check()
    (status,) = await sink_statuses(service.app(), service.settings)
    assert (status.state, len(status.details)) == (SinkState.NEEDS_REBUILD, 1)
    await service.pause()

    report = await service.reset()

    assert (report.is_done, report.tally.applied) == (True, 200)
    assert await service.shown() == ALL
    (status,) = await sink_statuses(service.app(), service.settings)
    assert status.state is SinkState.AS_DECLARED
    assert await service.audit() == [("ada", "done")]


async def test_worker_of_the_changed_release_does_not_start(service: Service) -> None:
    """It says what differs and touches nothing, where a worker that began would write half of its documents."""
    service.release()
    await create_topics(service.settings.kafka, {service.app().dlq_topic(JobCode("shown")): 1}, replication=1)

    with pytest.raises(NeedsRebuild, match="needs rebuild"):
        async with asyncio.timeout(60):
            await run_worker(service.app(), service.settings, ["shown"], stop=asyncio.Event())

    assert await service.shown() == ALL


async def test_plan_says_what_would_be_gone_and_changes_nothing(service: Service) -> None:
    """Whoever types it without --yes must not find an empty index."""
    plan = await service.plan()

    assert (plan.documents, plan.to_read, plan.gaps) == (200, 200, {})
    assert plan.obstacles == ["the job is not paused; run 'tidegate pause shown --reason …' first"]
    assert await service.shown() == ALL


@pytest.mark.parametrize("actor,reason", [(OPERATOR, "why"), (ADMIN, ""), (Actor("nobody"), "why")])
async def test_reset_needs_an_admin_and_a_reason(service: Service, actor: Actor, reason: str) -> None:
    """It empties what readers see: refused and audited, with every document still there."""
    await service.pause()

    with pytest.raises(Denied):
        await service.reset(actor, reason=reason)

    assert await service.shown() == ALL
    assert await service.audit() == [(actor.name, "denied")]


async def test_reset_is_refused_unless_the_job_is_paused(service: Service) -> None:
    """A worker of the old release would write its documents between the new ones, and dead-letter what does not fit."""
    with pytest.raises(Denied, match="not paused; run 'tidegate pause shown"):
        await service.reset()

    assert await service.shown() == ALL


async def test_reset_waits_for_owners_that_have_not_come_to_rest(service: Service) -> None:
    """A pause takes a second to be heard, and ends no batch in hand."""
    await service.pause()
    await service.pool.execute(
        """
        INSERT INTO tidegate.presence (job, topic, partition, owner, epoch, state, since, seen_at)
        SELECT id, $1, 0, 'host:1', 1, 'moving', now(), now() FROM tidegate.job
        """,
        service.topic,
    )
    with pytest.raises(Denied, match="is not at rest yet"):
        await service.reset()
    assert await service.shown() == ALL

    await service.pool.execute("UPDATE tidegate.presence SET state = 'paused'")
    await service.reset()

    assert await service.shown() == ALL


async def test_backfill_at_work_is_not_overtaken(service: Service) -> None:
    """It would go on behind the middle of what is empty now."""
    await service.pause()
    await service.pool.execute(
        """
        INSERT INTO tidegate.backfill (job, source, holder, lease_until)
        SELECT id, 'beginning', 'host:1', now() + interval '1 minute' FROM tidegate.job
        """
    )

    with pytest.raises(Denied, match=r"backfill \d+ of 'shown' is at work"):
        await service.reset()

    assert await service.shown() == ALL


async def test_log_without_its_beginning_needs_to_be_accepted(service: Service) -> None:
    """Retention took events that still have documents: those would be gone for good. Nothing is dropped before that."""
    await service.pause()
    admin = AIOKafkaAdminClient(bootstrap_servers=service.settings.kafka.bootstrap)
    await admin.start()
    try:
        await admin.delete_records({ClientPartition(service.topic, 0): RecordsToDelete(10)})
    finally:
        await admin.close()
    with pytest.raises(Misconfigured, match=r":0 lacks its first 10 offsets.*--accept-gap"):
        await service.reset()
    assert await service.shown() == ALL

    report = await service.reset(accept_gap=True)

    assert report.is_done
    assert len(await service.shown()) == 190


async def test_killed_between_dropping_and_filling_it_can_be_run_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers see nothing then; the same command brings all of it back."""
    service.release()
    await service.pause()

    async def killed(*_: Any, **__: Any) -> None:
        raise Transient("the process died here")

    with monkeypatch.context() as patched:
        patched.setattr(resetting, "run_backfill", killed)
        with pytest.raises(Transient):
            await service.reset()
    assert await service.shown() == set()

    await service.reset()

    assert await service.shown() == ALL


@pytest.mark.parametrize("service", ["clickhouse"], indirect=True)
async def test_a_table_that_views_count_is_not_reset(service: Service) -> None:
    """Their sums would stay, and count everything once more; it is said before anything is audited or dropped."""
    assert isinstance(service.declared, ClickHouse)
    service.declared = replace(service.declared, stable_batches=True)

    with pytest.raises(Misconfigured, match="materialized views"):
        await service.plan()


async def test_nothing_is_visible_from_a_reset_until_it_is_filled_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G11: whoever waits for its own event must not be sent to an empty index, also where the filling broke off."""
    place, settled = TopicPartition(service.topic, 0), Point(UUID(int=7), 120)
    number = JobId(await service.pool.fetchval("SELECT id FROM tidegate.job"))
    await service.pool.execute(
        "INSERT INTO tidegate.position (job, topic, partition, next_offset, topic_id) VALUES ($1, $2, 0, $3, $4)",
        number,
        service.topic,
        settled.next_offset,
        settled.topic_id,
    )
    visibility = Visibility(service.pool, number)
    lease = Lease(service.pool, "refresh", holder="worker", ttl=timedelta(seconds=60))
    token = await lease.take()
    assert token is not None
    await visibility.show(lease.name, token, {place: settled})
    await service.pause()

    async def killed(*_: Any, **__: Any) -> None:
        raise Transient("the process died here")

    with monkeypatch.context() as patched:
        patched.setattr(resetting, "run_backfill", killed)
        with pytest.raises(Transient):
            await service.reset()

    assert (await visibility.settled()).points[place].next_offset == 0
    # As a refresher does it that read the positions before the reset.
    await visibility.show(lease.name, token, {place: settled})
    shown = (await visibility.shown())[place]
    assert (shown.point.next_offset, shown.rewound_from) == (0, 120)

    await service.fill()

    assert (await visibility.settled()).points[place] == settled
    await visibility.show(lease.name, token, {place: settled})
    again = (await visibility.shown())[place]
    assert (again.point, again.rewound_from) == (settled, None)


async def test_stopped_in_the_middle_of_filling_it_begins_again(service: Service) -> None:
    """What was filled is dropped again: the second run reads all of it, not the rest of the first."""
    await service.pause()
    stop = asyncio.Event()

    def stop_soon(progress: Progress) -> None:
        if progress.done:
            stop.set()

    await service.reset(stop=stop, on_progress=stop_soon)

    again = await service.reset()

    assert (again.is_done, again.was_resumed, again.tally.applied) == (True, False, 200)
    assert await service.shown() == ALL
