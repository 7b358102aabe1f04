"""Tests of an application: its jobs on the real road from record to settled, with Kafka and the sinks in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from pydantic import SecretStr

from consumers.topics import Topic
from projections.folds.codec import StateCodec
from projections.folds.states import read_state
from projections.memory import MemorySink
from projections.sink import Sink
from tidegate.app import App
from tidegate.assembly import assemble
from tidegate.jobs.clockwork.requests import RunRequest
from tidegate.jobs.declaration import FoldJob, ProjectionJob, SinkJob
from tidegate.jobs.relay import OutboxRelay
from tidegate.migrations.phases import Phase
from tidegate.migrations.schema import exclusively, upgrade
from tidegate.migrations.service import ServiceMigrations
from tidegate.resources import Resources
from tidegate.testing.clock import JobRun, run_now
from tidegate.testing.jobs import NotSettled, RunningJobs
from tidegate.testing.log import StoredRecord
from tidegate.testing.memory import MemoryBroker
from tidegate.testing.sealing import Attributes, route_for, seal
from tidegate.testing.views import DeadLetter, Published, dead_letter, published
from tidegate_kernel.clock import Clock, SystemClock
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.event import Headers, Scope
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool, open_pool
from tidegate_kernel.queries import load_queries
from tidegate_kernel.settings import Settings, read_settings
from tidegate_kernel.source import Outgoing

_QUERIES = load_queries("tidegate.testing")
# Enough that keys are spread and lanes work side by side; more would only lengthen the start.
_PARTITIONS = 2
_SPARE_CONNECTIONS = 4
_THREADS = 4


class Driver:
    """What a test does with a running app. All methods that send return when every job has settled the record.

    `broker` is the Kafka in memory, `db` a pool on the test's Postgres, `deps` what handlers get as `ctx.deps`.
    """

    def __init__(
        self,
        app: App,
        resources: Resources,
        broker: MemoryBroker,
        *,
        jobs: RunningJobs,
        sinks: Mapping[str, Sink],
        deadline: timedelta,
    ) -> None:
        self._app, self._resources, self.broker = app, resources, broker
        self._jobs, self._sinks, self._deadline = jobs, sinks, deadline
        self._relay = OutboxRelay(resources.pool, broker.writer(), resources.clock)
        self._dead_letters: list[DeadLetter] = []

    @property
    def db(self) -> Pool:
        return self._resources.pool

    @property
    def deps(self) -> Any:
        return self._resources.deps

    async def send(
        self,
        topic: str,
        data: Any,
        *,
        key: str | bytes | None = None,
        type: str | None = None,
        id: str | None = None,
        version: int | None = None,
        tenant: str = "",
        brand: str = "",
        source: str = "testing",
        occurred_at: datetime | None = None,
        headers: Mapping[str, str | bytes] | None = None,
    ) -> StoredRecord:
        """Writes `data` as the topic's envelope and format say; returns the record once every job has settled it.

        `type` and `version` are those of the route whose model `data` is an instance of, `id` a fresh one, and
        `occurred_at` now, unless given. Raises NotSettled, and Misconfigured where the type must be told.
        """
        declared = self._topic(topic)
        routes = [route for job in self._app.jobs if declared in job.topics for route in job.events]
        found_type, found_version = route_for(routes, data, type, topic=topic)
        attributes = Attributes(
            id=id or str(uuid4()),
            type=found_type,
            version=version or found_version,
            source=source,
            tenant=tenant,
            brand=brand,
            occurred_at=occurred_at or self._resources.clock.now(),
        )
        value, told = seal(declared, data, attributes)
        more = [(name, text.encode() if isinstance(text, str) else text) for name, text in (headers or {}).items()]
        return await self.send_raw(topic, value, key=key, headers=[*told, *more])

    async def send_raw(
        self, topic: str, value: bytes | None, *, key: str | bytes | None = None, headers: Headers = ()
    ) -> StoredRecord:
        """Writes exactly these bytes; returns the record once every job has settled it. Raises NotSettled."""
        self._topic(topic)
        key = key.encode() if isinstance(key, str) else key
        record = self.broker.append(Outgoing(topic, value, key, headers))
        await self.settled()
        return record

    async def tombstone(self, topic: str, key: str | bytes, *, headers: Headers = ()) -> StoredRecord:
        """Writes a record without a value; returns it once every job has settled it. Raises NotSettled."""
        return await self.send_raw(topic, None, key=key, headers=headers)

    async def redeliver_all(self) -> None:
        """Every record is delivered again from the start of its topic, as after a lost position. Raises NotSettled."""
        await self._jobs.stop()
        self._jobs.raise_if_failed()
        await self.db.execute(_QUERIES["rewind"], self._jobs.numbers, 0)
        self._jobs.start()
        await self.settled()

    async def run_job(
        self,
        job: str,
        *,
        tenant: str = "",
        brand: str = "",
        at: datetime | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> JobRun:
        """A run of a job by the clock, asked for now and worked off; returns how it ended, with its outbox relayed.

        `at`: the occasion that it is made for, the same for a repeat. Raises Misconfigured for a scope or parameters
        that the job does not have; NotSettled.
        """
        now = self._resources.clock.now()
        request = RunRequest(
            job=self._app.clock_job(job),
            scope=Scope(tenant, brand),
            at=at or now,
            parameters=parameters or {},
            reason="testing",
        )
        ended = await run_now(self._app, self._resources, request)
        await self.settled()
        return ended

    async def restart(self) -> None:
        """The jobs end and start anew, as in a deployment. Raises NotSettled."""
        await self._jobs.stop()
        self._jobs.raise_if_failed()
        self._jobs.start()
        await self.settled()

    async def settled(self) -> None:
        """Every job has settled every record, also those that came out of the outbox; every fold has rendered what its
        sink takes. Raises NotSettled."""
        try:
            async with asyncio.timeout(self._deadline.total_seconds()):
                await self._jobs.settled()
                while await self._relay_all():
                    await self._jobs.settled()
                await self._jobs.rendered()
        except TimeoutError:
            behind = "; ".join(self._jobs.behind()) or "the outbox never emptied"
            raise NotSettled(f"not settled within {self._deadline.total_seconds():g} s: {behind}") from None
        # As a worker's refresher does within a second: what was settled can be searched.
        await asyncio.gather(*(_refresh(sink) for sink in self._sinks.values()))
        rows = await self.db.fetch(_QUERIES["dead_letters"], self._app.service)
        self._dead_letters = [dead_letter(row) for row in rows]

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """The dead letters of all jobs, oldest first, as of the last record that was sent."""
        return list(self._dead_letters)

    def sink(self, job: str) -> MemorySink:
        """The sink of a projection or fold. Raises Misconfigured for other jobs, and with `real_sinks`."""
        sink = self._sinks.get(job)
        if not isinstance(sink, MemorySink):
            known = ", ".join(repr(code) for code, each in self._sinks.items() if isinstance(each, MemorySink))
            raise Misconfigured(f"job {job!r} has no sink in memory here; those that have: {known or 'none'}")
        return sink

    async def state(self, job: str, key: str) -> Any:
        """What a fold has made of a key's events: a state of its declared type, None where there is none.

        Raises Misconfigured for other jobs.
        """
        declared = self._app.job(job)
        if not isinstance(declared, FoldJob):
            raise Misconfigured(f"job {job!r} is no fold and keeps no states")
        async with self.db.acquire() as connection:
            stored = await read_state(connection, self._jobs.number(job), key)
        return None if stored is None or stored.state is None else StateCodec(declared.state).decode(stored.state)

    def published(self, topic: str) -> list[Published]:
        """What reached `topic` through the outbox, and what tests sent to it, in order."""
        return [published(record) for record in self.broker.records(topic)]

    async def _relay_all(self) -> int:
        relayed = 0
        while count := await self._relay.relay_once():
            relayed += count
        return relayed

    def _topic(self, name: str) -> Topic:
        topic = self._app.topics.get(name)
        if topic is None:
            known = ", ".join(sorted(self._app.topics))
            raise Misconfigured(f"no job of service {self._app.service!r} reads topic {name!r}; they read: {known}")
        return topic


async def _refresh(sink: Sink) -> None:
    with suppress(Transient):  # down, as the test wants it: what has settled did so without it
        await sink.refresh()


@asynccontextmanager
async def run(
    app: App,
    *,
    db: str | Pool,
    deps: Any = None,
    real_sinks: bool = False,
    clock: Clock | None = None,
    deadline: timedelta = timedelta(seconds=10),
) -> AsyncIterator[Driver]:
    """Yields a driver of `app`: all its jobs run, over Kafka in memory and the real Postgres at `db`.

    The database gets Tidegate's tables and the app's migrations where they are missing. `deps` takes the place of what
    the app's lifespan would yield. Sinks are in memory too unless `real_sinks`. A record that is not settled within
    `deadline` raises NotSettled; so does leaving the block when a job had ended with an error.
    """
    # Without the check against Kafka's rebalance time-out: no group of Kafka's waits here.
    settings = read_settings(postgres_dsn=SecretStr(_dsn(db))).model_copy(update={"drain_timeout": deadline})
    broker = MemoryBroker(clock, creates_topics=True)
    for topic in app.topics:
        broker.create_topic(topic, _PARTITIONS)
    async with AsyncExitStack() as opened:
        await _migrate(app, _dsn(db))
        resources = await opened.enter_async_context(_resources(app, settings, deps, clock or SystemClock()))
        sinks = {
            job.code: await _open_sink(opened, job, settings, is_real=real_sinks)
            for job in app.jobs
            if isinstance(job, ProjectionJob | FoldJob)
        }
        parts = [await assemble(app, job, resources, sink=sinks.get(job.code)) for job in app.jobs]
        jobs = RunningJobs(app, parts, broker, resources)
        jobs.start()
        try:
            yield Driver(app, resources, broker, jobs=jobs, sinks=sinks, deadline=deadline)
        finally:
            await jobs.stop()
        jobs.raise_if_failed()  # not reached where the test itself failed: that error says more


@asynccontextmanager
async def _resources(app: App, settings: Settings, deps: Any, clock: Clock) -> AsyncIterator[Resources]:
    dsn = settings.postgres_dsn.get_secret_value()
    size = len(app.jobs) * settings.lanes + _SPARE_CONNECTIONS
    async with AsyncExitStack() as opened:
        pool = await opened.enter_async_context(open_pool(dsn, size=size, application_name="tidegate.testing"))
        threads = opened.enter_context(ThreadPoolExecutor(_THREADS, thread_name_prefix="handler"))
        if deps is None and app.lifespan is not None:
            deps = await opened.enter_async_context(app.lifespan())
        yield Resources(settings, pool, clock, Metrics(), threads, "testing", deps)


async def _open_sink(opened: AsyncExitStack, job: SinkJob, settings: Settings, *, is_real: bool) -> Sink:
    declaration = job.sink if is_real else MemorySink(job.sink.name, batch_size=job.sink.batch_size)
    sink = await opened.enter_async_context(declaration.open(settings))
    await sink.prepare()
    return sink


async def _migrate(app: App, dsn: str) -> None:
    async with exclusively(dsn):
        await upgrade(dsn, Phase.ALL)
        if app.migrations is not None:
            await ServiceMigrations(app.service, app.migrations).apply(dsn, Phase.ALL)


def _dsn(db: str | Pool) -> str:
    """The database's address; a pool is only asked for its own."""
    if isinstance(db, str):
        return db
    arguments: Sequence[Any] = getattr(db, "_connect_args", ())
    dsn = arguments[0] if arguments else None
    if not isinstance(dsn, str):
        raise Misconfigured("testing.run needs db as a DSN, or as an asyncpg pool that was made from one")
    return dsn
