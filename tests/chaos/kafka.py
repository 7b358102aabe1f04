"""Kafka brokers of the chaos suite: each behind a proxy of its own if wanted, one alone or several as a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.process import Command, free_ports
from tidegate.stack.jars import fetch
from tidegate.stack.kafka import JARS, brokers_in_metadata, cluster_id
from tidegate.stack.progress import Silence

_JVM = [
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    *("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"),
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
]
_COMMON = {
    "auto.create.topics.enable": "false",
    "controller.listener.names": "CONTROLLER",
    # A killed broker may come back only when its old session is over.
    "broker.heartbeat.interval.ms": "1000",
    "broker.session.timeout.ms": "6000",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "inter.broker.listener.name": "DIRECT",
    "listener.security.protocol.map": "DIRECT:PLAINTEXT,VIA:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # By default a quarter of the small heap would belong to the cleaner.
    "log.cleaner.dedupe.buffer.size": "8388608",
    "log.retention.ms": "-1",
    "offsets.topic.num.partitions": "1",
    "process.roles": "broker,controller",
    "transaction.state.log.num.partitions": "1",
}
_REPLICATED = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "default.replication.factor",
)
_LEAST_IN_SYNC = ("min.insync.replicas", "transaction.state.log.min.isr")


@dataclass(frozen=True)
class Broker:
    """One broker that is a controller too. `direct` is its own port; `via` is what workers are told to come by."""

    node: int
    folder: Path
    direct: int
    inner: int
    controller: int
    via: int

    def properties(self, all_of_them: Sequence[Broker]) -> Mapping[str, str]:
        copies = min(3, len(all_of_them))
        return {
            **_COMMON,
            **dict.fromkeys(_REPLICATED, str(copies)),
            **dict.fromkeys(_LEAST_IN_SYNC, str(max(1, copies - 1))),
            "node.id": str(self.node),
            "advertised.listeners": f"DIRECT://127.0.0.1:{self.direct},VIA://127.0.0.1:{self.via}",
            "controller.quorum.voters": ",".join(f"{b.node}@127.0.0.1:{b.controller}" for b in all_of_them),
            "listeners": f"DIRECT://127.0.0.1:{self.direct},VIA://127.0.0.1:{self.inner},"
            f"CONTROLLER://127.0.0.1:{self.controller}",
            "log.dirs": str(self.folder / "data"),
        }

    def command(self) -> Command:
        java = ["java", "-Xmx400m", *_JVM, "-cp", f"{JARS.folder}/*", "kafka.Kafka", str(self._file)]
        return Command(java, self.folder, self.folder / "server.log")

    def check(self) -> None:
        """Raises OSError unless it answers and knows of a broker that is ready."""
        if brokers_in_metadata("127.0.0.1", self.direct) < 1:
            raise ConnectionError("it answers, but no broker is ready")

    @property
    def _file(self) -> Path:
        return self.folder / "server.properties"

    async def format(self, cluster: str, all_of_them: Sequence[Broker]) -> None:
        """Its data folder is ready for a first start."""
        lines = [f"{key}={value}\n" for key, value in sorted(self.properties(all_of_them).items())]
        self._file.write_text("".join(lines))
        java = ["java", *_JVM, "-cp", f"{JARS.folder}/*", "kafka.tools.StorageTool", "format"]
        process = await asyncio.create_subprocess_exec(
            *java, "-t", cluster, "-c", str(self._file), stdout=asyncio.subprocess.DEVNULL
        )
        assert await process.wait() == 0, f"the log folder of broker {self.node} cannot be formatted"


async def formatted_brokers(folder: Path, *, via: Sequence[int]) -> list[Broker]:
    """As many brokers as there are ports `via` of proxies, one cluster together, ready for their first start."""
    await asyncio.to_thread(fetch, JARS, Silence())
    brokers = []
    for node, port in enumerate(via, start=1):
        home = folder / f"kafka-{node}"
        home.mkdir()
        direct, inner, controller = free_ports(3)
        brokers.append(Broker(node, home, direct, inner, controller, port))
    cluster = cluster_id()
    await asyncio.gather(*(broker.format(cluster, brokers) for broker in brokers))
    return brokers
