"""The scene of one run: servers, proxies, workers and a producer of its own, and what struck them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psutil

from tests.chaos import servers
from tests.chaos.flight import Flight, Sight
from tests.chaos.kafka import formatted_brokers
from tests.chaos.process import Child, Command, free_ports
from tests.chaos.producer import Producer
from tests.chaos.proxy import Proxy
from tests.chaos.replays import Replays
from tests.chaos.servers import OwnServer
from tests.chaos.story import Story
from tests.chaos.workers import Fleet, Worker, fleet
from tidegate.stack.clickhouse import ClickHouse
from tidegate.stack.elasticsearch import Elasticsearch
from tidegate.stack.postgres import Postgres

ROOT = Path(__file__).resolve().parents[2]
_APP = Path(__file__).with_name("app")
# Shorter than production's, so that a run of minutes sees sessions expire; the order between them is the same.
_TIMES = {
    "TIDEGATE_KAFKA_SESSION_TIMEOUT": "6",
    "TIDEGATE_KAFKA_HEARTBEAT_INTERVAL": "1",
    "TIDEGATE_KAFKA_REBALANCE_TIMEOUT": "10",
    "TIDEGATE_KAFKA_REQUEST_TIMEOUT": "12",
    "TIDEGATE_DRAIN_TIMEOUT": "4",
}
_JOBS = 3
_WORKERS = 2
_PREPARE_SECONDS = 60.0
_PROOF_SECONDS = 20.0


@dataclass(frozen=True)
class Strike:
    """A fault that struck, and what was in flight at that moment."""

    kind: str
    target: str
    at_seconds: float
    flight: Flight


@dataclass
class Scene:
    """What the faults act upon. `looks` bounds how often a worker is frozen to find it with work in its hands."""

    folder: Path
    kafka: OwnServer
    postgres: OwnServer
    elasticsearch: OwnServer
    clickhouse: OwnServer
    proxies: Sequence[Proxy]
    producer: Producer
    fleet: Fleet
    sight: Sight
    replays: Replays
    strikes: list[Strike] = field(default_factory=list)
    looks: int = 100
    between_looks_seconds: float = 0.02
    began: float = 0.0
    _healing: list[asyncio.Task[None]] = field(default_factory=list)

    def note(self, kind: str, target: str, flight: Flight) -> None:
        """The fault is kept, and told as it happens."""
        strike = Strike(kind, target, asyncio.get_running_loop().time() - self.began, flight)
        self.strikes.append(strike)
        print(
            f"{strike.at_seconds:6.1f} s  {kind}: {target} ({flight.unsettled} records unsettled, "
            f"{flight.batches} batches and {flight.requests} requests under way)",
            flush=True,
        )

    def proven(self) -> Counter[str]:
        """How often each kind of fault has struck records in flight."""
        return Counter(strike.kind for strike in self.strikes if strike.flight.is_proven)

    def meanwhile(self, healing: Coroutine[Any, Any, None]) -> None:
        """Something heals while other things are struck."""
        self._healing.append(asyncio.create_task(healing, name="healing"))

    async def healed(self) -> None:
        """All is well again."""
        await asyncio.gather(*self._healing)

    async def give_up_healing(self) -> None:
        """Nothing is done any more, whether or not all is well."""
        for healing in self._healing:
            healing.cancel()
        await asyncio.gather(*self._healing, return_exceptions=True)

    async def in_flight(self) -> Flight:
        """Waits until records are in flight; after a while it returns what there is instead."""
        loop, flight = asyncio.get_running_loop(), Flight(0, 0, 0)
        deadline = loop.time() + _PROOF_SECONDS
        while not flight.is_proven and loop.time() < deadline:
            await asyncio.sleep(self.between_looks_seconds)
            with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                flight = await self.sight.all()
        return flight

    async def look_at(self, worker: Worker) -> Flight:
        """What a worker holds now; nothing, where that cannot be told."""
        assert worker.child is not None
        try:
            return await self.sight.of_worker(worker.owner, worker.child.pid)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, psutil.Error):
            return Flight(0, 0, 0)


@contextlib.asynccontextmanager
async def scene(folder: Path, *, seed: int, rate: float) -> AsyncIterator[Scene]:
    """Everything runs inside, with the producer telling its story; afterwards nothing of it is left running."""
    async with contextlib.AsyncExitStack() as opened:
        stage = await _servers(folder)
        await opened.enter_async_context(servers.running(stage.all))
        proxies = [
            await opened.enter_async_context(Proxy(server.name, via, server.port).listening())
            for server, via in zip(stage.all, stage.via, strict=True)
        ]
        told = environment("app", _by_proxies(stage))
        await prepare(folder, told)
        token = {"TIDEGATE_TOKEN": await first_token(folder, told)}
        replays = Replays(folder, {**environment("mended_app", _by_proxies(stage)), **token}, stage.postgres.address)
        story = Story(seed, datetime.now(UTC))
        producer = Producer(stage.kafka.address, story, folder / "producer.jsonl", rate=rate)
        workers = await opened.enter_async_context(fleet(folder, told, size=_WORKERS))
        sight = Sight(stage.postgres.address, producer, proxies[2:], _JOBS)
        made = Scene(
            folder,
            stage.kafka,
            stage.postgres,
            stage.elasticsearch,
            stage.clickhouse,
            proxies,
            producer,
            workers,
            sight,
            replays,
            began=asyncio.get_running_loop().time(),
        )
        opened.push_async_callback(made.give_up_healing)
        yield made


@dataclass(frozen=True)
class _Stage:
    """The servers in the order of their proxies' ports."""

    kafka: OwnServer
    postgres: OwnServer
    elasticsearch: OwnServer
    clickhouse: OwnServer
    via: Sequence[int]

    @property
    def all(self) -> Sequence[OwnServer]:
        return (self.kafka, self.postgres, self.elasticsearch, self.clickhouse)


