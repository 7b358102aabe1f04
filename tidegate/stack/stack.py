"""The stack: starts what is not given, knows what it started, ends only that."""

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from errno import EACCES, EDQUOT, ENOSPC, ENOTDIR, EPERM, EROFS
from pathlib import Path
from typing import Any, TypeVar

from tidegate.stack import docker, process
from tidegate.stack.clickhouse import ClickHouse
from tidegate.stack.elasticsearch import Elasticsearch
from tidegate.stack.kafka import Kafka
from tidegate.stack.names import ServerName
from tidegate.stack.postgres import Postgres
from tidegate.stack.process import ProcessRecord
from tidegate.stack.progress import Reporter
from tidegate.stack.servers import Server
from tidegate.stack.state import Home, StackFolder, read_env
from tidegate_kernel.errors import Misconfigured, TidegateError

Outcome = TypeVar("Outcome")

SERVERS: dict[ServerName, Server] = {each.name: each for each in (Kafka(), Postgres(), Elasticsearch(), ClickHouse())}

# A cold page cache on two cores has taken Elasticsearch 15 seconds; a server that needs longer will not come.
_START_DEADLINE_SECONDS = 90.0
# A server that a container host starts beside us may come later than we do.
_GIVEN_DEADLINE_SECONDS = 30.0
_CHECK_INTERVAL_SECONDS = 0.1
# No space, over the quota, read-only, not allowed, no folder.
_NOT_USABLE = frozenset({ENOSPC, EDQUOT, EROFS, EACCES, EPERM, ENOTDIR})
# A port that was free may be taken before the server binds it: then once more, on other ports.
_ATTEMPTS = 3


class ServerFailed(TidegateError):
    """A server was started but does not answer; the message names its log."""


class Source(StrEnum):
    """Where a server comes from."""

    GIVEN = "given"  # its address stands in the environment
    DOCKER = "docker"
    PACKAGES = "packages"
    NONE = "none"


@dataclass(frozen=True)
class ServerStatus:
    """One server now. `pid` and `log` are those of a process of ours; `address` is empty where there is none."""

    name: ServerName
    source: Source
    address: str
    is_answering: bool
    pid: int | None = None
    log: str = ""


