"""Real servers of the suite's own: started, stopped, killed, frozen and started again on the same ports and data."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.kafka import Broker
from tests.chaos.process import Child, Command, free_ports
from tidegate.stack.clickhouse import ClickHouse
from tidegate.stack.elasticsearch import Elasticsearch
from tidegate.stack.kafka import Kafka
from tidegate.stack.postgres import Postgres
from tidegate.stack.progress import Silence
from tidegate.stack.servers import Server

# Two cores that do other things as well have taken a Kafka two minutes.
_START_SECONDS = 240.0
_GRACE_SECONDS = 15.0
_BETWEEN_CHECKS_SECONDS = 0.1


@dataclass
class OwnServer:
    """One server. `address` is its own, past any proxy."""

    name: str
    address: str
    port: int
    child: Child
    check: Callable[[], None]
    stop_signal: signal.Signals = signal.SIGTERM
    healing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the fault that has struck it, until it is well again."""

    async def start(self) -> None:
        """It answers. Raises TimeoutError if it does not in time, AssertionError if it ends instead."""
        await self.child.start()
        async with asyncio.timeout(_START_SECONDS):
            while not await asyncio.to_thread(self._answers):
                assert self.child.is_alive, f"{self.name} ended while it started: {self.child.command.log_file}"
                await asyncio.sleep(_BETWEEN_CHECKS_SECONDS)

    async def stop(self, number: signal.Signals | None = None) -> None:
        """It is gone, by its own stop signal or the given one."""
        await self.child.end(number or self.stop_signal, grace_seconds=_GRACE_SECONDS)

    @contextlib.asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        """Inside, it holds its connections and does nothing."""
        self.child.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.child.signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            self.check()
        except Exception:  # any failure of a probe, of whichever client, means: not now
            return False
        return True


def missing() -> list[str]:
    """What this machine lacks for servers of its own, each with its remedy."""
    servers: tuple[Server, ...] = (Kafka(), Postgres(), Elasticsearch(), ClickHouse())
    return list(dict.fromkeys(line for server in servers for line in server.missing()))


async def from_packages(server: Server, folder: Path) -> OwnServer:
    """The server with a fresh home in `folder`, not yet started."""
    home = folder / server.name
    home.mkdir()
    await asyncio.to_thread(server.prepare, home, Silence())
    ports = free_ports(server.port_count)
    launch = server.launch(home, ports)
    command = Command(launch.command, Path(launch.directory), home / "server.log", user=launch.user)
    return OwnServer(
        str(server.name),
        launch.address,
        ports[0],
        Child(command),
        check=lambda: server.check(launch.address),
        stop_signal=signal.Signals(launch.stop_signal),
    )


def of_broker(broker: Broker) -> OwnServer:
    """A Kafka broker as a server; `port` is the one that a proxy leads to."""
    address = f"127.0.0.1:{broker.direct}"
    return OwnServer(f"kafka-{broker.node}", address, broker.inner, Child(broker.command()), check=broker.check)


@contextlib.asynccontextmanager
async def running(servers: Sequence[OwnServer]) -> AsyncIterator[None]:
    """All of them answer inside, and are gone afterwards."""
    try:
        async with asyncio.TaskGroup() as starts:
            for server in servers:
                starts.create_task(server.start(), name=f"start-{server.name}")
        yield
    finally:
        await asyncio.gather(*(_end(server) for server in servers))


async def _end(server: OwnServer) -> None:
    server.child.signal(signal.SIGCONT)  # one that is still frozen would not hear the rest
    await server.stop()


def wipe(folder: Path) -> None:
    """The servers' data is gone, also what Postgres had to put where its own user may go."""
    away = folder / "postgres" / "elsewhere"
    if away.is_symlink():
        shutil.rmtree(away.resolve(), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
