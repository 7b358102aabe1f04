"""The stack's decisions, with servers that are plain Python processes."""

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import pytest

from tidegate.stack import docker, process
from tidegate.stack import stack as stack_module
from tidegate.stack.names import ServerName
from tidegate.stack.process import Launch, ProcessRecord, is_running
from tidegate.stack.progress import Reporter, Silence
from tidegate.stack.servers import Container
from tidegate.stack.stack import ServerFailed, Source, Stack
from tidegate.stack.state import read_env
from tidegate_kernel.errors import Misconfigured

KAFKA, POSTGRES = ServerName.KAFKA, ServerName.POSTGRES


@dataclass
class WebServer:
    """Python's own web server in the place of a real one."""

    name: ServerName
    port_count: int = 1
    grace_seconds: float = 2.0
    lacks: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=lambda: [sys.executable, "-m", "http.server", "--bind", "127.0.0.1"])
    launches: int = 0

    def missing(self) -> list[str]:
        return self.lacks

    def prepare(self, home: Path, report: Reporter) -> None:
        (home / "prepared").touch()

    def launch(self, home: Path, ports: list[int]) -> Launch:
        self.launches += 1
        return Launch([*self.command, str(ports[0])], f"http://127.0.0.1:{ports[0]}", str(home))

    def container(self, port: int) -> Container:
        raise NotImplementedError

    def check(self, address: str) -> None:
        with urlopen(address, timeout=1):
            pass


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> dict[ServerName, WebServer]:
    fakes = {KAFKA: WebServer(KAFKA), POSTGRES: WebServer(POSTGRES)}
    monkeypatch.setattr(stack_module, "SERVERS", fakes)
    monkeypatch.setattr(docker, "engine", lambda: None)
    return fakes


@pytest.fixture
def stack(tmp_path: Path, servers: dict[ServerName, WebServer]) -> Iterator[Stack]:
    made = _stack(tmp_path)
    yield made
    made.down(wipe=True)


def _stack(folder: Path, **environment: str) -> Stack:
    return Stack(folder, names=[KAFKA, POSTGRES], environment=environment)


def _records(stack: Stack) -> list[ProcessRecord]:
    found = [ProcessRecord.read(stack.folder.home(name).record_file) for name in (KAFKA, POSTGRES)]
    return [record for record in found if record is not None]


def test_up_starts_all_and_names_them_in_the_env_file(stack: Stack) -> None:
    addresses = stack.up(Silence())
    assert read_env(stack.folder.env_file) == addresses
    assert [each.source for each in stack.status()] == [Source.PACKAGES, Source.PACKAGES]
    assert all(each.is_answering for each in stack.status())


def test_second_up_changes_nothing(stack: Stack, servers: dict[ServerName, WebServer]) -> None:
    first = stack.up(Silence())
    assert stack.up(Silence()) == first
    assert servers[KAFKA].launches == 1


