"""The stack ends what it started and nothing else, whatever its records say."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tidegate.stack import process
from tidegate.stack.process import Launch, ProcessRecord

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def foreign() -> Iterator[subprocess.Popen[bytes]]:
    """A process that the stack has never heard of."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(61)"]) as started:
        yield started
        started.kill()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[ProcessRecord]:
    record = _start(tmp_path, SLEEP)
    yield record
    process.end(record, grace_seconds=1)


def _start(folder: Path, command: list[str], stop_signal: int = signal.SIGTERM) -> ProcessRecord:
    launch = Launch(command=command, address="127.0.0.1:1", directory=str(folder), stop_signal=stop_signal)
    with (folder / "lock").open("w") as lock:
        process.start(
            launch, record_file=folder / "record.json", log_file=folder / "log", lock_descriptor=lock.fileno()
        )
    record = ProcessRecord.read(folder / "record.json")
    assert record is not None
    return record


def test_started_process_is_known_before_start_returns(started: ProcessRecord) -> None:
    """Between a start and its record lies nothing in which a kill could leave an unknown server."""
    assert process.is_running(started)
    assert psutil.Process(started.pid).cmdline() == SLEEP


def test_started_process_outlives_its_starter_and_is_no_child(started: ProcessRecord) -> None:
    """A server must not end or turn into a zombie with the command that started it."""
    assert psutil.Process(started.pid).ppid() != os.getpid()
    assert os.getsid(started.pid) == started.pid


def test_record_is_for_its_owner_only(tmp_path: Path, started: ProcessRecord) -> None:
    """The address of Postgres carries its password."""
    assert (tmp_path / "record.json").stat().st_mode & 0o777 == 0o600


def test_end_stops_the_recorded_process(started: ProcessRecord) -> None:
    """A server left behind keeps its port and its data's lock."""
    process.end(started, grace_seconds=5)
    assert not process.is_running(started)


def test_end_kills_a_process_that_ignores_the_signal(tmp_path: Path) -> None:
    """A server that hangs in its shutdown must not outlive `down`."""
    ready = tmp_path / "ready"
    code = f"import signal, time; signal.signal(15, signal.SIG_IGN); open({str(ready)!r}, 'w'); time.sleep(60)"
    record = _start(tmp_path, [sys.executable, "-c", code])
    while not ready.exists():
        os.sched_yield()
    process.end(record, grace_seconds=0.1)
    assert not process.is_running(record)


def test_foreign_process_under_a_recorded_pid_is_not_ended(
    foreign: subprocess.Popen[bytes], started: ProcessRecord
) -> None:
    """Pids are used again: after a reboot the record's pid may be anybody's."""
    misleading = replace(started, pid=foreign.pid)
    assert not process.is_running(misleading)
    process.end(misleading, grace_seconds=1)
    assert foreign.poll() is None


def test_same_command_started_at_another_time_is_not_ours(started: ProcessRecord) -> None:
    """Somebody else may run the very same command; only the start time tells."""
    earlier = replace(started, started_at=started.started_at - 60)
    process.end(earlier, grace_seconds=1)
    assert process.is_running(started)


def test_same_start_with_another_command_is_not_ours(foreign: subprocess.Popen[bytes], started: ProcessRecord) -> None:
    """Process ids come round: ending a stranger's process is worse than leaving one of ours."""
    start = psutil.Process(foreign.pid).create_time()
    process.end(replace(started, pid=foreign.pid, started_at=start), grace_seconds=1)
    assert foreign.poll() is None


def test_a_command_that_does_not_exist_is_seen_as_not_running(tmp_path: Path) -> None:
    """The start then says so at once, instead of asking a port until its deadline."""
    record = _start(tmp_path, ["/no/such/server"])
    while process.is_running(record):
        os.sched_yield()
    assert "No such file" in (tmp_path / "log").read_text()


def test_stop_signal_is_the_servers_own(tmp_path: Path) -> None:
    """Postgres waits for its clients on SIGTERM; only SIGINT ends it fast."""
    ready, got = tmp_path / "ready", tmp_path / "got"
    code = (
        "import signal, sys, time, pathlib\n"
        f"signal.signal(signal.SIGINT, lambda *_: (pathlib.Path({str(got)!r}).write_text('INT'), sys.exit()))\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(60)"
    )
    record = _start(tmp_path, [sys.executable, "-c", code], stop_signal=signal.SIGINT)
    while not ready.exists():
        os.sched_yield()
    process.end(record, grace_seconds=5)
    assert got.read_text() == "INT"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_torn_record_counts_as_none(tmp_path: Path, text: str) -> None:
    """A full disk or a power cut may leave half a file: then nothing is known, and nothing is ended."""
    (tmp_path / "record.json").write_text(text)
    assert ProcessRecord.read(tmp_path / "record.json") is None
