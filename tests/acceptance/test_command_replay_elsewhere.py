"""Replay where little is given: by a role of least privilege, and in a database that never saw the failure."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator

import asyncpg
import pytest

from tests.acceptance.cli import Cli
from tests.acceptance.letters import Letters, Rows, produce, run_ledger

pytestmark = [pytest.mark.servers, pytest.mark.timeout(240)]

MENDED = {"TIDEGATE_APP": "mended:app"}
WHY = ("--reason", "mended in 4.2", "--yes")


@pytest.fixture(scope="module")
def failed(admin_cli: Cli) -> Cli:
    """One payment was refused, and its letter is in the DLQ topic. Nothing runs any more."""
    produce(admin_cli, ("k", "first", -5))
    run_ledger(admin_cli, "dead_letter.kept")
    return admin_cli


@pytest.fixture
def command_cli(failed: Cli) -> Iterator[Cli]:
    """The same, connected as a role that has what `migrate --command-role` grants, and the service's own table."""
    role, password = f"tide_command_{secrets.token_hex(4)}", secrets.token_hex(8)
    dsn = failed.environment["TIDEGATE_POSTGRES_DSN"]
    _execute(dsn, f"CREATE ROLE {role} LOGIN PASSWORD '{password}'")
    granted = failed.run("migrate", "--command-role", role)
    assert granted.returncode == 0, granted.stderr
    _execute(dsn, f"GRANT SELECT, INSERT ON payment TO {role}")
    cli = Cli(
        {**failed.environment, "TIDEGATE_POSTGRES_DSN": f"postgresql://{role}:{password}@{dsn.rpartition('@')[2]}"}
    )
    yield cli
    cli.close()
    _execute(dsn, f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


@pytest.fixture
def new_cli(failed: Cli) -> Iterator[Cli]:
    """The service in a database of its own, migrated, in which nothing has ever happened."""
    name = f"{failed.environment['SMALL_PREFIX'].replace('-', '_')}_new"
    dsn = failed.environment["TIDEGATE_POSTGRES_DSN"]
    _execute(dsn, f"CREATE DATABASE {name} TEMPLATE template0")
    environment = {**failed.environment, "TIDEGATE_POSTGRES_DSN": dsn.rpartition("/")[0] + f"/{name}"}
    del environment["TIDEGATE_TOKEN"]
    cli = Cli(environment)
    assert cli.run("migrate").returncode == 0
    token = cli.run("tokens", "create", "tests", "--bootstrap").stdout.strip()
    cli.environment = {**environment, "TIDEGATE_TOKEN": token}
    yield cli
    cli.close()
    _execute(dsn, f"DROP DATABASE {name} WITH (FORCE)")


def _execute(dsn: str, statement: str) -> list[asyncpg.Record]:
    async def execute() -> list[asyncpg.Record]:
        connection = await asyncpg.connect(dsn)
        try:
            if statement.startswith("SELECT"):
                return list(await connection.fetch(statement))
            await connection.execute(statement)
            return []
        finally:
            await connection.close()

    return asyncio.run(execute())


def test_a_database_that_never_saw_the_failure_replays_from_the_topic(failed: Cli, new_cli: Cli) -> None:
    """The letters come in first, audited; then it is a replay as any other, and a second one finds nothing to do."""
    words = ("dlq", "replay", "--job", "ledger", "--from-topic")

    shown = new_cli.run(*words, **MENDED)
    as_json = new_cli.json(*words)
    done = new_cli.run(*words, *WHY, **MENDED)
    again = new_cli.run(*words, *WHY, **MENDED)

    assert (shown.returncode, done.returncode, again.returncode) == (0, 0, 0), done.stderr
    assert "tells of 1 letter, 0 of which the database has" in shown.stdout
    assert (as_json["import"]["letters"], as_json["import"]["known"], as_json["is_done"]) == ({"dead": 1}, 0, False)
    assert "1 letter came in" in done.stderr
    assert "1 resolved" in done.stdout
    assert "there is nothing to be done" in again.stderr
    dsn = new_cli.environment["TIDEGATE_POSTGRES_DSN"]
    assert [tuple(row) for row in _execute(dsn, "SELECT id, cents FROM payment")] == [("first", -5)]
    audited = _execute(dsn, "SELECT action FROM tidegate.audit WHERE outcome = 'done' AND action LIKE 'dlq:%'")
    assert {row["action"] for row in audited} == {"dlq:import", "dlq:replay"}


def test_a_role_of_least_privilege_replays_and_discards(command_cli: Cli, failed: Cli, rows: Rows) -> None:
    """Whoever is on call does not own the schema: each statement of a run is one that its role may make."""
    unwanted = Letters(failed).keep("unwanted")[0]

    discarded = command_cli.run("dlq", "discard", "--letter", unwanted, *WHY, **MENDED)
    refused = command_cli.run("dlq", "replay", "--job", "ledger", *WHY)
    replayed = command_cli.run("dlq", "replay", "--job", "ledger", *WHY, **MENDED)

    ends = (discarded.returncode, refused.returncode, replayed.returncode)
    assert ends == (0, 1, 0), discarded.stderr + refused.stderr + replayed.stderr
    assert [tuple(row) for row in rows("SELECT id, cents FROM payment")] == [("first", -5)]
    assert {row["state"] for row in rows("SELECT state FROM tidegate.dead_letter")} == {"resolved", "discarded"}
