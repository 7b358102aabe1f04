"""The stack's folder: one lock, one home per server, the ports it had last, and the environment file."""

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidegate.stack.docker import ContainerRecord
from tidegate.stack.files import write_private
from tidegate.stack.jars import cache_folder
from tidegate.stack.names import ServerName
from tidegate.stack.process import ProcessRecord, free_ports, is_free


@dataclass(frozen=True)
class Home:
    """One server's folder inside the stack's."""

    folder: Path

    @property
    def record_file(self) -> Path:
        return self.folder / "record.json"

    @property
    def log_file(self) -> Path:
        return self.folder / "server.log"

    def record(self) -> ProcessRecord | ContainerRecord | None:
        """What was started here last; whether it still runs is for `process` or `docker` to say."""
        return ContainerRecord.read(self.record_file) or ProcessRecord.read(self.record_file)

    @property
    def borrowed_file(self) -> Path:
        """Is there while only borrowers want this server; the last of them ends it."""
        return self.folder / "borrowed"

    @property
    def container_file(self) -> Path:
        """Is there since before a container was started for this server, until none of its label is left."""
        return self.folder / "container"

    def forget(self) -> None:
        """No record is left; the data stays."""
        self.record_file.unlink(missing_ok=True)

    def ports(self, count: int) -> list[int]:
        """The ports of last time if they are free, so that addresses outlive a restart; else fresh ones, remembered."""
        file = self.folder / "ports.json"
        try:
            ports = [int(port) for port in json.loads(file.read_text())]
        except (FileNotFoundError, ValueError, TypeError):
            ports = []
        if len(ports) != count or not all(is_free(port) for port in ports):
            ports = free_ports(count)
            file.write_text(json.dumps(ports))
        return ports


@dataclass(frozen=True)
class StackFolder:
    """The folder of one stack. It may be moved only while the stack is down."""

    path: Path

    @property
    def env_file(self) -> Path:
        return self.path / "env"

    @property
    def token_file(self) -> Path:
        """The access token that `tidegate migrate` made for this stack's database, for its owner only."""
        return self.path / "token"

    def home(self, name: ServerName) -> Home:
        folder = self.path / name
        folder.mkdir(parents=True, exist_ok=True)
        return Home(folder)

    @contextmanager
    def in_use(self) -> Iterator[Callable[[], bool]]:
        """Others see that this stack is in use. Yields a test: true, and keeping them out, if nobody else uses it."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "users").open("w") as users:
            fcntl.flock(users, fcntl.LOCK_SH)
            yield lambda: _becomes_exclusive(users.fileno())

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Nobody else starts or stops this stack meanwhile; yields the lock's descriptor. Waits for another holder."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock.fileno()

    def write_env(self, addresses: dict[ServerName, str]) -> None:
        """The environment file holds these addresses as `NAME=value` lines, for its owner only; no address, no file."""
        if not addresses:
            self.env_file.unlink(missing_ok=True)
            return
        write_private(self.env_file, environment_lines(addresses))


def _becomes_exclusive(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_env(file: Path) -> dict[ServerName, str]:
    """The addresses that an environment file names; empty if there is none."""
    try:
        lines = dict(line.split("=", 1) for line in file.read_text().splitlines())
    except FileNotFoundError:
        return {}
    return {name: lines[name.setting] for name in ServerName if name.setting in lines}


def environment_lines(addresses: dict[ServerName, str]) -> str:
    """`NAME=value` lines that a shell, `env` files and Docker read alike: no value needs quoting."""
    return "".join(f"{name.setting}={address}\n" for name, address in addresses.items())


def default_folder() -> Path:
    """`.state/stack` in a checkout of Tidegate's repository; elsewhere one per working directory in the user's cache.

    A service that installed the wheel thus gets a stack of its own, and nothing is written beside its code.
    """
    here = Path.cwd()
    if (here / "tidegate" / "stack" / "state.py").is_file():
        return here / ".state" / "stack"
    return cache_folder() / "stack" / here.as_posix().strip("/").replace("/", "-")