class Stack:
    """One stack in one folder. Every method may block for seconds; other processes may do the same meanwhile."""

    def __init__(
        self,
        folder: Path,
        *,
        names: Iterable[ServerName] = tuple(ServerName),
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.folder = StackFolder(folder.resolve())
        self._names = [name for name in ServerName if name in set(names)]
        self._given = {name: environment[name.setting] for name in self._names if environment.get(name.setting)}

    def up(self, report: Reporter) -> dict[ServerName, str]:
        """Every server answers, and the environment file names them. What answers already is left as it is.

        Raises Misconfigured (all missing prerequisites at once), or ServerFailed.
        """
        with _usable(self.folder.path), self.folder.locked() as lock:
            for name in self._names:
                self.folder.home(name).borrowed_file.unlink(missing_ok=True)
            return self._up(self._absent(), lock, report)

    @contextmanager
    def borrowed(self, report: Reporter) -> Iterator[dict[ServerName, str]]:
        """As `up`, inside the block. Servers that only borrowers started are ended by whichever leaves last."""
        with self.folder.in_use() as nobody_else_uses_it:
            try:
                with _usable(self.folder.path), self.folder.locked() as lock:
                    absent = self._absent()
                    for name in absent:
                        self.folder.home(name).borrowed_file.touch()
                    addresses = self._up(absent, lock, report)
                yield addresses
            finally:
                if nobody_else_uses_it():
                    self._return_borrowed()

    def down(self, *, wipe: bool) -> list[ServerName]:
        """Nothing runs that this stack started; with `wipe` its data and logs are gone too. Returns what was ended."""
        with self.folder.locked():
            there = [name for name in self._names if (self.folder.path / name).is_dir()]
            ended = [name for name, was_running in _in_threads(there, self._end).items() if was_running]
            for name in there:
                self.folder.home(name).borrowed_file.unlink(missing_ok=True)
            kept = {name: at for name, at in read_env(self.folder.env_file).items() if name not in self._names}
            self.folder.write_env(kept)
            if wipe:
                for name in there:
                    _wipe(self.folder.path / name)
        return ended

    def status(self) -> list[ServerStatus]:
        """What is known of every server, asked now."""
        return list(_in_threads(self._names, self._status).values())

    def addresses(self) -> dict[ServerName, str]:
        """Addresses of the servers that are given or that this stack started and that still run; asks none of them."""
        found = dict(self._given)
        for name in self._names:
            record = self._running(self.folder.home(name)) if name not in found else None
            if record is not None:
                found[name] = record.address
        return {name: found[name] for name in self._names if name in found}

    def _absent(self) -> list[ServerName]:
        """The servers that are not given and that do not answer."""
        wanted = [name for name in self._names if name not in self._given]
        return [name for name, answers in _in_threads(wanted, self._is_answering).items() if not answers]

    def _up(self, absent: list[ServerName], lock: int, report: Reporter) -> dict[ServerName, str]:
        for name, address in self._given.items():
            if not _wait(SERVERS[name], address, seconds=_GIVEN_DEADLINE_SECONDS):
                raise ServerFailed(f"{name}: nothing answers at the address that {name.setting} gives")
        if absent:
            engine = docker.engine()
            if engine is None:
                self._require(absent)
            _in_threads(absent, lambda name: self._start(name, engine, lock, report))
        addresses = self.addresses()
        known = read_env(self.folder.env_file)
        if known != known | addresses:
            self.folder.write_env(known | addresses)
        return addresses

    def _return_borrowed(self) -> None:
        with self.folder.locked():
            borrowed = [name for name in ServerName if (self.folder.path / name / "borrowed").exists()]
            _in_threads(borrowed, self._end)
            for name in borrowed:
                self.folder.home(name).borrowed_file.unlink(missing_ok=True)

    def _require(self, names: list[ServerName]) -> None:
        missing = dict.fromkeys(line for name in names for line in SERVERS[name].missing())
        if missing:
            raise Misconfigured(
                f"the local stack needs: {'; '.join(missing)}. Or start a Docker engine, or give addresses: "
                f"{', '.join(name.setting for name in names)}"
            )

    def _start(self, name: ServerName, engine: Any, lock: int, report: Reporter) -> None:
        """The server answers and its record says where."""
        server, home = SERVERS[name], self.folder.home(name)
        started_at = time.monotonic()
        if engine is None:
            server.prepare(home.folder, report)
            self._start_process(server, home, lock, report)
        else:
            self._start_container(server, home, report)
        report.say(name, f"answers after {time.monotonic() - started_at:.1f} s")

    def _start_container(self, server: Server, home: Home, report: Reporter) -> None:
        self._end(server.name)
        home.container_file.touch()
        report.say(server.name, "starting its container (the first time its image is fetched)")
        described = server.container(process.free_ports(1)[0])
        record = docker.start(server.name, described, label=str(self.folder.path), record_file=home.record_file)
        if not _wait(server, record.address, is_alive=lambda: docker.is_running(record)):
            raise ServerFailed(f"{server.name}: its container does not answer: docker logs {record.container[:12]}")

    def _start_process(self, server: Server, home: Home, lock: int, report: Reporter) -> None:
        """The server answers. One that a killed start left is waited for, not started twice."""
        left = self._running(home)
        if left is not None and _wait(server, left.address, is_alive=lambda: self._running(home) is not None):
            return
        for _ in range(_ATTEMPTS):
            self._end(server.name)
            report.say(server.name, "starting")
            launch = server.launch(home.folder, home.ports(server.port_count))
            process.start(launch, record_file=home.record_file, log_file=home.log_file, lock_descriptor=lock)
            if _wait(server, launch.address, is_alive=lambda: self._running(home) is not None):
                return
            if self._running(home) is not None:
                break  # it had its time
        self._end(server.name)
        raise ServerFailed(f"{server.name}: does not answer; the end of {home.log_file}:\n{_tail(home.log_file)}")

    def _is_answering(self, name: ServerName) -> bool:
        record = self._running(self.folder.home(name))
        return record is not None and _answers(SERVERS[name], record.address)

    def _running(self, home: Home) -> ProcessRecord | docker.ContainerRecord | None:
        match home.record():
            case ProcessRecord() as record if process.is_running(record):
                return record
            case docker.ContainerRecord() as record if docker.is_running(record):
                return record
            case _:
                return None

    def _end(self, name: ServerName) -> bool:
        """Nothing of this server runs that this stack started; true if something did."""
        home = self.folder.home(name)
        running = self._running(home)
        if isinstance(running, ProcessRecord):
            process.end(running, grace_seconds=SERVERS[name].grace_seconds)
        if home.container_file.exists():
            docker.end(name, label=str(self.folder.path))
            home.container_file.unlink()
        home.forget()
        return running is not None

    def _status(self, name: ServerName) -> ServerStatus:
        if name in self._given:
            return ServerStatus(name, Source.GIVEN, self._given[name], _answers(SERVERS[name], self._given[name]))
        home = self.folder.home(name)
        record = self._running(home)
        if record is None:
            return ServerStatus(name, Source.NONE, "", is_answering=False, log=str(home.log_file))
        answers = _answers(SERVERS[name], record.address)
        if isinstance(record, ProcessRecord):
            return ServerStatus(name, Source.PACKAGES, record.address, answers, pid=record.pid, log=str(home.log_file))
        return ServerStatus(name, Source.DOCKER, record.address, answers)


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """Raises Misconfigured where a disk is full or a file cannot be written: the machine's trouble, not ours."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NOT_USABLE:
            raise
        raise Misconfigured(
            f"{error.filename or folder}: {error.strerror}; make room there or let it be written, "
            "or choose another folder: --dir for the servers' data, XDG_CACHE_HOME for their jars"
        ) from error


def _in_threads(names: list[ServerName], work: Callable[[ServerName], Outcome]) -> dict[ServerName, Outcome]:
    """The work is done for every name, side by side; the first failure is raised after all have ended."""
    with ThreadPoolExecutor(max_workers=max(1, len(names)), thread_name_prefix="stack") as threads:
        futures = {name: threads.submit(work, name) for name in names}
    return {name: future.result() for name, future in futures.items()}


def _wait(
    server: Server,
    address: str,
    *,
    is_alive: Callable[[], bool] = lambda: True,
    seconds: float = _START_DEADLINE_SECONDS,
) -> bool:
    """True once the server answers; False if it ends, or takes longer than the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        if _answers(server, address):
            return True
        if time.monotonic() >= deadline or not is_alive():
            return False
        time.sleep(_CHECK_INTERVAL_SECONDS)


def _answers(server: Server, address: str) -> bool:
    try:
        server.check(address)
    except Exception:  # any failure of a probe, of whichever client, means: not now
        return False
    return True


def _tail(log_file: Path, line_count: int = 15) -> str:
    return "\n".join(log_file.read_text(errors="replace").splitlines()[-line_count:])


def _wipe(home: Path) -> None:
    away = home / "elsewhere"
    if away.is_symlink():
        shutil.rmtree(away.resolve(), ignore_errors=True)
    shutil.rmtree(home, ignore_errors=True)
