"""What the stack must know of a server, whichever it is."""

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tidegate.stack.names import ServerName
from tidegate.stack.process import Launch
from tidegate.stack.progress import Reporter


@dataclass(frozen=True)
class Container:
    """How to run one server's official image; `address` has `{port}` where the published port goes."""

    image: str
    port: int
    address: str
    environment: dict[str, str] = field(default_factory=dict)


class Server(Protocol):
    """One server from local packages. Its methods run in a thread, each may block."""

    name: ServerName
    port_count: int
    grace_seconds: float  # how long a clean stop may take before it is killed

    def missing(self) -> list[str]:
        """What this machine lacks, each as one line with its remedy; empty if the server can start."""

    def prepare(self, home: Path, report: Reporter) -> None:
        """All that a start needs lies in the home folder. Idempotent; a killed call may be repeated."""

    def launch(self, home: Path, ports: list[int]) -> Launch:
        """How to start it on these ports; writes configuration files, starts nothing."""

    def container(self, port: int) -> Container:
        """The same server as a container, published on this port."""

    def check(self, address: str) -> None:
        """Returns if the server answers a real request now; raises OSError or the client's error if not."""


def missing_java() -> list[str]:
    """Empty if a JDK 17 or newer is on PATH: the servers need its compiler for a single source file."""
    remedy = "Java 17 or newer with its compiler (Debian: apt-get install openjdk-17-jdk-headless)"
    if shutil.which("java") is None:
        return [remedy]
    said = subprocess.run(["java", "--list-modules"], capture_output=True, text=True, check=False).stdout
    modules = dict(line.partition("@")[::2] for line in said.split())
    major = modules.get("java.base", "0").split(".")[0].split("-")[0]
    return [] if "jdk.compiler" in modules and int(major) >= 17 else [remedy]


def missing_maven() -> list[str]:
    """Empty if Maven is on PATH."""
    return [] if shutil.which("mvn") else ["Maven 3 (Debian: apt-get install maven)"]
