"""Where a trial runs: a database, topics, an index and a table of its own on servers that others may use too."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
from aiokafka.admin import AIOKafkaAdminClient

_ADDRESSES = tuple(
    f"TIDEGATE_{name}" for name in ("KAFKA_BOOTSTRAP", "POSTGRES_DSN", "ELASTICSEARCH_URL", "CLICKHOUSE_URL")
)
_DATABASE = "shop_demo_"
_FOLDER = Path(".state") / "demo"
# A killed worker's partitions are free after its session: half a minute in production, here as short as a busy laptop
# allows.
_SESSION = "PT10S"


class TrialFailed(Exception):
    """The trial could not be carried out; the message says which step and where to look."""


@dataclass(frozen=True)
class Place:
    """One trial's names. `environment` is what every process of the shop runs with."""

    run: str
    folder: Path
    environment: Mapping[str, str]

    @property
    def prefix(self) -> str:
        return _prefix(self.run)

    @property
    def topic(self) -> str:
        return f"{self.prefix}shop.orders"

    @property
    def index(self) -> str:
        return f"{self.prefix}orders"

    @property
    def table(self) -> str:
        return f"{self.prefix}revenue".replace("-", "_")

    @property
    def kafka(self) -> str:
        return self.environment["TIDEGATE_KAFKA_BOOTSTRAP"]

    @property
    def elasticsearch(self) -> str:
        return self.environment["TIDEGATE_ELASTICSEARCH_URL"]

    @property
    def clickhouse(self) -> str:
        return self.environment["TIDEGATE_CLICKHOUSE_URL"]

    @property
    def env_file(self) -> Path:
        """Lines for a shell: whoever reads them talks to this trial's shop."""
        return self.folder / "env"

    def write_env_file(self, *, token: str = "") -> None:
        """With a token the shell may also change what it looks at."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.env_file.touch(mode=0o600)  # it holds the database's password
        told = {**self.environment, **({"TIDEGATE_TOKEN": token} if token else {})}
        names = [name for name in told if name.startswith(("TIDEGATE_", "SHOP_"))]
        self.env_file.write_text("".join(f"export {name}='{told[name]}'\n" for name in sorted(names)))


@asynccontextmanager
async def fresh_place(environment: Mapping[str, str] = os.environ) -> AsyncIterator[tuple[Place, Any]]:
    """Yields a new place and a pool of connections to its database; what earlier trials left is gone.

    The place stays after the block, so that its dead letters can be looked at.
    """
    missing = [name for name in _ADDRESSES if name not in environment]
    if missing:
        raise TrialFailed(f"{', '.join(missing)} not set: where are the servers? 'make demo' starts them and says so")
    run = secrets.token_hex(3)
    server = environment["TIDEGATE_POSTGRES_DSN"]
    await _clear_earlier(environment)
    await _execute(server, f"CREATE DATABASE {_DATABASE}{run}")
    own = {
        "TIDEGATE_APP": "examples.shop.app:app",
        "TIDEGATE_POSTGRES_DSN": f"{server.rpartition('/')[0]}/{_DATABASE}{run}",
        "TIDEGATE_KAFKA_SESSION_TIMEOUT": _SESSION,
        "TIDEGATE_KAFKA_HEARTBEAT_INTERVAL": "PT1S",
        "SHOP_PREFIX": _prefix(run),
    }
    place = Place(run, _FOLDER / run, {**environment, **own})
    place.write_env_file()
    async with asyncpg.create_pool(own["TIDEGATE_POSTGRES_DSN"], min_size=1, max_size=3) as pool, pool.acquire():
        # One connection is held all the time: a database in use is one that no other trial clears away.
        yield place, pool


def _prefix(run: str) -> str:
    return f"demo-{run}-"


async def _clear_earlier(environment: Mapping[str, str]) -> None:
    """Places of earlier trials are gone, unless their database is in use."""
    connection = await asyncpg.connect(environment["TIDEGATE_POSTGRES_DSN"])
    try:
        rows = await connection.fetch("SELECT datname FROM pg_database WHERE starts_with(datname, $1)", _DATABASE)
        cleared = [str(row["datname"]) for row in rows if await _dropped(connection, row["datname"])]
    finally:
        await connection.close()
    for name in cleared:
        prefix = _prefix(name.removeprefix(_DATABASE))
        await _clear_topics(environment["TIDEGATE_KAFKA_BOOTSTRAP"], prefix)
        await _clear_readers(environment, prefix)


async def _dropped(connection: Any, name: str) -> bool:
    with contextlib.suppress(asyncpg.ObjectInUseError, asyncpg.InvalidCatalogNameError):
        await connection.execute(f"DROP DATABASE {name}")
        return True
    return False


async def _clear_topics(bootstrap: str, prefix: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        topics = [name for name in await admin.list_topics() if name.startswith(prefix)]
        if topics:
            await admin.delete_topics(topics)
    finally:
        await admin.close()


async def _clear_readers(environment: Mapping[str, str], prefix: str) -> None:
    table = prefix.replace("-", "_") + "revenue"
    async with aiohttp.ClientSession() as http:
        for index in ("orders", "customer-value"):
            url = f"{environment['TIDEGATE_ELASTICSEARCH_URL']}/{prefix}{index}-g1?ignore_unavailable=true"
            await http.delete(url)
        for statement in (f"DROP VIEW IF EXISTS `{table}`", f"DROP TABLE IF EXISTS `{table}_g1`"):
            await http.post(environment["TIDEGATE_CLICKHOUSE_URL"], data=statement)


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
