"""PgBouncer in transaction mode, in front of the tests' Postgres."""

from __future__ import annotations

import configparser
import contextlib
import io
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

SERVER_CONNECTIONS = 3
"""What the clients of a test share; they would like more."""

_START_SECONDS = 10.0
# Debian puts it where only root's PATH leads.
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"

_DOCUMENT = Path(__file__).parents[1] / "docs" / "operations" / "pgbouncer.md"


@dataclass
class Bouncer:
    """A running PgBouncer. Whoever connects to it is the role of the server behind it, without being asked."""

    port: int
    command: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """It listens."""
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=out)
        _wait_until_it_listens(self.port, self.process, self.log)

    def kill(self) -> None:
        """It is gone, and with it every connection through it, on both sides."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def dsn(self, database: str) -> str:
        """The way through the pooler to the database that the DSN `database` leads to."""
        parts = urlsplit(database)
        return f"postgresql://{parts.username}@127.0.0.1:{self.port}{parts.path}"


@contextlib.contextmanager
def running_bouncer(server: str, folder: Path, *, size: int = SERVER_CONNECTIONS) -> Iterator[Bouncer]:
    """Yields a PgBouncer that shares `size` connections a database to the server of the DSN `server`.

    The test is skipped where the program is not installed.
    """
    program = shutil.which("pgbouncer", path=_PATH)
    if program is None:
        pytest.skip("pgbouncer is not installed: apt-get install pgbouncer")
    listen = _free_port()
    settings = folder / "pgbouncer.ini"
    settings.touch(mode=0o600)
    settings.write_text(_settings(server, listen=listen, size=size))
    # It refuses to be root, and reads its settings before it becomes somebody else.
    command = [program, *(["-u", "nobody"] if os.geteuid() == 0 else []), str(settings)]
    bouncer = Bouncer(listen, command, folder / "pgbouncer.log")
    try:
        bouncer.start()
        yield bouncer
    finally:
        bouncer.kill()


def _settings(server: str, *, listen: int, size: int) -> str:
    """What the documents recommend, with a pool that is smaller than its clients would like."""
    block = re.search(r"```ini\n(.*?)```", _DOCUMENT.read_text("utf-8"), re.DOTALL)
    assert block is not None
    told = configparser.ConfigParser()
    told.read_string(block[1])
    parts = urlsplit(server)
    behind = {"host": parts.hostname, "port": parts.port, "user": parts.username, "password": parts.password}
    told["databases"] = {"*": " ".join(f"{key}={unquote(str(value or ''))}" for key, value in behind.items())}
    ours = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(listen),
        "unix_socket_dir": "",
        "auth_type": "any",
        "default_pool_size": str(size),
    }
    told["pgbouncer"].update(ours)
    text = io.StringIO()
    told.write(text)
    return text.getvalue()


def _wait_until_it_listens(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise AssertionError(f"pgbouncer did not start: {log.read_text()[-500:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
