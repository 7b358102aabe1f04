"""A service with a database of its own, for tests that type commands."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator

import asyncpg
import httpx
import pytest

from tests.acceptance.cli import Cli
from tidegate.stack.names import StackAddresses


@pytest.fixture(scope="module")
def cli(stack: StackAddresses, run_id: str, request: pytest.FixtureRequest) -> Iterator[Cli]:
    """The small service, alone in a database, with nothing migrated or created yet. One for all tests of a module.

    In a module with `ALL_STARTS_ARE_FRESH` no command shares its imports with others.
    """
    name = f"cli-{run_id}-{secrets.token_hex(2)}"
    database = name.replace("-", "_")
    asyncio.run(_administer(stack, f"CREATE DATABASE {database} TEMPLATE template0"))
    made = Cli(
        {
            "TIDEGATE_KAFKA_BOOTSTRAP": stack.kafka_bootstrap,
            "TIDEGATE_POSTGRES_DSN": stack.postgres_dsn.rpartition("/")[0] + f"/{database}",
            "TIDEGATE_ELASTICSEARCH_URL": stack.elasticsearch_url,
            "TIDEGATE_CLICKHOUSE_URL": stack.clickhouse_url,
            "TIDEGATE_APP": "small:app",
            "TIDEGATE_HTTP_PORT": "0",
            "SMALL_PREFIX": name,
        },
        is_warm=not getattr(request.module, "ALL_STARTS_ARE_FRESH", False),
    )
    yield made
    made.close()
    httpx.delete(f"{stack.elasticsearch_url}/{name}-payments-g1", trust_env=False)
    httpx.delete(f"{stack.elasticsearch_url}/_index_template/tidegate-{name}-payments-g1", trust_env=False)
    asyncio.run(_administer(stack, f"DROP DATABASE {database} WITH (FORCE)"))


@pytest.fixture(scope="module")
def ready_cli(cli: Cli) -> Cli:
    """The same, migrated and with its topics."""
    done = cli.run("dev-prepare")
    assert done.returncode == 0, done.stderr
    return cli


@pytest.fixture(scope="module")
def admin_token(ready_cli: Cli) -> str:
    """The first token of the service's database."""
    made = ready_cli.run("tokens", "create", "tests", "--bootstrap")
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


@pytest.fixture(scope="module")
def admin_cli(ready_cli: Cli, admin_token: str) -> Iterator[Cli]:
    """The same service, typed by the bearer of an admin token."""
    made = Cli({**ready_cli.environment, "TIDEGATE_TOKEN": admin_token}, is_warm=ready_cli.is_warm)
    yield made
    made.close()


@pytest.fixture
def rows(cli: Cli) -> Callable[[str], list[asyncpg.Record]]:
    """Runs a query on the service's database."""

    async def fetch(query: str) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(cli.environment["TIDEGATE_POSTGRES_DSN"])
        try:
            return list(await connection.fetch(query))
        finally:
            await connection.close()

    return lambda query: asyncio.run(fetch(query))


async def _administer(stack: StackAddresses, statement: str) -> None:
    connection = await asyncpg.connect(stack.postgres_dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
