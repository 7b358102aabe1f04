"""Newest wins where a backfill and a replay write beside what is live, through the whole road, on the real stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from pydantic import SecretStr

from dlq.runs import Outcome
from projections.elasticsearch import Elasticsearch
from projections.sink import Applied, Sink, SinkDeclaration
from tests.integration.live import until
from tests.integration.road import MakeRoad, SentRecord, record
from tests.integration.test_projections_on_stores import Store, store  # noqa: F401  # the fixture
from tests.integration.test_replaying import Runner
from tidegate import App, CloudEvents, Delete, Event, Json, ProjectionJob, Rejected, Topic, Upsert, on
from tidegate.backfilling import BackfillOptions, BackfillReport, BackfillStart, run_backfill
from tidegate.jobs.publishing import cloud_event
from tidegate.stack.names import StackAddresses
from tidegate.worker import run_worker
from tidegate_kernel.event import JobCode
from tidegate_kernel.kafka import create_topics, open_writer
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import KafkaSettings, Settings

pytestmark = [pytest.mark.servers, pytest.mark.timeout(120)]

OPERATOR = Actor("olga", Role.OPERATOR)
GONE = 6
"""The version that deletes the keys whose names begin with `gone`."""


class Changed(msgspec.Struct):
    key: str
    version: int


def newest(event: Event[Changed]) -> Upsert | Delete:
    key, version = event.data.key, event.data.version
    if key.startswith("gone") and version >= GONE:
        return Delete(key, version)
    return Upsert(key, version, {"key": key, "n": version})


def refusing_first(event: Event[Changed]) -> Upsert | Delete:
    """A release with a defect."""
    if event.data.version == 1:
        raise Rejected("not mended yet")
    return newest(event)


def projection(sink: SinkDeclaration, project: Any = newest, *, topic: str = "orders") -> ProjectionJob:
    return ProjectionJob(
        code="newest",
        topics=[Topic(topic, format=Json(), envelope=CloudEvents())],
        unlisted="skip",
        runbook="-",
        events=[on("changed", Changed, project)],
        sink=sink,
        freshness_sla=timedelta(seconds=5),
    )


@dataclass
class Held:
    """A sink declaration whose writes wait at the store's door until they are let through."""

    declared: SinkDeclaration
    has_come: asyncio.Event = field(default_factory=asyncio.Event)
    is_open: asyncio.Event = field(default_factory=asyncio.Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.declared, name)

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[Sink]:
        async with self.declared.open(settings) as sink:
            through = sink.apply

            async def apply(encoded: Sequence[Any]) -> Applied:
                self.has_come.set()
                await self.is_open.wait()
                return await through(encoded)

            sink.apply = apply  # type: ignore[method-assign]  # this one sink of this test
            yield sink


@dataclass
class Live:
    """A worker of the projection on a topic of its own, and backfills beside it."""

    pool: Pool
    settings: Settings
    topic: str
    store: Store

    def app(self, sink: SinkDeclaration | None = None) -> App:
        job = projection(sink or self.store.declared, topic=self.topic)
        return App(service=self.topic, owner="tests", jobs=[job])

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(run_worker(self.app(), self.settings, ["newest"], stop=stop))
            try:
                yield
            finally:
                stop.set()

    async def produce(self, keys: Sequence[str], versions: Sequence[int]) -> None:
        told = {"source": "tests", "type": "changed"}
        events = [
            cloud_event(self.topic, {"key": k, "version": v}, key=k, attributes={"id": f"{k}.{v}", **told})
            for v in versions
            for k in keys
        ]
        async with open_writer(self.settings.kafka) as writer:
            assert not any(await writer.write(events))

    async def shows(self, rows: Mapping[str, int]) -> None:
        async def is_shown() -> bool:
            return await self.store.rows() == rows

        await until(is_shown)

    async def backfill(self, sink: SinkDeclaration) -> BackfillReport:
        options = BackfillOptions(BackfillStart(is_beginning=True))
        return await run_backfill(
            self.app(sink), self.settings, "newest", options, actor=OPERATOR, stop=asyncio.Event()
        )


