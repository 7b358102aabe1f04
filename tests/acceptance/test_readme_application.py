"""README's application, typed in as README says: its code, its migration, its commands."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import httpx
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import UnknownTopicOrPartitionError

from tidegate.stack.names import StackAddresses

_README = Path(__file__).parents[2] / "README.md"
# Six commands one after the other, each of which imports all it needs, on cores that are shared.
_DEADLINE_SECONDS = 120
_TOPICS = ["orders", "quickstart.spending.dlq", "quickstart.search.dlq"]
_INDEX = "orders-g1"
# Told to end, the shell ends the worker in its background, and as the worker does.
_END_THE_WORKER = "trap 'kill $! && wait $!; exit' TERM"
_LOCK = 0x7265_6164_6D65  # "readme"


def _block(language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", _README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(next(block for block in found if language != "sh" or "--app shop:app" in block))


@pytest.fixture
async def alone(stack: StackAddresses) -> AsyncIterator[None]:
    """README's names are fixed, so one run at a time uses them on these servers, and leaves nothing behind."""
    connection = await asyncpg.connect(stack.postgres_dsn)
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", _LOCK)
        await _forget(stack)
        yield
        await _forget(stack)
    finally:
        await connection.close()


async def _forget(stack: StackAddresses) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        await http.delete(f"{stack.elasticsearch_url}/{_INDEX}")
    admin = AIOKafkaAdminClient(bootstrap_servers=stack.kafka_bootstrap)
    await admin.start()
    try:
        for topic in _TOPICS:
            with suppress(UnknownTopicOrPartitionError):
                await admin.delete_topics([topic])
        while set(_TOPICS) & set(await admin.list_topics()):
            await asyncio.sleep(0.05)
    finally:
        await admin.close()


@dataclass
class Folder:
    """A folder with README's files, and a shell in it."""

    path: Path
    environment: dict[str, str]

    @property
    def said(self) -> str:
        """What all commands have printed so far."""
        return (self.path / "said").read_text(encoding="utf-8")

    def shell(self, script: str) -> subprocess.Popen[bytes]:
        with (self.path / "said").open("ab") as said:
            return subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=self.path,
                env=self.environment,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, script: str) -> None:
        """Fails if the script does, or takes too long."""
        assert self.shell(script).wait(_DEADLINE_SECONDS) == 0, self.said


@pytest.fixture
def folder(tmp_path: Path, stack: StackAddresses, empty_database: str, alone: None) -> Folder:
    (tmp_path / "shop.py").write_text(_block("python"), encoding="utf-8")
    (tmp_path / "migrations").mkdir()
    (tmp_path / "migrations" / "0001_spending.sql").write_text(_block("sql"), encoding="utf-8")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    addresses = {
        "TIDEGATE_KAFKA_BOOTSTRAP": stack.kafka_bootstrap,
        "TIDEGATE_POSTGRES_DSN": empty_database,
        "TIDEGATE_ELASTICSEARCH_URL": stack.elasticsearch_url,
        "TIDEGATE_CLICKHOUSE_URL": stack.clickhouse_url,
        "TIDEGATE_HTTP_PORT": "0",
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return Folder(tmp_path, {**inherited, **addresses, "PATH": path})


@pytest.fixture
def running(folder: Folder) -> Iterator[subprocess.Popen[bytes]]:
    """README's block of commands, with its worker in the background until the test ends."""
    shell = folder.shell(f"{_END_THE_WORKER}\n{_block('sh')}\nwait")
    yield shell
    with suppress(ProcessLookupError):
        os.killpg(shell.pid, signal.SIGKILL)
    shell.wait()


@pytest.mark.timeout(400)
async def test_readme_application_applies_every_event_once(
    folder: Folder, running: subprocess.Popen[bytes], stack: StackAddresses, empty_database: str
) -> None:
    """What a newcomer types in first has to work as it stands, and show what the whole is about."""

    async def until(ask: Callable[[], Awaitable[dict[str, int]]], expected: dict[str, int]) -> None:
        give_up_at = time.monotonic() + _DEADLINE_SECONDS
        while (found := await ask()) != expected:
            is_over = time.monotonic() > give_up_at or running.poll() is not None
            assert not is_over, f"expected {expected}, found {found}; the commands say:\n{folder.said[-3000:]}"
            await asyncio.sleep(0.1)

    await until(lambda: _spent(empty_database), {"c1": 1200})
    await until(lambda: _documents(stack), {"o1": 1200})

    folder.run(_send_command())
    folder.run(_send_command().replace("first-order", "second-order").replace('"o1"', '"o2"'))

    await until(lambda: _settled(empty_database), {"spending": 3, "search": 3})
    assert await _spent(empty_database) == {"c1": 2400}
    await until(lambda: _documents(stack), {"o1": 1200, "o2": 1200})
    running.terminate()
    assert running.wait(_DEADLINE_SECONDS) == 0, folder.said[-3000:]


def _send_command() -> str:
    found = re.search(r"^tidegate send .*?[^\\]$", _block("sh"), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[0]


async def _spent(dsn: str) -> dict[str, int]:
    return await _query(dsn, "SELECT customer_id, cents FROM spending")


async def _settled(dsn: str) -> dict[str, int]:
    return await _query(
        dsn,
        "SELECT j.code, sum(p.next_offset)::bigint FROM tidegate.position AS p "
        "JOIN tidegate.job AS j ON j.id = p.job GROUP BY j.code",
    )


async def _query(dsn: str, query: str) -> dict[str, int]:
    connection = await asyncpg.connect(dsn)
    try:
        return {row[0]: row[1] for row in await connection.fetch(query)}
    except asyncpg.UndefinedTableError:
        return {}
    finally:
        await connection.close()


async def _documents(stack: StackAddresses) -> dict[str, int]:
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.get(f"{stack.elasticsearch_url}/orders/_search")
    if answer.status_code != 200:
        return {}
    return {hit["_id"]: hit["_source"]["total_cents"] for hit in answer.json()["hits"]["hits"]}
