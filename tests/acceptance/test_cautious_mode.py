"""A record that ends its process each time it is handled, and processes that are started again each time."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import asyncpg
import pytest

from tests.acceptance.cli import Cli, Worker

pytestmark = pytest.mark.timeout(150)

Rows = Callable[[str], list[asyncpg.Record]]

# Two deaths at one place tell nothing of which record; then each of the attempts that the policy allows, alone.
_DEATHS = 2 + 3


def _send(cli: Cli, payment: str, key: str) -> None:
    data = json.dumps({"payment": payment, "cents": 5})
    topic = f"{cli.environment['SMALL_PREFIX']}.payments"
    sent = cli.run("send", topic, "--type", "payment.made", "--json", data, "--key", key)
    assert sent.returncode == 0, sent.stderr


def _start(cli: Cli) -> Worker:
    # A static member: its partitions are given back to it at once, without waiting for the dead one's session to end.
    return Worker(cli.start("run", "ledger", SMALL_KILLER="killer", TIDEGATE_KAFKA_INSTANCE_ID="ledger-0"))


def test_a_record_that_kills_its_process_becomes_a_dead_letter(ready_cli: Cli, rows: Rows) -> None:
    """G1, G6: else one record stops a partition, and with it every process that takes it up, for ever."""
    # Keys of one partition of two: behind a letter of its own key an event would be parked.
    for payment, key in (("killer", "a"), ("next", "b"), ("last", "c")):
        _send(ready_cli, payment, key)
    for _ in range(_DEATHS):
        assert _start(ready_cli).process.wait(timeout=60) == -signal.SIGKILL
    survivor = _start(ready_cli)
    survivor.wait_for("dead_letter.kept", "worker_crashed")
    survivor.wait_for("batch.settled", '"next_offset": 3')
    assert survivor.stop() == 0
    assert [row["id"] for row in rows("SELECT id FROM payment ORDER BY id")] == ["last", "next"]
    (letter,) = rows("SELECT reason, value, attempts FROM tidegate.dead_letter")
    assert letter["reason"] == "worker_crashed"
    assert b"killer" in letter["value"]
    assert [row["owner"] for row in rows("SELECT DISTINCT owner FROM tidegate.position")] == [None]


def test_stops_are_no_deaths(ready_cli: Cli, rows: Rows) -> None:
    """A deployment stops each process in good order: nothing becomes suspect by that."""
    for _ in range(2):
        worker = _start(ready_cli)
        worker.wait_for("partition.owned")
        assert worker.stop() == 0
    worker = _start(ready_cli)
    worker.wait_for("partition.owned")
    assert worker.stop() == 0
    assert not any("partition.suspect" in line for line in worker.lines)
