"""Postgres is lost without a backup, and everything is made again from Kafka, as the document of disasters says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from tests.acceptance.cli import Cli, Worker
from tests.acceptance.totals import index_of, totals, until
from tidegate.stack.names import StackAddresses

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

_DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "kubernetes" / "disaster-recovery.md"
_DEADLINE_SECONDS = 50.0
_REASON = "database restored"
_LETTERS = "SELECT id, state FROM tidegate.dead_letter"

Rows = Callable[[str], list[asyncpg.Record]]


@pytest.fixture(scope="module")
def folding(cli: Cli) -> Iterator[Cli]:
    """The service with a fold, nothing migrated yet."""
    made = Cli({**cli.environment, "TIDEGATE_APP": "folding:app"})
    yield made
    made.close()
    httpx.delete(index_of(made), trust_env=False)


def _until(ask: Callable[[], Any], wanted: object) -> None:
    until(ask, wanted, seconds=_DEADLINE_SECONDS)


def _pay(cli: Cli, account: str, cents: object) -> None:
    body = json.dumps({"account": account, "cents": cents})
    topic = f"{cli.environment['SMALL_PREFIX']}.paid"
    done = cli.run("send", topic, "--type", "paid", "--key", account, "--json", body, TIDEGATE_APP="")
    assert done.returncode == 0, done.stderr


def _lose_database(cli: Cli, stack: StackAddresses) -> None:
    name = cli.environment["TIDEGATE_POSTGRES_DSN"].rpartition("/")[2]

    async def lose() -> None:
        connection = await asyncpg.connect(stack.postgres_dsn)
        try:
            await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
            await connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        finally:
            await connection.close()

    asyncio.run(lose())


def _typed(cli: Cli, *words: str, **extra: str) -> str:
    """What a command prints that stands in the document, to its last option, and that succeeds."""
    pattern = " ".join("JOB" if word == "totals" else f"'{word}'" if " " in word else word for word in words)
    assert f"tidegate {pattern}" in _DOCUMENT.read_text(encoding="utf-8"), f"the document does not say {pattern!r}"
    done = cli.run(*words, **extra)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _work(cli: Cli) -> Worker:
    worker = Worker(cli.start("run", "totals"))
    worker.wait_for("worker.started")
    return worker


def _made_again(cli: Cli) -> None:
    """The steps of the document, up to where workers start."""
    _typed(cli, "migrate")
    _typed(cli, "topics", "create")
    done = cli.run("tokens", "create", "anna", "--bootstrap")
    assert done.returncode == 0, done.stderr
    bearer = {"TIDEGATE_TOKEN": done.stdout.strip()}
    _typed(cli, "dlq", "import", "totals", "--yes", **bearer)
    _typed(cli, "pause", "totals", "--reason", _REASON, **bearer)
    _typed(cli, "projections", "reset", "totals", "--reason", _REASON, "--yes", **bearer)
    _typed(cli, "resume", "totals", **bearer)


def test_lost_database_is_made_again_from_kafka(folding: Cli, stack: StackAddresses, rows: Rows) -> None:
    """What readers saw they see again, and what comes next as well; letters are there, and none is handled anew."""
    prepared = folding.run("dev-prepare")
    assert prepared.returncode == 0, prepared.stderr
    worker = _work(folding)
    for sum_of_a in (1, 2):  # one at a time: the document's version is then 2, and made again in one batch it is 1
        _pay(folding, "a", 1)
        _until(lambda: totals(folding).get("a"), sum_of_a)
    _pay(folding, "b", "much")
    _until(lambda: len(rows(_LETTERS)), 1)
    _until(lambda: rows("SELECT count(*) FROM tidegate.outbox")[0][0], 0)
    letters = rows(_LETTERS)
    assert worker.stop() == 0
    _lose_database(folding, stack)

    _made_again(folding)
    worker = _work(folding)
    _until(lambda: totals(folding), {"a": 2})
    _pay(folding, "a", 1)
    _until(lambda: totals(folding), {"a": 3})

    assert rows(_LETTERS) == letters
    assert worker.stop() == 0
