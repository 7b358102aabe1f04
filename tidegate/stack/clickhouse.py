"""The ClickHouse engine from its library, behind a small HTTP front of our own."""

import importlib.util
import sys
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from tidegate.stack.names import ServerName
from tidegate.stack.process import Launch
from tidegate.stack.progress import Reporter
from tidegate.stack.servers import Container

_FRONT = Path(__file__).with_name("clickhouse_front.py")


class ClickHouse:
    """`Server`: ClickHouse's engine in a process of its own, behind the HTTP front of `clickhouse_front`."""

    name = ServerName.CLICKHOUSE
    port_count = 1
    grace_seconds = 10.0

    def missing(self) -> list[str]:
        absent = [each for each in ("chdb", "aiohttp", "pyarrow", "pandas") if importlib.util.find_spec(each) is None]
        return [f"the ClickHouse engine: {', '.join(absent)} (pip install 'tidegate[dev]')"] if absent else []

    def prepare(self, home: Path, report: Reporter) -> None:
        (home / "data").mkdir(exist_ok=True)

    def launch(self, home: Path, ports: list[int]) -> Launch:
        # By path, because it needs nothing of Tidegate; -P keeps this folder's module names off its import path.
        command = [sys.executable, "-P", str(_FRONT)]
        command += ["--path", str(home / "data"), "--port", str(ports[0])]
        return Launch(command=command, address=f"http://127.0.0.1:{ports[0]}", directory=str(home))

    def container(self, port: int) -> Container:
        # The image asks for a password unless told that an open default user is meant.
        environment = {"CLICKHOUSE_SKIP_USER_SETUP": "1"}
        return Container("clickhouse/clickhouse-server:25.8", 8123, "http://127.0.0.1:{port}", environment)

    def check(self, address: str) -> None:
        parts = urlsplit(address)
        base = f"{parts.scheme}://{parts.hostname}:{parts.port or 8123}/"
        headers = {"X-ClickHouse-User": parts.username or "default", "X-ClickHouse-Key": parts.password or ""}
        with urlopen(Request(base, data=b"SELECT 1", headers=headers), timeout=3) as answer:  # noqa: S310  # http or https
            if answer.read().strip() != b"1":
                raise ConnectionError("something answers that is not ClickHouse")
