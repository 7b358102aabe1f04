"""`tidegate stack` as people type it, with real servers that start fast."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tidegate.stack.stack import Stack

# Several commands one after the other, each a Python of its own that imports everything.
pytestmark = pytest.mark.timeout(180)

ROOT = Path(__file__).parents[2]
SOME = "postgres,clickhouse"


@dataclass(frozen=True)
class Command:
    """`tidegate stack …` on a folder of the test's own, without addresses in its environment."""

    folder: Path

    def start(self, *arguments: str, only: str = SOME) -> subprocess.Popen[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")}
        command = [sys.executable, "-m", "tidegate.stack", *arguments, "--dir", str(self.folder), "--only", only]
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *arguments: str, only: str = SOME) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, only=only) as process:
            out, err = process.communicate(timeout=50)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def server_processes(self) -> list[psutil.Process]:
        """All living processes whose command names the folder, but for `tidegate stack` itself."""
        # As root, Postgres keeps its data in a public place if the folder is in a private one; its name tells whose.
        names = (str(self.folder), str(self.folder).strip("/").replace("/", "-"))
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            command = " ".join(process.info["cmdline"] or [])
            is_server = any(name in command for name in names) and "-m tidegate.stack" not in command
            if is_server and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    made = Command(tmp_path / "stack")
    yield made
    Stack(made.folder, environment={}).down(wipe=True)
    assert made.server_processes() == []


def test_up_status_env_down(command: Command) -> None:
    """The life of a stack; nowhere but in `env` and its file is the password shown."""
    up = command.run("up")
    assert up.returncode == 0, up.stderr
    assert "postgres: answers after" in up.stderr
    env_file = command.folder / "env"
    assert env_file.stat().st_mode & 0o777 == 0o600
    addresses = json.loads(command.run("env", "--json").stdout)
    assert set(addresses) == {"TIDEGATE_POSTGRES_DSN", "TIDEGATE_CLICKHOUSE_URL"}
    assert env_file.read_text() == "".join(f"{name}={address}\n" for name, address in addresses.items())
    status = command.run("status")
    assert status.returncode == 0
    assert (command.folder / "postgres" / "password").read_text() not in status.stdout + up.stdout + up.stderr
    down = command.run("down")
    assert down.stdout == "stopped: postgres, clickhouse\n"
    assert command.server_processes() == []


@pytest.mark.parametrize("progress", ["clickhouse: starting", "postgres: creating", "postgres: starting"])
def test_start_killed_anywhere_leaves_nothing_unknown(command: Command, progress: str) -> None:
    """Kill -9 in the middle of `up`: the next `up` works, starts nothing twice, and `down` leaves no process behind."""
    killed = command.start("up")
    assert killed.stderr is not None
    for line in killed.stderr:
        if line.startswith(progress):
            break
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    again = command.run("up")
    assert again.returncode == 0, again.stderr
    assert len(command.server_processes()) == 2


def test_two_ups_at_once_share_one_stack(command: Command) -> None:
    with command.start("up") as first, command.start("up") as second:
        first.communicate(timeout=50)
        second.communicate(timeout=50)
    assert (first.returncode, second.returncode) == (0, 0)
    assert len(command.server_processes()) == 2


def test_unknown_server_is_a_misuse(command: Command) -> None:
    wrong = command.run("up", only="kafak")
    assert wrong.returncode == 2
    assert "kafak" in wrong.stderr
    assert "kafka, postgres, elasticsearch, clickhouse" in wrong.stderr


def test_folder_that_cannot_be_used_is_told_in_one_line(command: Command) -> None:
    """A read-only home is the machine's; a stack of ours would send its reader to the wrong place."""
    place = command.folder.parent / "place"
    place.write_text("a file where a folder should be")
    done = Command(place / "stack").run("up", only="clickhouse")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"error: {place}")
    assert done.stderr.count("\n") == 1
    assert "--dir" in done.stderr
