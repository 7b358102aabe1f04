"""A service's first day on the command line: migrate, create topics, send, run, look, backfill, stop."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import httpx
import pytest

from tests.acceptance.cli import Cli, Worker

pytestmark = pytest.mark.timeout(150)
ALL_STARTS_ARE_FRESH = True

Rows = Callable[[str], list[asyncpg.Record]]


@pytest.fixture(scope="module")
def worker(ready_cli: Cli) -> Iterator[Worker]:
    """All jobs, running; one process for all tests, because each start costs seconds."""
    running = Worker(ready_cli.start("run", "--all"))
    running.port = running.wait_for("worker.started")["port"]
    running.wait_for("partition.owned")
    yield running
    if running.process.poll() is None:
        running.stop()


def _send(cli: Cli, payment: str, *more: str, cents: int = 5) -> str:
    data = json.dumps({"payment": payment, "cents": cents})
    topic = f"{cli.environment['SMALL_PREFIX']}.payments"
    sent = cli.run("send", topic, "--type", "payment.made", "--json", data, "--key", "k", *more)
    assert sent.returncode == 0, sent.stderr
    return sent.stdout.strip()


def _job(cli: Cli, code: str) -> dict[str, Any]:
    return next(job for job in cli.json("status")["jobs"] if job["code"] == code)


def test_migrate_is_checked_done_once_and_then_up_to_date(cli: Cli) -> None:
    """Two replicas that start together must not fail or do it twice."""
    assert cli.run("migrate", "--check").returncode == 1
    with ThreadPoolExecutor(2) as both:
        done = [run.result() for run in [both.submit(cli.json, "migrate") for _ in range(2)]]
    assert min(len(each["migrations"]) for each in done) == 0
    assert sorted(len(each["service_migrations"]) for each in done) == [0, 1]
    assert cli.run("migrate", "--check").returncode == 0
    assert "nothing to do" in cli.run("migrate").stdout


def test_topics_are_created_once_with_their_partitions(cli: Cli) -> None:
    """A release runs the command each time; a topic that is there keeps its records and its partitions."""
    prefix = cli.environment["SMALL_PREFIX"]
    created = cli.json("topics", "create", "--also", f"{prefix}.extra:4")
    assert [(each["name"], each["partitions"], each["is_new"]) for each in created] == [
        (f"{prefix}.payments", 2, True),
        (f"{prefix}.ledger.dlq", 3, True),
        (f"{prefix}.search.dlq", 3, True),
        (f"{prefix}.extra", 4, True),
        ("tidegate.audit", 1, created[-1]["is_new"]),
    ]
    again = cli.run("topics", "create")
    assert again.returncode == 0
    assert "created" not in again.stdout


def test_sent_event_is_applied_once_and_status_says_so(worker: Worker, ready_cli: Cli, rows: Rows) -> None:
    """G2 from the outside: the same id sent twice changes one row."""
    identity = _send(ready_cli, "p1")
    _send(ready_cli, "p1-again", "--id", identity)
    worker.wait_for('"job": "ledger"', '"duplicates": 1')
    assert [tuple(row) for row in rows("SELECT id, cents FROM payment WHERE id LIKE 'p1%'")] == [("p1", 5)]
    job = _job(ready_cli, "ledger")
    assert (job["records_behind"], job["seconds_behind"], job["verdict"]) == (0, 0.0, "OK")
    assert job["partitions"][0]["owner"]


def test_endpoint_answers_while_the_worker_runs(worker: Worker) -> None:
    """Kubernetes decides by these answers whether to send traffic or to kill."""
    with httpx.Client(base_url=f"http://127.0.0.1:{worker.port}", trust_env=False) as client:
        assert client.get("/livez").status_code == 200
        assert "tidegate_records_total" in client.get("/metrics").text


def test_log_lines_of_a_partition_tell_their_job(worker: Worker) -> None:
    """One process runs several jobs on one topic: a line that does not say whose partition it means helps nobody."""
    owned = [json.loads(line) for line in worker.lines if "partition.owned" in line]

    assert {line["job"] for line in owned} <= {"ledger", "search"}
    assert owned


def test_rejected_event_is_a_dead_letter_in_the_status(worker: Worker, ready_cli: Cli) -> None:
    """A business no must show where the operator looks first."""
    _send(ready_cli, "p-negative", cents=-1)
    worker.wait_for("dead_letter.kept")
    assert _job(ready_cli, "ledger")["dead_letters"] == {"dead": 1}


def test_sigterm_settles_and_ends_with_zero(worker: Worker) -> None:
    """G10: an orderly end, within the grace period."""
    assert worker.stop(signal.SIGTERM) == 0


def test_stopped_service_is_shown_late(ready_cli: Cli) -> None:
    """G11: nobody runs, and the status still tells seconds."""
    _send(ready_cli, "p-waiting", "--app", "small:app")
    job = _job(ready_cli, "search")
    assert job["records_behind"] >= 1
    assert job["seconds_behind"] > 0
    checked = ready_cli.run("status", "--fail-if-late")
    assert checked.returncode == (1 if "LATE" in checked.stdout else 0)


def test_event_that_a_job_would_refuse_is_not_sent(ready_cli: Cli) -> None:
    """A typing error found before Kafka has it is no dead letter."""
    topic = f"{ready_cli.environment['SMALL_PREFIX']}.payments"
    refused = ready_cli.run("send", topic, "--type", "payment.made", "--json", '{"payment": "secret-name"}')
    assert refused.returncode == 2
    assert "cents" in refused.stderr
    assert "secret-name" not in refused.stderr


def test_checkpoint_is_made_listed_used_and_removed(admin_cli: Cli, rows: Rows) -> None:
    """A backfill from a checkpoint passes the live consumer by and repairs nothing that is whole."""
    made = admin_cli.json("checkpoint", "create", "first", "--at", "beginning")
    assert {each["next_offset"] for each in made["offsets"]} == {0}
    twice = admin_cli.run("checkpoint", "create", "first", "--at", "end")
    assert (twice.returncode, "exists already" in twice.stderr) == (2, True)
    assert [each["name"] for each in admin_cli.json("checkpoint", "list")] == ["first"]
    before = rows("SELECT count(*) FROM payment")
    report = admin_cli.json("run", "ledger", "--backfill", "--from-checkpoint", "first")
    assert report["is_done"]
    assert report["progress"]["done"] == report["progress"]["total"]
    assert len(rows("SELECT id FROM payment")) >= before[0][0]
    assert admin_cli.run("checkpoint", "delete", "first").returncode == 2
    assert admin_cli.run("checkpoint", "delete", "first", "--yes").returncode == 0
    assert admin_cli.json("checkpoint", "list") == []


def test_check_finds_everything_and_reads_nothing(ready_cli: Cli, rows: Rows) -> None:
    """A deployment asks beforehand; asking must not take partitions from those that work."""
    before = rows("SELECT job, topic, partition, next_offset, epoch FROM tidegate.position ORDER BY 1, 2, 3")
    checked = ready_cli.run("run", "--all", "--check")
    assert checked.returncode == 0, checked.stderr
    assert "everything ledger, search need is there" in checked.stderr
    assert rows("SELECT job, topic, partition, next_offset, epoch FROM tidegate.position ORDER BY 1, 2, 3") == before
