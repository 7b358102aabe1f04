"""A worker that is asked to stop in the middle of its work: fast, slow and hanging handlers at once."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable

import asyncpg
import pytest

from tests.acceptance.cli import Cli, Worker

pytestmark = pytest.mark.timeout(120)

Rows = Callable[[str], list[asyncpg.Record]]

_GRACE_SECONDS = 5.0
# Two keys that the producer's partitioner puts on different partitions of two: each lane has its own.
_KEYS = ("a", "d")

_OPEN_TRANSACTIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' "
    "AND datname = current_database() AND application_name LIKE 'tidegate%'"
)


def _send(cli: Cli, payment: str, key: str) -> None:
    topic = f"{cli.environment['SMALL_PREFIX']}.payments"
    data = json.dumps({"payment": payment, "cents": 5})
    sent = cli.run("send", topic, "--type", "payment.made", "--json", data, "--key", key)
    assert sent.returncode == 0, sent.stderr


def _start(cli: Cli) -> Worker:
    # A session that outlives the test: whoever takes over in time took over because the group was left.
    worker = Worker(
        cli.start("run", "ledger", TIDEGATE_DRAIN_TIMEOUT=str(_GRACE_SECONDS), TIDEGATE_KAFKA_SESSION_TIMEOUT="45")
    )
    for _ in range(2):
        worker.wait_for("partition.owned")
    return worker


def test_stop_settles_what_ends_in_time_and_cuts_off_what_hangs(ready_cli: Cli, rows: Rows) -> None:
    """Case 122, G10: exit within the grace period and with code 0, the group left, and nothing done twice or lost."""
    worker = _start(ready_cli)
    for key in _KEYS:
        _send(ready_cli, f"fast-{key}", key)
        worker.wait_for("batch.settled")
    places = rows("SELECT partition, next_offset FROM tidegate.position WHERE next_offset > 0")
    assert len(places) == 2, "both keys went to one partition: choose others"
    _send(ready_cli, "hung-1", _KEYS[0])
    _send(ready_cli, "slow-1", _KEYS[1])
    _until(rows, _OPEN_TRANSACTIONS, 2)

    asked = time.monotonic()
    worker.process.send_signal(signal.SIGTERM)
    worker.wait_for("process.stop_asked")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(timeout=60) == 0
    assert time.monotonic() - asked <= _GRACE_SECONDS + 1
    assert [row["id"] for row in rows("SELECT id FROM payment ORDER BY id")] == ["fast-a", "fast-d", "slow-1"]

    asked = time.monotonic()
    successor = _start(ready_cli)
    assert time.monotonic() - asked < 30
    _until(rows, _OPEN_TRANSACTIONS, 1)  # what hung is handled again
    successor.process.send_signal(signal.SIGKILL)
    hung = rows(f"SELECT next_offset FROM tidegate.position WHERE partition = {_partition_of_hung(places, rows)}")
    assert hung[0]["next_offset"] == 1


def _partition_of_hung(places: list[asyncpg.Record], rows: Rows) -> int:
    moved = {row["partition"] for row in rows("SELECT partition FROM tidegate.position WHERE next_offset = 2")}
    (partition,) = {row["partition"] for row in places} - moved
    return int(partition)


def _until(rows: Rows, query: str, count: int) -> None:
    give_up_at = time.monotonic() + 40
    while rows(query)[0][0] < count:
        assert time.monotonic() < give_up_at, f"not reached: {query}"
