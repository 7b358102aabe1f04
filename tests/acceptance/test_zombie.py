"""A worker that is frozen in the middle of its work, beyond its session, and comes back as a zombie."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable

import asyncpg
import pytest

from tests.acceptance.cli import Cli, Worker

pytestmark = pytest.mark.timeout(180)

Rows = Callable[[str], list[asyncpg.Record]]

_OPEN = (
    "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' "
    "AND datname = current_database() AND application_name LIKE 'tidegate%'"
)
# The shortest session that a broker takes by default.
_TIMES = {
    "TIDEGATE_KAFKA_SESSION_TIMEOUT": "6",
    "TIDEGATE_KAFKA_HEARTBEAT_INTERVAL": "1",
    "TIDEGATE_KAFKA_REBALANCE_TIMEOUT": "10",
    "TIDEGATE_DRAIN_TIMEOUT": "4",
}


def _send(cli: Cli, payment: str) -> None:
    data = json.dumps({"payment": payment, "cents": 5})
    topic = f"{cli.environment['SMALL_PREFIX']}.payments"
    sent = cli.run("send", topic, "--type", "payment.made", "--json", data, "--key", "k")
    assert sent.returncode == 0, sent.stderr


def _start(cli: Cli) -> Worker:
    worker = Worker(cli.start("run", "ledger", **_TIMES))
    worker.wait_for("partition.owned")
    worker.wait_for("partition.owned")
    return worker


def test_a_zombie_changes_nothing_and_is_a_member_again(ready_cli: Cli, rows: Rows) -> None:
    """G2 and G9, the recovery table's last line: frozen with a transaction open, thrown out of the group, its
    partitions another's. What it had begun is done once, by the successor; awake again it works on beside it."""
    frozen = _start(ready_cli)
    _send(ready_cli, "slow-1")
    _until(rows, _OPEN, 1)
    frozen.process.send_signal(signal.SIGSTOP)
    try:
        successor = _start(ready_cli)  # owns both partitions: the frozen one is no member any more
        successor.wait_for("batch.settled", '"applied": 1')
        epoch = rows("SELECT max(epoch) FROM tidegate.position")[0][0]
    finally:
        frozen.process.send_signal(signal.SIGCONT)
    frozen.wait_for("partition.owned")  # joined anew, and given its share
    _send(ready_cli, "after")
    _until(rows, "SELECT sum(next_offset) FROM tidegate.position", 2)
    assert rows("SELECT min(epoch) FROM tidegate.position")[0][0] > epoch, "the zombie has kept what it had"
    assert frozen.stop() == 0
    assert successor.stop() == 0

    assert [row["id"] for row in rows("SELECT id FROM payment ORDER BY id")] == ["after", "slow-1"]
    assert rows("SELECT count(*) FROM tidegate.dead_letter")[0][0] == 0
    settled = [json.loads(line) for line in frozen.lines if '"event": "batch.settled"' in line]
    assert all(batch["first_offset"] > 0 for batch in settled), "it says that it settled what its successor did"


def _until(rows: Rows, query: str, count: int) -> None:
    give_up_at = time.monotonic() + 40
    while (rows(query)[0][0] or 0) < count:
        assert time.monotonic() < give_up_at, f"not reached: {query}"
