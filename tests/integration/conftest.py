"""Fixtures for tests that drive a job's road on real Postgres."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import uvloop
from pydantic import SecretStr

from projections.sink import Sink
from tests.integration.live import Service
from tests.integration.road import MakeRoad, Road
from tidegate import App, Handler
from tidegate.assembly import assemble
from tidegate.jobs.declaration import Job
from tidegate.resources import Resources
from tidegate.stack.names import StackAddresses
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.kafka import create_topics
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool, open_pool
from tidegate_kernel.settings import KafkaSettings, Settings


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A module with `ON_UVLOOP` runs on the loop that workers run on."""
    module = item.getparent(pytest.Module)
    if module is not None and getattr(module.obj, "ON_UVLOOP", False):
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture
async def pool(database: str) -> AsyncIterator[Pool]:
    """Connections to the test's own database, which has a table `effect` for handlers to write to."""
    async with open_pool(database, size=12) as opened:
        await opened.execute("CREATE TABLE effect (id text, n bigint)")
        yield opened


@pytest.fixture
def make_road(database: str, pool: Pool) -> MakeRoad:
    """Builds roads of one application on one database; each call is another owner of the partition."""

    async def make(job: Job, handlers: Sequence[Handler] = (), *, sink: Sink | None = None, **app: Any) -> Road:
        settings = Settings(postgres_dsn=SecretStr(database))
        application = App(service="tests", owner="tests", jobs=[job], handlers=handlers, **app)
        threads = ThreadPoolExecutor(1)
        resources = Resources(settings, pool, SystemClock(), Metrics(), threads, "tests")
        road = Road(await assemble(application, job, resources, sink=sink), pool)
        await road.take_over()
        return road

    return make


@pytest.fixture
async def service(pool: Pool, database: str, stack: StackAddresses, unique_name: Callable[[str], str]) -> Service:
    kafka = KafkaSettings(
        bootstrap=stack.kafka_bootstrap, session_timeout=timedelta(seconds=6), heartbeat_interval=timedelta(seconds=1)
    )
    topic = unique_name("notes")
    await create_topics(kafka, {topic: 4}, replication=1)
    return Service(pool, kafka, database, topic)
