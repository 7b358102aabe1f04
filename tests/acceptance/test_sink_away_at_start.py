"""A worker starts while Elasticsearch is away: its other jobs work, and the job that needs it begins by itself."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.acceptance.cli import Cli, Worker

pytestmark = pytest.mark.timeout(150)


def test_a_sink_that_is_away_holds_up_its_own_job_only(ready_cli: Cli) -> None:
    """G5: a deployment or a lost node in the middle of an outage must not turn it into one of everything."""
    port = _free_port()
    worker = Worker(ready_cli.start("run", "--all", TIDEGATE_ELASTICSEARCH_URL=f"http://127.0.0.1:{port}"))
    awaited = worker.wait_for("sink.awaited")
    assert awaited["job"] == "search"
    assert "TIDEGATE_ELASTICSEARCH_URL" in awaited["sink"]
    worker.port = next(line for line in _parsed(worker) if line["event"] == "worker.started")["port"]
    worker.wait_for("partition.owned", '"ledger"')
    ready = httpx.get(f"http://127.0.0.1:{worker.port}/readyz", trust_env=False)
    assert ready.status_code == 503
    assert any("job 'search': waits for elasticsearch" in problem for problem in ready.json()["problems"])
    assert httpx.get(f"http://127.0.0.1:{worker.port}/livez", trust_env=False).status_code == 200

    with _forwarded(port, ready_cli.environment["TIDEGATE_ELASTICSEARCH_URL"]):
        worker.wait_for("partition.owned", '"search"')
        assert worker.stop() == 0


def test_a_check_says_that_a_sink_is_away(ready_cli: Cli) -> None:
    """Whoever asks whether everything is there does not want to wait for it."""
    checked = ready_cli.run("run", "--all", "--check", TIDEGATE_ELASTICSEARCH_URL=f"http://127.0.0.1:{_free_port()}")
    assert checked.returncode != 0
    assert "TIDEGATE_ELASTICSEARCH_URL" in checked.stderr


def _parsed(worker: Worker) -> list[dict[str, Any]]:
    return [json.loads(line) for line in worker.lines if line.startswith("{")]


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def _forwarded(port: int, url: str) -> Iterator[None]:
    """What listens at `url` is reached at `port` too."""
    target, over = urlsplit(url), threading.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(target.hostname, target.port)
        await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))

    async def listen() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", port):
            await asyncio.to_thread(over.wait)

    with ThreadPoolExecutor(1) as beside:
        done = beside.submit(lambda: asyncio.run(listen()))
        try:
            yield
        finally:
            over.set()
            done.result()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
    finally:
        writer.close()