async def _servers(folder: Path) -> _Stage:
    via = free_ports(4)
    broker, postgres, elasticsearch, clickhouse = await asyncio.gather(
        formatted_brokers(folder, via=via[:1]),
        servers.from_packages(Postgres(), folder),
        servers.from_packages(Elasticsearch(), folder),
        servers.from_packages(ClickHouse(), folder),
    )
    return _Stage(servers.of_broker(broker[0]), postgres, elasticsearch, clickhouse, via)


def environment(app: str, addresses: Mapping[str, str]) -> Mapping[str, str]:
    """What a worker is told: which attribute of the application's module to run, and where the servers are."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")}
    return {
        **inherited,
        **_TIMES,
        **addresses,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{_APP}",
        "TIDEGATE_APP": f"chaos_app:{app}",
        "TIDEGATE_HTTP_PORT": "0",
    }


def _by_proxies(stage: _Stage) -> Mapping[str, str]:
    """Every server's address as its proxy's."""
    kafka, postgres, elasticsearch, clickhouse = stage.via
    dsn = urlsplit(stage.postgres.address)
    return {
        "TIDEGATE_KAFKA_BOOTSTRAP": f"127.0.0.1:{kafka}",
        "TIDEGATE_POSTGRES_DSN": dsn._replace(netloc=f"{dsn.username}:{dsn.password}@127.0.0.1:{postgres}").geturl(),
        "TIDEGATE_ELASTICSEARCH_URL": f"http://127.0.0.1:{elasticsearch}",
        "TIDEGATE_CLICKHOUSE_URL": f"http://127.0.0.1:{clickhouse}",
    }


async def first_token(folder: Path, told: Mapping[str, str]) -> str:
    """Returns a token that may do everything."""
    arguments = [sys.executable, "-m", "tidegate", "tokens", "create", "chaos", "--bootstrap"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*arguments, cwd=folder, env=told, stdout=pipe, stderr=pipe)
    out, complaint = await asyncio.wait_for(process.communicate(), _PREPARE_SECONDS)
    assert process.returncode == 0, complaint.decode()
    return out.decode().strip()


async def prepare(folder: Path, told: Mapping[str, str]) -> None:
    """Tables, sinks and topics are there, as the command line makes them."""
    for arguments in (["dev-prepare"], ["topics", "create", "--also", "chaos.recorded:2"]):
        command = [sys.executable, "-m", "tidegate", *arguments]
        child = Child(Command(command, folder, folder / "prepare.log", environment=told))
        await child.start()
        assert child.process is not None
        code = await asyncio.wait_for(child.process.wait(), _PREPARE_SECONDS)
        assert code == 0, (folder / "prepare.log").read_text()
