"""Server processes: started so that they are always known, ended only if they are really ours."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

_LAUNCHER = Path(__file__).with_name("launch.py")
# The clock's correction by NTP moves a process's computed start time by less than this.
_START_TIME_TOLERANCE_SECONDS = 2.0


@dataclass(frozen=True)
class Launch:
    """How to start one server: its command, the address it will listen on, and how it likes to be asked to stop."""

    command: list[str]
    address: str
    directory: str
    user: str = ""  # a system user to become, for servers that refuse to run as root
    stop_signal: int = signal.SIGTERM


@dataclass(frozen=True)
class ProcessRecord(Launch):
    """A started server: a pid alone proves nothing, so its start time and command are kept with it."""

    pid: int = 0
    started_at: float = 0.0

    @classmethod
    def read(cls, file: Path) -> "ProcessRecord | None":
        """None if there is no record, or if the disk kept only a part of it."""
        try:
            return cls(**json.loads(file.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None


def start(launch: Launch, *, record_file: Path, log_file: Path, lock_descriptor: int) -> None:
    """The server's process runs, no child of ours, and its record is on disk; its output goes to the log file."""
    arguments = [str(record_file), str(lock_descriptor), json.dumps(asdict(launch))]
    with log_file.open("ab") as log:
        subprocess.run(
            [sys.executable, "-I", str(_LAUNCHER), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=launch.directory,
            pass_fds=(lock_descriptor,),
            check=True,
        )


def is_running(record: ProcessRecord) -> bool:
    """True only if the very process that the record names runs: same pid, same start, same command."""
    return _process(record) is not None


def end(record: ProcessRecord, *, grace_seconds: float) -> None:
    """The recorded process and its children are gone; a foreign process that got its pid is untouched."""
    process = _process(record)
    if process is None:
        return
    family = [process, *process.children(recursive=True)]
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(record.stop_signal)
    for straggler in _still_alive(family, seconds=grace_seconds):
        with contextlib.suppress(psutil.NoSuchProcess):
            straggler.kill()
    _still_alive(family, seconds=5)


def _still_alive(processes: list[psutil.Process], *, seconds: float) -> list[psutil.Process]:
    """Those that live on after that time. A zombie is dead: without an init process nobody may ever collect it."""
    deadline = time.monotonic() + seconds
    alive = [process for process in processes if _lives(process)]
    while alive and time.monotonic() < deadline:
        time.sleep(0.02)
        alive = [process for process in alive if _lives(process)]
    return alive


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def free_ports(count: int) -> list[int]:
    """Distinct ports of the loopback address that nothing listened on a moment ago."""
    with contextlib.ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def is_free(port: int) -> bool:
    """True if a server could listen on this port of the loopback address now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _process(record: ProcessRecord) -> psutil.Process | None:
    try:
        process = psutil.Process(record.pid)
        same_start = abs(process.create_time() - record.started_at) <= _START_TIME_TOLERANCE_SECONDS
        # Between its record and its exec the server still carries the launcher's command.
        command = process.cmdline()
        is_server = command == record.command or str(_LAUNCHER) in command
    except psutil.Error:
        return None
    return process if same_start and is_server and _lives(process) else None
