"""A Postgres for tests: one server for the run, a database of its own for each test."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from tidegate.migrations.schema import migrate
from tidegate.stack.names import ServerName
from tidegate.stack.progress import Lines
from tidegate.stack.stack import Stack
from tidegate.stack.state import default_folder
from tidegate_kernel.postgres import connect


@dataclass(frozen=True, slots=True)
class Template:
    """A database that has Tidegate's tables, to be copied. `server` is the DSN of another one on the same server."""

    server: str
    name: str

    @contextmanager
    def copied(self) -> Iterator[str]:
        """Yields the DSN of a fresh copy; it is dropped afterwards, whoever is still connected."""
        name = asyncio.run(_create(self.server, template=self.name))
        try:
            yield _named(self.server, name)
        finally:
            asyncio.run(_drop(self.server, name))


@contextmanager
def database_template() -> Iterator[Template]:
    """Yields a template; it is dropped afterwards.

    The server is the one of TIDEGATE_POSTGRES_DSN or of `tidegate stack up`, else one that ends with the block.
    Raises Misconfigured if there is none and its packages (`tidegate[testing]`) are missing.
    """
    with Stack(default_folder(), names=[ServerName.POSTGRES]).borrowed(Lines()) as addresses:
        server = addresses[ServerName.POSTGRES]
        name = asyncio.run(_create(server, template="template0"))
        try:
            asyncio.run(migrate(_named(server, name)))
            yield Template(server, name)
        finally:
            asyncio.run(_drop(server, name))


async def _create(server: str, *, template: str) -> str:
    name = f"tidegate_test_{secrets.token_hex(6)}"
    async with connect(server) as connection:
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    return name


async def _drop(server: str, name: str) -> None:
    async with connect(server) as connection:
        await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def _named(server: str, database: str) -> str:
    """The DSN of another database on the same server."""
    return urlsplit(server)._replace(path=f"/{database}").geturl()
