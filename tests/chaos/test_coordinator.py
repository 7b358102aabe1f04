"""A broker that is killed and comes back, with coordinator, leader and metadata, under a job in this process."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from tests.chaos import servers
from tests.chaos.kafka import formatted_brokers
from tests.chaos.process import free_ports
from tests.chaos.proxy import Proxy
from tests.chaos.servers import OwnServer
from tests.integration.live import Service, has_settled, running, until
from tidegate_kernel.kafka import create_topics
from tidegate_kernel.postgres import open_pool
from tidegate_kernel.settings import KafkaSettings

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(servers.missing()), reason="the chaos suite starts servers of its own from packages"),
]

_SESSION = timedelta(seconds=6)
_AWAY_SECONDS = 8.0
# The client waits at least 100 ms between attempts; group, metadata and fetches each make theirs.
_ATTEMPTS_A_SECOND = 60.0
_CPU_SHARE = 0.5


@dataclass(eq=False)
class Door(Proxy):
    """Counts who knocks, also while nobody is at home."""

    knocks: int = 0

    async def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self.knocks += 1
        await super()._accept(reader, client)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[tuple[OwnServer, Door]]:
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it tells of every attempt while the broker is away
    via = free_ports(1)
    server = servers.of_broker((await formatted_brokers(tmp_path, via=via))[0])
    async with servers.running([server]), Door("kafka", via[0], server.port).listening() as door:
        assert isinstance(door, Door)
        yield server, door


@pytest.fixture
async def notes(broker: tuple[OwnServer, Door], database: str) -> AsyncIterator[Service]:
    kafka = KafkaSettings(
        bootstrap=f"127.0.0.1:{broker[1].port}", session_timeout=_SESSION, heartbeat_interval=timedelta(seconds=1)
    )
    await create_topics(kafka, {"notes": 4}, replication=1)
    async with open_pool(database, size=12) as pool:
        await pool.execute("CREATE TABLE effect (id text, n bigint)")
        yield Service(pool, kafka, database, "notes")


async def test_a_broker_that_comes_back_is_followed_without_a_restart(
    notes: Service, broker: tuple[OwnServer, Door]
) -> None:
    """Case 9: the coordinator is lost for longer than the session. The job knocks with pauses, not in a busy loop, and
    consumes again within a session's length of the broker's return; its loop never ends."""
    server, door = broker
    loop = await notes.loop()
    async with running(loop) as task:
        await notes.produce(range(20))
        await until(lambda: has_settled(notes, 20))
        await server.stop(signal.SIGKILL)
        door.knocks, worked, began = 0, time.process_time(), time.monotonic()
        await asyncio.sleep(_AWAY_SECONDS)  # beyond the session
        away = time.monotonic() - began
        attempts, share = door.knocks / away, (time.process_time() - worked) / away
        print(f"away {away:.1f} s: {attempts:.1f} attempts a second, {share:.0%} of a core")
        await server.start()
        back = time.monotonic()
        await notes.produce(range(20, 40))
        await until(lambda: has_settled(notes, 40))
        resumed = time.monotonic() - back
        print(f"back: resumed after {resumed:.1f} s")
        assert not task.done()
    assert await notes.effects() == list(range(40))
    assert 0 < attempts < _ATTEMPTS_A_SECOND
    assert share < _CPU_SHARE
    assert resumed < _SESSION.total_seconds()
