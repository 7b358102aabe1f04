"""A backfill as a process that is killed, and the same command typed again."""

import asyncio
import json
from collections.abc import Callable

import asyncpg
import httpx
import pytest

from tests.acceptance.cli import Cli, Worker
from tidegate.jobs.publishing import cloud_event
from tidegate_kernel.kafka import open_writer
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import Outgoing

PAYMENTS = 3000


@pytest.mark.timeout(180)
def test_backfill_resumes_after_kill(admin_cli: Cli, rows: Callable[[str], list[asyncpg.Record]]) -> None:
    """Case 71: kill -9 in the middle; the same command waits for the dead one's lease, goes on where its last batch
    settled, and ends with every document there, while the job's live positions were never touched."""
    asyncio.run(_produce(admin_cli))
    command = ("run", "search", "--backfill", "--from-beginning")
    killed = Worker(admin_cli.start(*command, SMALL_SLOWNESS_SECONDS="0.002"))
    killed.wait_for("batch.settled")
    killed.process.kill()
    killed.process.wait()
    settled = rows("SELECT sum(next_offset) FROM tidegate.position WHERE run > 0")[0][0]
    assert 0 < settled < PAYMENTS, "the kill has to hit unfinished work"

    resumed = admin_cli.run(*command, "--json")

    assert resumed.returncode == 0, resumed.stderr
    report = json.loads(resumed.stdout)
    assert report["was_resumed"] is True
    assert report["tally"]["records"] == PAYMENTS - settled, "nothing that had settled is read again"
    assert _documents(admin_cli) == PAYMENTS
    assert rows("SELECT count(*) FROM tidegate.position WHERE run = 0")[0][0] == 0


async def _produce(cli: Cli) -> None:
    topic = f"{cli.environment['SMALL_PREFIX']}.payments"
    async with open_writer(KafkaSettings(bootstrap=cli.environment["TIDEGATE_KAFKA_BOOTSTRAP"])) as writer:
        assert not any(await writer.write([_payment(topic, n) for n in range(PAYMENTS)]))


def _payment(topic: str, number: int) -> Outgoing:
    told = {"id": f"paid-{number}", "source": "tests", "type": "payment.made"}
    return cloud_event(topic, {"payment": f"p{number}", "cents": number}, key=f"p{number}", attributes=told)


def _documents(cli: Cli) -> int:
    index = f"{cli.environment['TIDEGATE_ELASTICSEARCH_URL']}/{cli.environment['SMALL_PREFIX']}-payments"
    httpx.post(f"{index}/_refresh", trust_env=False).raise_for_status()
    count: int = httpx.get(f"{index}/_count", trust_env=False).raise_for_status().json()["count"]
    return count


def test_unreachable_sink_is_named(ready_cli: Cli) -> None:
    """A check that cannot reach the store says in one line which, where, and what setting tells it."""
    nobody = "http://127.0.0.1:9"

    done = ready_cli.run("run", "search", "--check", TIDEGATE_ELASTICSEARCH_URL=nobody, TIDEGATE_LOG_LEVEL="error")

    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"elasticsearch at {nobody} (TIDEGATE_ELASTICSEARCH_URL)" in done.stderr


def test_settings_that_kafka_refuses_end_the_worker(ready_cli: Cli) -> None:
    """A session time-out below the broker's limit can never join: one line and exit 2, not a restart for ever."""
    impatient = {"TIDEGATE_KAFKA_SESSION_TIMEOUT": "1", "TIDEGATE_KAFKA_HEARTBEAT_INTERVAL": "0.3"}

    done = ready_cli.run("run", "ledger", TIDEGATE_LOG_LEVEL="error", **impatient)

    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "InvalidSessionTimeout" in done.stderr
