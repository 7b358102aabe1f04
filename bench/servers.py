"""Topics and databases that a benchmark makes and removes again."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
from aiokafka.admin import AIOKafkaAdminClient

from inbox.days import attach_days
from tidegate.migrations.phases import Phase
from tidegate.migrations.schema import exclusively, upgrade
from tidegate_kernel.kafka import connection_options
from tidegate_kernel.settings import KafkaSettings, Settings


class Databases:
    """Makes databases that hold Tidegate's schema, with a partition for each day around today, and no rows."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._template = f"bench_{secrets.token_hex(4)}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """`fresh` may be called inside the block."""
        await self._administer(f"CREATE DATABASE {self._template} TEMPLATE template0")
        try:
            async with exclusively(self._at(self._template)):
                await upgrade(self._at(self._template), Phase.ALL)
            connection = await asyncpg.connect(self._at(self._template))
            try:
                await attach_days(connection)
            finally:
                await connection.close()
            yield
        finally:
            await self._administer(f"DROP DATABASE {self._template} WITH (FORCE)")

    @asynccontextmanager
    async def fresh(self) -> AsyncIterator[str]:
        """Yields the DSN of a new one, dropped afterwards."""
        name = f"bench_{secrets.token_hex(6)}"
        await self._administer(f"CREATE DATABASE {name} TEMPLATE {self._template}")
        try:
            yield self._at(name)
        finally:
            await self._administer(f"DROP DATABASE {name} WITH (FORCE)")

    def _at(self, name: str) -> str:
        return self._dsn.rpartition("/")[0] + f"/{name}"

    async def _administer(self, statement: str) -> None:
        connection = await asyncpg.connect(self._dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


async def delete_topics(settings: KafkaSettings, topics: Sequence[str]) -> None:
    """They are gone, where they were."""
    admin = AIOKafkaAdminClient(**connection_options(settings))
    await admin.start()
    try:
        await admin.delete_topics(list(topics))
    finally:
        await admin.close()


def dsn_of(settings: Settings) -> str:
    return settings.postgres_dsn.get_secret_value()
