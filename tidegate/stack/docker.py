"""The same servers as containers, where a Docker engine answers."""

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidegate.stack.files import write_private
from tidegate.stack.names import ServerName
from tidegate.stack.process import free_ports
from tidegate.stack.servers import Container


@dataclass(frozen=True)
class ContainerRecord:
    """A started container: the engine's id for it is never given to another."""

    container: str
    address: str

    @classmethod
    def read(cls, file: Path) -> "ContainerRecord | None":
        """None if there is no record, or if the disk kept only a part of it."""
        try:
            return cls(**json.loads(file.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None


def engine() -> Any | None:
    """The Docker engine's client if an engine answers within two seconds, else None."""
    if not _something_listens():
        return None
    try:
        import docker
        from docker.errors import DockerException
    except ImportError:
        return None
    try:
        client = docker.from_env(timeout=2)
        client.ping()
    except (DockerException, OSError):
        return None
    return client


def _something_listens() -> bool:
    """False if the engine's local socket takes no connection; whether it is an engine is for the client to find out."""
    scheme, _, path = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").partition("://")
    if scheme != "unix":
        return True
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(2)
        return probe.connect_ex(path) == 0


def start(name: ServerName, container: Container, *, label: str, record_file: Path) -> ContainerRecord:
    """The container runs and its record is on disk; its label names the stack's folder: a killed start can be found."""
    from testcontainers.core.config import testcontainers_config
    from testcontainers.core.container import DockerContainer

    # The reaper would end the container together with this command; the stack outlives it on purpose.
    testcontainers_config.ryuk_disabled = True
    (published,) = free_ports(1) if container.port < 10_000 else (container.port,)
    described = DockerContainer(container.image).with_kwargs(
        labels={"tidegate.stack": label, "tidegate.server": name},
        ports={f"{container.port}/tcp": ("127.0.0.1", published)},
    )
    for key, value in container.environment.items():
        described = described.with_env(key, value)
    started = described.start().get_wrapped_container()
    record = ContainerRecord(started.id, container.address.format(port=published))
    write_private(record_file, json.dumps(asdict(record)))
    return record


def is_running(record: ContainerRecord) -> bool:
    """True if the engine answers and runs this very container."""
    client = engine()
    if client is None:
        return False
    return any(each.id == record.container for each in client.containers.list())


def end(name: ServerName, *, label: str) -> None:
    """No container of this server of this stack is left, also none whose record was never written."""
    client = engine()
    if client is None:
        return
    ours = {"label": [f"tidegate.stack={label}", f"tidegate.server={name}"]}
    for container in client.containers.list(all=True, filters=ours):
        container.remove(force=True, v=True)
