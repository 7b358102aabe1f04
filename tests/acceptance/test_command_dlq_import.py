"""`tidegate dlq import` as an operator types it on the day after the database was lost."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator

import asyncpg
import pytest

from tests.acceptance.cli import Cli, Worker
from tidegate.stack.names import StackAddresses
from tidegate_kernel.kafka import open_writer
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import Outgoing

pytestmark = [pytest.mark.servers, pytest.mark.timeout(200)]

Rows = Callable[[str], list[asyncpg.Record]]
_PUBLISHED = "SELECT NOT EXISTS (SELECT FROM tidegate.outbox WHERE kind = 'dead_letter')"


@pytest.fixture(scope="module")
def failed(admin_cli: Cli) -> Cli:
    """Two letters of the ledger, on the DLQ topic too, and a record there that is none. Nothing runs any more."""
    prefix = admin_cli.environment["SMALL_PREFIX"]
    told: list[tuple[str, bytes | None]] = [
        ("ce_specversion", b"1.0"),
        ("ce_source", b"/web"),
        ("ce_type", b"payment.made"),
    ]
    values = (b"\xff\xfe 4111", b'{"payment": "4111", "cents": -5}')
    bad = [
        Outgoing(f"{prefix}.payments", value, b"k%d" % n, [*told, ("ce_id", b"e%d" % n)], partition=0)
        for n, value in enumerate(values)
    ]
    asyncio.run(_write(admin_cli, [*bad, Outgoing(f"{prefix}.ledger.dlq", b"4111", b"k")]))
    worker = Worker(admin_cli.start("run", "ledger"))
    for _ in bad:
        worker.wait_for("dead_letter.kept")
    _wait_until(lambda: asyncio.run(_fetch(admin_cli.environment["TIDEGATE_POSTGRES_DSN"], _PUBLISHED))[0][0])
    assert worker.stop() == 0
    return admin_cli


@pytest.fixture(scope="module")
def anew(failed: Cli, stack: StackAddresses) -> Iterator[Cli]:
    """The same service, whose database was lost: a new one, migrated, with a token of its own."""
    database = f"anew_{secrets.token_hex(4)}"
    asyncio.run(_fetch(stack.postgres_dsn, f"CREATE DATABASE {database} TEMPLATE template0"))
    dsn = stack.postgres_dsn.rpartition("/")[0] + f"/{database}"
    bare = Cli({**failed.environment, "TIDEGATE_POSTGRES_DSN": dsn, "TIDEGATE_TOKEN": ""})
    assert bare.run("migrate").returncode == 0
    made = bare.run("tokens", "create", "admin", "--bootstrap")
    assert made.returncode == 0, made.stderr
    yield Cli({**bare.environment, "TIDEGATE_TOKEN": made.stdout.strip()}, started=bare.started)
    bare.close()
    asyncio.run(_fetch(stack.postgres_dsn, f"DROP DATABASE {database} WITH (FORCE)"))


def _as(cli: Cli, role: str) -> Cli:
    made = cli.run("tokens", "create", f"the-{role}", "--role", role)
    assert made.returncode == 0, made.stderr
    return Cli({**cli.environment, "TIDEGATE_TOKEN": made.stdout.strip()}, started=cli.started)


def test_letters_of_a_lost_database_come_back_by_permission_once_and_whole(failed: Cli, anew: Cli) -> None:
    """Plan, refusal, deed, repetition: as it is typed that day; payloads are in no output."""
    plan = anew.run("dlq", "import", "ledger", TIDEGATE_TOKEN="")
    refused = _as(anew, "viewer").run("dlq", "import", "ledger", "--yes")
    empty = anew.json("dlq", "list")["letters"]
    operator = _as(anew, "operator")
    done = operator.run("dlq", "import", "ledger", "--yes")
    again = operator.json("dlq", "import", "ledger", "--yes")

    assert plan.returncode == 0, plan.stderr
    assert "3 records tell of 2 letters" in plan.stdout
    assert "malformed: 1" in plan.stdout
    assert "there is no header tg-dlq-job" in plan.stdout
    assert "add --yes" in plan.stderr
    assert (refused.returncode, empty) == (3, [])
    assert "role operator" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert "3 letters came in: 2 dead, 1 quarantined" in done.stdout
    assert "4111" not in f"{plan.stdout}{done.stdout}"
    assert (again["is_done"], again["known"], again["restored"]) == (True, 3, {})
    assert anew.json("dlq", "list") == failed.json("dlq", "list")
    quarantined = anew.json("dlq", "list", "--status", "quarantined")["letters"]
    assert [each["reason"] for each in quarantined] == ["invalid_envelope"]


def test_shown_whole_it_is_what_it_was(failed: Cli, anew: Cli) -> None:
    """G7: byte for byte, through two databases and a topic."""
    anew.run("dlq", "import", "ledger", "--yes")
    for each in failed.json("dlq", "list")["letters"]:
        before, after = (cli.json("dlq", "show", each["id"], "--payload") for cli in (failed, anew))
        assert after == before


def test_a_job_without_a_topic_is_told_so(anew: Cli) -> None:
    """A typed name that is wrong must not look like an empty topic."""
    unknown = anew.run("dlq", "import", "ledgers")
    other = anew.run("dlq", "import", "ledger", SMALL_PREFIX="nobody")

    assert (unknown.returncode, other.returncode) == (2, 2)
    assert "no job 'ledgers'" in unknown.stderr
    assert "no DLQ topic 'nobody.ledger.dlq'" in other.stderr


def _wait_until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.1)


async def _write(cli: Cli, records: list[Outgoing]) -> None:
    async with open_writer(KafkaSettings(bootstrap=cli.environment["TIDEGATE_KAFKA_BOOTSTRAP"])) as writer:
        assert not any(await writer.write(records))


async def _fetch(dsn: str, statement: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(dsn)
    try:
        return list(await connection.fetch(statement))
    finally:
        await connection.close()
