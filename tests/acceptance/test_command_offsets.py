"""`tidegate offsets` as an operator types it: shown without a token, moved only paused, permitted, with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest

from tests.acceptance.cli import Cli, Worker

pytestmark = pytest.mark.timeout(180)

Rows = Callable[[str], list[asyncpg.Record]]
PAYMENTS = 4


@pytest.fixture(scope="module")
def where(ready_cli: Cli) -> str:
    """The partition, as TOPIC:P, in which a worker that has ended since handled all payments."""
    topic = f"{ready_cli.environment['SMALL_PREFIX']}.payments"
    for n in range(PAYMENTS):
        data = json.dumps({"payment": f"p{n}", "cents": n})
        done = ready_cli.run("send", topic, "--type", "payment.made", "--key", "k", "--json", data)
        assert done.returncode == 0, done.stderr
    worker = Worker(ready_cli.start("run", "ledger"))
    found = worker.wait_for("batch.settled")
    while found["next_offset"] < PAYMENTS:
        found = worker.wait_for("batch.settled")
    assert worker.stop() == 0
    return f"{found['topic']}:{found['partition']}"


@pytest.fixture(scope="module")
def operator_cli(admin_cli: Cli) -> Iterator[Cli]:
    made = admin_cli.run("tokens", "create", "olaf", "--role", "operator")
    assert made.returncode == 0, made.stderr
    cli = Cli({**admin_cli.environment, "TIDEGATE_TOKEN": made.stdout.strip()})
    yield cli
    cli.close()


def _shown(cli: Cli, where: str) -> Any:
    topic, _, partition = where.rpartition(":")
    shown = cli.json("offsets", "show", "ledger")["partitions"]
    return next(each for each in shown if (each["topic"], each["partition"]) == (topic, int(partition)))


def test_plan_changes_nothing_and_names_the_pause(ready_cli: Cli, where: str) -> None:
    """Looking is free: no token, exit 0, and the words to type before it may be done."""
    done = ready_cli.run("offsets", "set", "ledger", where, "--to", "1")

    assert done.returncode == 0, done.stderr
    assert "are read again" in done.stdout
    assert "nothing was changed" in done.stdout
    assert f"tidegate pause ledger --partition {where}" in done.stdout
    assert _shown(ready_cli, where)["position"] == PAYMENTS


def test_unpaused_unreasoned_and_unpermitted_moves_are_refused(
    ready_cli: Cli, admin_cli: Cli, operator_cli: Cli, where: str, rows: Rows
) -> None:
    """Exit 3 each time, one line that says what is missing, and each attempt in the audit."""
    move = ("offsets", "set", "ledger", where, "--to", "1", "--yes")
    unpaused = admin_cli.run(*move, "--reason", "again")
    assert admin_cli.run("pause", "ledger", "--reason", "offsets", "--for", "10m").returncode == 0
    unreasoned = admin_cli.run(*move)
    of_an_operator = operator_cli.run(*move, "--reason", "again")
    of_nobody = ready_cli.run(*move, "--reason", "again")

    told = [unpaused, unreasoned, of_an_operator, of_nobody]
    assert [done.returncode for done in told] == [3, 3, 3, 3], [done.stderr for done in told]
    for done, words in zip(told, ["is not paused", "--reason", "role admin", "TIDEGATE_TOKEN"], strict=True):
        assert words in done.stderr
    assert _shown(ready_cli, where)["position"] == PAYMENTS
    outcomes = rows("SELECT outcome FROM tidegate.audit WHERE action = 'offsets:set'")
    assert [row["outcome"] for row in outcomes] == ["denied"] * 4


def test_moved_back_and_forward_with_the_range_kept(admin_cli: Cli, operator_cli: Cli, where: str, rows: Rows) -> None:
    """An admin goes back, an operator skips: done within the pause, and told by `show` and the next worker."""
    assert admin_cli.run("pause", "ledger", "--reason", "offsets", "--for", "10m").returncode == 0
    back = admin_cli.run("offsets", "set", "ledger", where, "--to", "1", "--reason", "again", "--yes")
    assert back.returncode == 0, back.stderr
    assert "tidegate resume ledger" in back.stdout
    skip = operator_cli.run("offsets", "skip", "ledger", where, "--to", "3", "--reason", "not these", "--yes")
    assert skip.returncode == 0, skip.stderr
    shown = _shown(admin_cli, where)
    assert (shown["position"], shown["state"]) == (3, "ok")
    [kept] = shown["skipped"]
    assert (kept["first_offset"], kept["last_offset"], kept["actor"], kept["reason"]) == (1, 2, "olaf", "not these")
    assert admin_cli.run("resume", "ledger").returncode == 0

    worker = Worker(admin_cli.start("run", "ledger"))
    settled = worker.wait_for("batch.settled")
    assert worker.stop() == 0

    assert (settled["first_offset"], settled["duplicates"]) == (3, 1)
    assert rows("SELECT count(*) FROM payment")[0][0] == PAYMENTS


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("skip", "ledger", "nowhere:0", "--to", "1"), "has no position in nowhere:0"),
        (("accept-gap", "ledger", "--all"), "nothing in any partition needs it"),
    ],
)
def test_wrong_call_names_the_thing(ready_cli: Cli, where: str, arguments: tuple[str, ...], words: str) -> None:
    """Exit 2: there is nothing to move, whoever asks."""
    done = ready_cli.run("offsets", *arguments)

    assert done.returncode == 2
    assert words in done.stderr
