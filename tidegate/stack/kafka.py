"""Apache Kafka, one KRaft process that is broker and controller."""

import base64
import os
import shutil
import socket
import struct
import subprocess
import uuid
from pathlib import Path

from tidegate.stack.jars import JarSet, fetch
from tidegate.stack.names import ServerName
from tidegate.stack.process import Launch
from tidegate.stack.progress import Reporter
from tidegate.stack.servers import Container, missing_java, missing_maven
from tidegate_kernel.errors import Misconfigured

JARS = JarSet(
    "kafka",
    ("org.apache.kafka:kafka_2.13:4.4.0", "org.apache.kafka:kafka-tools:4.4.0", "org.slf4j:slf4j-simple:1.7.36"),
)
_JVM = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]

_BROKER = {
    "auto.create.topics.enable": "false",
    "controller.listener.names": "CONTROLLER",
    "delete.topic.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "BROKER",
    # Examples and tests send records of past decades: retention by time would delete them at once.
    "log.retention.ms": "-1",
    "node.id": "1",
    # One broker holds everything once; one partition keeps start and takeover fast.
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "process.roles": "broker,controller",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
}


def cluster_id() -> str:
    """A new id, as `StorageTool format` takes it: one in 64 begins with a dash, which it takes for an option."""
    while (made := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        continue
    return made


class Kafka:
    """`Server`: one broker that is its own controller (KRaft)."""

    name = ServerName.KAFKA
    port_count = 2
    grace_seconds = 10.0

    def missing(self) -> list[str]:
        return [*missing_java(), *([] if JARS.is_fetched else missing_maven())]

    def prepare(self, home: Path, report: Reporter) -> None:
        fetch(JARS, report)
        if not (home / "data").exists():
            report.say(self.name, "formatting its log folder")
            self._format(home)

    def launch(self, home: Path, ports: list[int]) -> Launch:
        properties = _write_properties(home, home / "data", ports)
        command = ["java", "-Xmx512m", *_JVM, "-cp", f"{JARS.folder}/*", "kafka.Kafka", str(properties)]
        return Launch(command=command, address=f"127.0.0.1:{ports[0]}", directory=str(home))

    def container(self, port: int) -> Container:
        listeners = f"BROKER://:9092,CONTROLLER://:9093,INSIDE://:{port}"
        properties = {
            **_BROKER,
            "listeners": listeners,
            "advertised.listeners": f"BROKER://localhost:9092,INSIDE://127.0.0.1:{port}",
            "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,INSIDE:PLAINTEXT",
            "controller.quorum.voters": "1@localhost:9093",
        }
        environment = {"KAFKA_" + key.upper().replace(".", "_"): value for key, value in properties.items()}
        return Container("apache/kafka:4.4.0", port, "127.0.0.1:{port}", environment)

    def check(self, address: str) -> None:
        host, _, port = address.split(",")[0].rpartition(":")
        if brokers_in_metadata(host, int(port)) < 1:
            raise ConnectionError("Kafka answers but no broker is ready")

    def _format(self, home: Path) -> None:
        """The data folder is complete: it is made under a name of its own, then renamed."""
        for leftover in home.glob("unfinished.*"):
            shutil.rmtree(leftover, ignore_errors=True)
        unfinished = home / f"unfinished.{os.getpid()}"
        unfinished.mkdir()
        properties = _write_properties(unfinished, unfinished / "data", ports=[1, 2])
        cluster = cluster_id()
        command = ["java", *_JVM, "-cp", f"{JARS.folder}/*", "kafka.tools.StorageTool", "format"]
        command += ["-t", cluster, "-c", str(properties)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Misconfigured(f"kafka: its log folder in {home} cannot be formatted: {done.stderr.strip()[-500:]}")
        (unfinished / "data").rename(home / "data")
        shutil.rmtree(unfinished)


def _write_properties(folder: Path, data: Path, ports: list[int]) -> Path:
    broker, controller = ports
    properties = {
        **_BROKER,
        "advertised.listeners": f"BROKER://127.0.0.1:{broker}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"BROKER://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
        "log.dirs": str(data),
    }
    file = folder / "server.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in sorted(properties.items())))
    return file


def brokers_in_metadata(host: str, port: int) -> int:
    """How many brokers a real Metadata (version 12) answer names; one that is still fenced is not among them."""
    client = b"tidegate-stack"
    header = struct.pack(">hhih", 3, 12, 1, len(client)) + client + b"\x00"
    body = b"\x01\x00\x00\x00"  # no topics, do not create any, no authorized operations, no tags
    request = header + body
    with socket.create_connection((host, port), timeout=2) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        size = struct.unpack(">i", _read(connection, 4))[0]
        answer = _read(connection, size)
    # correlation id (4), no tags (1), throttle time (4), then the brokers as a compact array: its length plus one
    return max(0, answer[9] - 1)


def _read(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionError("the broker closed the connection")
        received += part
    return received