@pytest.fixture
async def live(
    pool: Pool,
    database: str,
    stack: StackAddresses,
    unique_name: Callable[[str], str],
    store: Store,  # noqa: F811  # the fixture
) -> Live:
    settings = store.settings.model_copy(
        update={
            "postgres_dsn": SecretStr(database),
            "kafka": KafkaSettings(bootstrap=stack.kafka_bootstrap),
            "http_port": 0,
        }
    )
    made = Live(pool, settings, unique_name("changes"), store)
    dlq = made.app().dlq_topic(JobCode("newest"))
    await create_topics(settings.kafka, {made.topic: 2, dlq: 1}, replication=1)
    async with store.declared.open(settings) as sink:
        await sink.prepare()
    return made


async def test_backfill_beside_live_events_overwrites_nothing(live: Live) -> None:
    """Case 70, G3: the backfill stands before the store with versions 1 to 3 while live events come to 9, or delete;
    let through, it changes nothing that is newer, makes no dead letter, and ends well."""
    keys = [*(f"k{n}" for n in range(10)), *(f"gone{n}" for n in range(3))]
    resting, moving = ["rest0", "rest1"], {f"k{n}": 9 for n in range(10)}
    await live.produce([*keys, *resting], [1, 2, 3])
    held = Held(live.store.declared)

    async with live.worker():
        await live.shows(dict.fromkeys([*keys, *resting], 3))
        backfill = asyncio.create_task(live.backfill(held))
        await asyncio.wait_for(held.has_come.wait(), 30)
        await live.produce(keys, [4, 5, 6, 7, 8, 9])
        await live.shows({**moving, "rest0": 3, "rest1": 3})
        held.is_open.set()
        report = await backfill

        assert await live.store.rows() == {**moving, "rest0": 3, "rest1": 3}
        await live.produce(["k0"], [10])
        await live.shows({**moving, "k0": 10, "rest0": 3, "rest1": 3})

    assert (report.is_done, report.progress, report.tally.dead_letters) == (True, (45, 45), 0)
    # ClickHouse takes older rows too, and shows the newest.
    is_told = isinstance(live.store.declared, Elasticsearch)
    assert report.tally.stale == (3 * len(keys) + 2 * len(resting) if is_told else 0)
    assert await live.pool.fetchval("SELECT count(*) FROM tidegate.dead_letter") == 0


@dataclass
class StoreRunner(Runner):
    """`tidegate dlq replay` of a process that reaches the stores."""

    store: Store | None = None

    @property
    def _settings(self) -> Settings:
        assert self.store is not None
        return self.store.settings.model_copy(update={"postgres_dsn": SecretStr(self.dsn)})


def change(offset: int, key: str, version: int) -> SentRecord:
    return record(offset, msgspec.json.encode(Changed(key, version)), type="changed", key=key.encode())


async def test_replay_of_an_older_version_overwrites_nothing(
    store: Store,  # noqa: F811  # the fixture
    make_road: MakeRoad,
    pool: Pool,
    database: str,
) -> None:
    """Case 60, G3: version 1 of each failed; by the time it is mended and replayed one key has a newer version, one is
    deleted, and one has nothing else."""
    broken, mended = projection(store.declared, refusing_first), projection(store.declared)
    async with store.declared.open(store.settings) as sink:
        await sink.prepare()
        road = await make_road(broken, sink=sink)
        await road.handle([change(0, "k", 1), change(1, "gone", 1), change(2, "only", 1), change(3, "k", 2)])
        await road.handle([change(4, "gone", GONE)])
    assert await store.rows() == {"k": 2}
    assert [letter["reason"] for letter in await road.dead_letters()] == ["rejected"] * 3

    app = App(service="tests", owner="tests", jobs=[mended])
    report = await StoreRunner(pool, database, mended, app, store=store).replay()

    assert await store.rows() == {"k": 2, "only": 1}
    assert report.run.is_clean
    is_told = isinstance(store.declared, Elasticsearch)
    overtaken = {Outcome.SUPERSEDED: 2, Outcome.RESOLVED: 1} if is_told else {Outcome.RESOLVED: 3}
    assert dict(report.run.outcomes) == overtaken
