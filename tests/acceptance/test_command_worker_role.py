"""A worker with the least privileges: it does all of its work, and cannot touch what was written of others'."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest

from tests.acceptance.cli import Cli, Worker

pytestmark = [pytest.mark.servers, pytest.mark.timeout(240)]

Rows = Callable[[str], list[asyncpg.Record]]
_DEADLINE_SECONDS = 60


@pytest.fixture(scope="module")
def worker_cli(admin_cli: Cli) -> Iterator[Cli]:
    """The service, connected as a role that has what `migrate --worker-role` grants, and its own table."""
    role, password = f"tide_worker_{secrets.token_hex(4)}", secrets.token_hex(8)
    dsn = admin_cli.environment["TIDEGATE_POSTGRES_DSN"]
    asyncio.run(_execute(dsn, f"CREATE ROLE {role} LOGIN PASSWORD '{password}'"))
    missing = admin_cli.run("migrate", "--check", "--worker-role", role)
    granted = admin_cli.run("migrate", "--worker-role", role)
    whole = admin_cli.run("migrate", "--check", "--worker-role", role)
    assert (missing.returncode, granted.returncode, whole.returncode) == (1, 0, 0), granted.stderr
    assert f"done: grants of role {role} (worker)" in granted.stdout
    asyncio.run(_execute(dsn, f"GRANT SELECT, INSERT ON payment TO {role}"))
    own = f"{dsn.partition('//')[0]}//{role}:{password}@{dsn.rpartition('@')[2]}"
    cli = Cli({**admin_cli.environment, "TIDEGATE_POSTGRES_DSN": own, "TIDEGATE_TOKEN": ""})
    yield cli
    cli.close()
    asyncio.run(_execute(dsn, f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}"))


def test_worker_consumes_buries_relays_and_keeps_the_inbox(worker_cli: Cli, admin_cli: Cli, rows: Rows) -> None:
    """Each of them touches other tables: the one that lacks a privilege stops in the middle of the night."""
    assert admin_cli.run("checkpoint", "create", "before", "--at", "end").returncode == 0
    waiting = rows("SELECT count(*) FROM tidegate.outbox WHERE kind = 'audit'")[0][0]
    assert waiting > 0, "there is something of the audit to relay"
    worker = Worker(worker_cli.start("run", "--all"))
    worker.wait_for("inbox.days_attached")
    worker.wait_for("worker.started")

    _send(admin_cli, "good", cents=5)
    _send(admin_cli, "bad", cents=-5)

    _until(rows, "SELECT id FROM payment", ["good"])
    _until(rows, "SELECT reason FROM tidegate.dead_letter", ["rejected"])
    _until(rows, "SELECT count(*) FROM tidegate.outbox", [0])
    _until(rows, "SELECT DISTINCT count(*) > 0 FROM tidegate.presence", [True])
    assert worker.stop() == 0
    refused = [line for line in worker.lines if "permission denied" in line]
    assert refused == []


def test_its_credentials_do_not_change_the_audit(worker_cli: Cli) -> None:
    """Whoever takes a worker over can add to the story, and not change it."""
    dsn = worker_cli.environment["TIDEGATE_POSTGRES_DSN"]

    for statement in (
        "UPDATE tidegate.audit SET actor = 'x'",
        "DELETE FROM tidegate.audit",
        "TRUNCATE tidegate.audit",
        "INSERT INTO tidegate.audit SELECT a.* FROM tidegate.audit AS a",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied"):
            asyncio.run(_execute(dsn, statement))


@pytest.mark.parametrize("command", ["pause ledger --reason x", "tokens list", "audit list", "audit verify"])
def test_commands_of_a_role_that_may_not_are_refused_in_a_sentence(
    worker_cli: Cli, admin_token: str, command: str
) -> None:
    """Typed in a worker's container: not a page of Python, but who has to give what."""
    done = worker_cli.run(*command.split(), TIDEGATE_TOKEN=admin_token)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tidegate: postgres: permission denied for table ")
    assert done.stderr.count("\n") == 1
    assert "--command-role" in done.stderr


def _send(cli: Cli, payment: str, *, cents: int) -> None:
    data = json.dumps({"payment": payment, "cents": cents})
    topic = f"{cli.environment['SMALL_PREFIX']}.payments"
    sent = cli.run("send", topic, "--type", "payment.made", "--json", data, "--key", payment)
    assert sent.returncode == 0, sent.stderr


def _until(rows: Rows, query: str, wanted: list[Any]) -> None:
    """Returns once the first column of the query's rows is `wanted`."""
    give_up_at = time.monotonic() + _DEADLINE_SECONDS
    found: list[Any] = []
    while time.monotonic() < give_up_at:
        found = [row[0] for row in rows(query)]
        if found == wanted:
            return
        time.sleep(0.1)  # rows in a database tell nobody of their change
    raise AssertionError(f"{query}: {found}, not {wanted}")


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
