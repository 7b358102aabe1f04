"""Pause, resume and explain as an operator types them, with workers as processes that obey."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import asyncpg
import pytest

from tests.acceptance.cli import Cli, Worker

pytestmark = pytest.mark.timeout(180)
# Workers look once a second: what is sent after a pause is not to be quicker than they are.
ALL_STARTS_ARE_FRESH = True

Rows = Callable[[str], list[asyncpg.Record]]
_DEADLINE_SECONDS = 50


@pytest.fixture(scope="module")
def token(ready_cli: Cli) -> str:
    made = ready_cli.run("tokens", "create", "olga", "--bootstrap")
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


@pytest.fixture(scope="module")
def operator(ready_cli: Cli, token: str) -> Iterator[Cli]:
    """The same service, typed by the bearer of a token."""
    with_token = Cli({**ready_cli.environment, "TIDEGATE_TOKEN": token}, is_warm=ready_cli.is_warm)
    yield with_token
    with_token.close()


@pytest.fixture
def workers(ready_cli: Cli) -> Iterator[list[Worker]]:
    """Two processes of the ledger, each with one of the two partitions."""
    running = [Worker(ready_cli.start("run", "ledger")) for _ in range(2)]
    for worker in running:
        worker.wait_for("worker.started")
    yield running
    for worker in running:
        if worker.process.poll() is None:
            worker.stop()


def _send(cli: Cli, payment: str, *more: str, key: str = "k") -> None:
    data = json.dumps({"payment": payment, "cents": 5})
    topic = f"{cli.environment['SMALL_PREFIX']}.payments"
    sent = cli.run("send", topic, "--type", "payment.made", "--json", data, "--key", key, *more)
    assert sent.returncode == 0, sent.stderr


def _until(rows: Rows, query: str, wanted: Any) -> None:
    """Returns once the first column of the query's rows is `wanted`."""
    give_up_at = time.monotonic() + _DEADLINE_SECONDS
    found: list[Any] = []
    while time.monotonic() < give_up_at:
        found = [row[0] for row in rows(query)]
        if found == wanted:
            return
        time.sleep(0.05)  # rows in a database tell nobody of their change
    raise AssertionError(f"{query}: {found}, not {wanted}")


_STATES = (
    "SELECT p.state FROM tidegate.presence AS p JOIN tidegate.job AS j ON j.id = p.job "
    "WHERE j.code = 'ledger' AND seen_at > now() - interval '20 s' ORDER BY p.topic, p.partition"
)
_OWNERS = (
    "SELECT count(DISTINCT p.owner) FROM tidegate.presence AS p JOIN tidegate.job AS j ON j.id = p.job "
    "WHERE j.code = 'ledger' AND p.state <> 'released'"
)


def _paid(rows: Rows) -> set[str]:
    return {row["id"] for row in rows("SELECT id FROM payment")}


def _job(cli: Cli, code: str = "ledger") -> dict[str, Any]:
    return next(job for job in cli.json("status")["jobs"] if job["code"] == code)


def test_pause_without_a_token_is_refused(ready_cli: Cli, rows: Rows) -> None:
    """Exit 3 and the remedy; nothing is paused, and the attempt is in the audit."""
    refused = ready_cli.run("pause", "ledger", "--reason", "just so")
    assert refused.returncode == 3
    assert "TIDEGATE_TOKEN" in refused.stderr
    assert rows("SELECT id FROM tidegate.intent") == []
    assert [row["outcome"] for row in rows("SELECT outcome FROM tidegate.audit WHERE action = 'job:pause'")] == [
        "denied"
    ]


def test_pause_is_obeyed_within_two_seconds_by_every_worker(workers: list[Worker], operator: Cli, rows: Rows) -> None:
    """Both processes rest in time, the status and explain say why, and nothing that comes is begun."""
    _until(rows, _OWNERS, [2])
    _until(rows, _STATES, ["caught_up", "caught_up"])

    paused = operator.json("pause", "ledger", "--reason", "bank is closed")

    began = datetime.fromisoformat(paused["jobs"][0]["pause"]["since"])
    obeyed = [datetime.fromisoformat(worker.wait_for("partition.paused")["timestamp"]) for worker in workers]
    assert max((each - began).total_seconds() for each in obeyed) <= 2.0
    _until(rows, _STATES, ["paused", "paused"])
    _send(operator, "while-paused")
    job = _job(operator)
    assert (job["verdict"], job["intents"][0]["by"], job["intents"][0]["reason"]) == (
        "PAUSED",
        "olga",
        "bank is closed",
    )
    shown = operator.run("status", "--fail-if-late")
    assert "ledger: all of it is paused by olga until somebody resumes it: bank is closed" in shown.stdout
    assert "while-paused" not in _paid(rows)


