"""A Kafka cluster of three brokers, restarted one after the other while records flow."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.chaos import servers
from tests.chaos.auditor.audit import audit
from tests.chaos.auditor.found import Addresses
from tests.chaos.flight import Flight, Sight
from tests.chaos.kafka import formatted_brokers
from tests.chaos.process import free_ports
from tests.chaos.producer import Producer, producing
from tests.chaos.run import all_settled, fresh_folder
from tests.chaos.scene import environment, prepare
from tests.chaos.servers import OwnServer
from tests.chaos.story import Story
from tests.chaos.workers import Fleet, fleet
from tidegate.stack.kafka import brokers_in_metadata
from tidegate.stack.postgres import Postgres

# Five servers, three of them started twice, on a machine that does other things as well.
pytestmark = [
    pytest.mark.timeout(420),
    pytest.mark.skipif(bool(servers.missing()), reason="the chaos suite starts servers of its own from packages"),
]

_RATE = 150.0
_LOOK_SECONDS = 0.05
_PROOF_SECONDS = 30.0
_WHOLE_SECONDS = 60.0


@dataclass(frozen=True)
class Cluster:
    """Three brokers, a ledger on two workers, and a producer that has not begun."""

    folder: Path
    brokers: Sequence[OwnServer]
    bootstrap: str
    postgres_dsn: str
    producer: Producer
    workers: Fleet
    sight: Sight

    async def in_flight(self) -> Flight:
        """Waits until records are in flight. Raises TimeoutError if that never is."""
        async with asyncio.timeout(_PROOF_SECONDS):
            while not (flight := await self.sight.all()).is_proven:
                await asyncio.sleep(_LOOK_SECONDS)
        return flight

    async def whole(self) -> None:
        """Every broker knows all three. Raises TimeoutError if that takes too long."""
        async with asyncio.timeout(_WHOLE_SECONDS):
            while not await asyncio.to_thread(self._is_whole):
                await asyncio.sleep(_LOOK_SECONDS)

    def _is_whole(self) -> bool:
        ports = [int(broker.address.rpartition(":")[2]) for broker in self.brokers]
        return all(brokers_in_metadata("127.0.0.1", port) == len(self.brokers) for port in ports)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it tells of every attempt while a broker is away
    folder = fresh_folder(tmp_path / "run")
    # Everybody comes by the brokers' own ports: nothing listens where a proxy would.
    async with AsyncExitStack() as opened:
        brokers = [servers.of_broker(each) for each in await formatted_brokers(folder, via=free_ports(3))]
        postgres = await servers.from_packages(Postgres(), folder)
        await opened.enter_async_context(servers.running([*brokers, postgres]))
        bootstrap = ",".join(broker.address for broker in brokers)
        told = environment(
            "ledger_app", {"TIDEGATE_KAFKA_BOOTSTRAP": bootstrap, "TIDEGATE_POSTGRES_DSN": postgres.address}
        )
        await prepare(folder, told)
        workers = await opened.enter_async_context(fleet(folder, told, size=2))
        producer = Producer(bootstrap, Story(11, datetime.now(UTC)), folder / "producer.jsonl", rate=_RATE)
        sight = Sight(postgres.address, producer, sinks=(), jobs=1)
        yield Cluster(folder, brokers, bootstrap, postgres.address, producer, workers, sight)
    servers.wipe(folder)


async def test_rolling_restart_of_a_cluster_loses_and_doubles_nothing(cluster: Cluster) -> None:
    """Case 9: coordinators and leaders move with every broker that goes; each job follows without a restart."""
    async with producing(cluster.producer):
        # The last one is killed instead: leaders move without having been handed over.
        for broker, how in zip(cluster.brokers, (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL), strict=True):
            flight = await cluster.in_flight()
            await broker.stop(how)
            print(f"{broker.name} gone by {how.name}: {flight}")
            await broker.start()
            await cluster.whole()
    unsettled = await all_settled(cluster.bootstrap, cluster.sight)
    await cluster.workers.stop()

    verdict = await audit(Addresses(cluster.bootstrap, cluster.postgres_dsn), cluster.folder / "producer.jsonl")

    assert unsettled == 0
    assert verdict.first(5) == []
    assert [(end.worker, end.code) for end in cluster.workers.ends if end.code != 0] == []
    assert len(cluster.workers.ends) == 2, "a worker was started anew"
    assert verdict.events > 500