def test_two_ups_at_once_start_one_set(stack: Stack, servers: dict[ServerName, WebServer], tmp_path: Path) -> None:
    """`make demo` in one terminal and `make test` in another must not fight."""
    answers: list[dict[ServerName, str]] = []
    threads = [threading.Thread(target=lambda: answers.append(_stack(tmp_path).up(Silence()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers[0] == answers[1]
    assert servers[KAFKA].launches == 1


def test_down_ends_all_keeps_data_and_removes_the_env_file(stack: Stack) -> None:
    stack.up(Silence())
    records = _records(stack)
    assert stack.down(wipe=False) == [KAFKA, POSTGRES]
    assert not any(is_running(record) for record in records)
    assert not stack.folder.env_file.exists()
    assert (stack.folder.path / KAFKA / "prepared").exists()


def test_wipe_removes_data(stack: Stack) -> None:
    stack.up(Silence())
    stack.down(wipe=True)
    assert not (stack.folder.path / KAFKA).exists()


def test_down_of_some_leaves_the_others(stack: Stack, tmp_path: Path) -> None:
    addresses = stack.up(Silence())
    Stack(tmp_path, names=[KAFKA], environment={}).down(wipe=False)
    assert read_env(stack.folder.env_file) == {POSTGRES: addresses[POSTGRES]}
    assert stack.addresses() == {POSTGRES: addresses[POSTGRES]}


def test_given_addresses_are_used_and_not_started(
    stack: Stack, servers: dict[ServerName, WebServer], tmp_path: Path
) -> None:
    """A platform team's own servers take precedence, and are never ended by us."""
    given = stack.up(Silence())[KAFKA]
    other = _stack(tmp_path / "other", TIDEGATE_KAFKA_BOOTSTRAP=given)
    try:
        assert other.up(Silence())[KAFKA] == given
        assert servers[KAFKA].launches == 1
        assert other.status()[0].source is Source.GIVEN
    finally:
        other.down(wipe=True)
    assert stack.status()[0].is_answering


def test_given_address_that_does_not_answer_is_named(
    tmp_path: Path, servers: dict[ServerName, WebServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_module, "_GIVEN_DEADLINE_SECONDS", 0.0)
    stack = _stack(tmp_path, TIDEGATE_KAFKA_BOOTSTRAP="http://127.0.0.1:9", TIDEGATE_POSTGRES_DSN="http://127.0.0.1:9")
    with pytest.raises(ServerFailed, match=r"kafka: .* TIDEGATE_KAFKA_BOOTSTRAP"):
        stack.up(Silence())


def test_all_that_is_missing_is_named_at_once(stack: Stack, servers: dict[ServerName, WebServer]) -> None:
    """One failed try must tell everything: nobody wants to learn of Maven after having installed Java."""
    servers[KAFKA].lacks = ["Java", "Maven"]
    servers[POSTGRES].lacks = ["Postgres"]
    with pytest.raises(Misconfigured, match=r"Java; Maven; Postgres.*TIDEGATE_KAFKA_BOOTSTRAP, TIDEGATE_POSTGRES_DSN"):
        stack.up(Silence())
    assert servers[KAFKA].launches == 0


def test_server_that_ends_at_once_is_tried_on_other_ports_then_named_with_its_log(
    stack: Stack, servers: dict[ServerName, WebServer]
) -> None:
    servers[KAFKA].command = [sys.executable, "-c", "raise SystemExit('no luck today')"]
    with pytest.raises(ServerFailed, match=r"(?s)kafka: does not answer.*no luck today"):
        stack.up(Silence())
    assert servers[KAFKA].launches == 3


def test_server_left_by_a_killed_start_is_taken_over(stack: Stack, servers: dict[ServerName, WebServer]) -> None:
    """A start killed after the launch leaves a server that does not answer yet; it is waited for, not started twice."""
    code = (
        "import sys, time, http.server as h; time.sleep(0.7); h.test(h.SimpleHTTPRequestHandler, port=int(sys.argv[1]))"
    )
    servers[KAFKA].command = [sys.executable, "-c", code]
    home = stack.folder.home(KAFKA)
    launch = servers[KAFKA].launch(home.folder, home.ports(1))
    with stack.folder.locked() as lock:
        process.start(launch, record_file=home.record_file, log_file=home.log_file, lock_descriptor=lock)
    left = ProcessRecord.read(home.record_file)
    stack.up(Silence())
    assert ProcessRecord.read(home.record_file) == left


def test_borrowed_servers_end_with_the_last_borrower(stack: Stack, tmp_path: Path) -> None:
    with stack.borrowed(Silence()):
        with _stack(tmp_path).borrowed(Silence()):
            pass
        assert all(each.is_answering for each in stack.status())
        records = _records(stack)
    assert records
    assert not any(is_running(record) for record in records)


def test_servers_of_up_outlive_borrowers(stack: Stack) -> None:
    """A test run must leave a developer's stack as it was."""
    stack.up(Silence())
    with stack.borrowed(Silence()):
        pass
    assert all(each.is_answering for each in stack.status())


def test_borrowed_servers_end_also_when_one_cannot_start(stack: Stack, servers: dict[ServerName, WebServer]) -> None:
    servers[POSTGRES].command = [sys.executable, "-c", ""]
    with pytest.raises(ServerFailed), stack.borrowed(Silence()):
        pass
    assert stack.addresses() == {}


def test_up_of_a_running_stack_is_quick(stack: Stack) -> None:
    stack.up(Silence())
    begun = time.monotonic()
    stack.up(Silence())
    assert time.monotonic() - begun < 5