def test_pause_survives_a_restart_and_ends_with_resume(operator: Cli, rows: Rows) -> None:
    """The workers of the test before have ended; a new one begins nothing until somebody resumes."""
    again = operator.run("pause", "ledger", "--reason", "again")
    assert (again.returncode, "nothing to do, it is paused by olga" in again.stdout) == (0, True)
    worker = Worker(operator.start("run", "ledger"))
    worker.wait_for("partition.paused", '"partition": 0')
    worker.wait_for("partition.paused", '"partition": 1')
    _until(rows, _STATES, ["paused", "paused"])
    assert "while-paused" not in _paid(rows)

    resumed = operator.run("resume", "ledger")

    assert (resumed.returncode, "resumed; it was paused by olga" in resumed.stdout) == (0, True)
    _until(rows, "SELECT id FROM payment WHERE id = 'while-paused'", ["while-paused"])
    assert "nothing to resume" in operator.run("resume", "ledger").stdout
    assert worker.stop() == 0


def test_pause_for_a_while_ends_by_itself(workers: list[Worker], operator: Cli, rows: Rows) -> None:
    """--for 15s: nobody has to remember it."""
    _until(rows, _OWNERS, [2])
    paused = operator.json("pause", "ledger", "--reason", "a moment", "--for", "15s")
    for worker in workers:
        worker.wait_for("partition.paused")  # obeyed within two seconds
    _send(operator, "after-a-moment")
    _until(rows, "SELECT id FROM payment WHERE id = 'after-a-moment'", ["after-a-moment"])
    [row] = rows("SELECT now() >= until AS is_over, ended_at FROM tidegate.intent ORDER BY id DESC LIMIT 1")
    assert (row["is_over"], row["ended_at"]) == (True, None), "it was not resumed by hand"
    assert paused["jobs"][0]["pause"]["until"] is not None


def test_one_partition_and_one_tenant_rest_alone(workers: list[Worker], operator: Cli, rows: Rows) -> None:
    """What is not named goes on; explain says for each what is in its way."""
    topic = f"{operator.environment['SMALL_PREFIX']}.payments"
    for key in ("k", "other", "third", "fourth"):
        _send(operator, f"spread-{key}", key=key)
    _until(rows, "SELECT count(*) FROM payment WHERE id LIKE 'spread-%'", [4])
    assert operator.run("pause", "ledger", "--partition", f"{topic}:0", "--reason", "looking").returncode == 0
    _until(rows, _STATES, ["paused", "caught_up"])
    assert operator.run("resume", "ledger", "--partition", f"{topic}:0").returncode == 0
    _until(rows, _STATES, ["caught_up", "caught_up"])

    assert operator.run("pause", "ledger", "--tenant", "acme", "--reason", "acme asked").returncode == 0
    _send(operator, "before-acme")
    _send(operator, "of-acme", "--tenant", "acme")
    _send(operator, "behind-acme")
    _until(rows, "SELECT id FROM payment WHERE id LIKE '%-acme'", ["before-acme"])
    _until(rows, f"SELECT count(*) FROM ({_STATES}) AS s (state) WHERE state = 'paused'", [1])
    causes = {each["cause"] for each in operator.json("explain", "ledger")["partitions"]}
    assert causes == {"tenant_paused", "caught_up"}
    assert operator.run("resume", "ledger", "--tenant", "acme").returncode == 0
    _until(rows, "SELECT id FROM payment WHERE id LIKE '%-acme' ORDER BY id", ["before-acme", "behind-acme", "of-acme"])


def test_all_jobs_are_paused_and_resumed_at_once(operator: Cli) -> None:
    """`pause --all` before the database moves, `resume --all` after; also jobs that never started."""
    paused = operator.json("pause", "--all", "--reason", "database moves")
    assert [(each["job"], each["is_new"]) for each in paused["jobs"]] == [("ledger", True), ("search", True)]
    assert {_job(operator, code)["verdict"] for code in ("ledger", "search")} == {"PAUSED"}
    resumed = operator.json("resume", "--all")
    assert [len(each["ended"]) for each in resumed["jobs"]] == [1, 1]


def test_explain_needs_no_token_and_names_the_next_command(ready_cli: Cli) -> None:
    """Nothing runs any more: the answer names the command that would help, and asking is no error."""
    told = ready_cli.run("explain", "ledger")
    assert told.returncode == 0, told.stderr
    assert "nobody owns it" in told.stdout
    assert "next: tidegate run ledger" in told.stdout
    assert "runbook: docs/runbooks/ledger.md" in told.stdout
    one = ready_cli.json("explain", "search:1")
    assert [(each["partition"], each["cause"]) for each in one["partitions"]] == [(1, "never_owned")]


@pytest.mark.parametrize(
    "words, complaint",
    [
        (("pause",), "name a job, or say --all"),
        (("pause", "ledger", "--reason", "r", "--for", "soon"), "--for 'soon' is no duration"),
        (("pause", "ledger", "--reason", "r", "--partition", "x"), "neither a number nor TOPIC:NUMBER"),
        (("explain", "nobody"), "no job 'nobody'"),
        (("explain", "ledger:x:y"), "neither a number nor TOPIC:NUMBER"),
    ],
)
def test_words_that_mean_nothing_are_misuse(ready_cli: Cli, words: tuple[str, ...], complaint: str) -> None:
    """Exit 2 with what to write instead."""
    done = ready_cli.run(*words)
    assert (done.returncode, complaint in done.stderr) == (2, True)
