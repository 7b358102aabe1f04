"""A service that reaches Postgres only through PgBouncer in transaction mode, on five server connections."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator

import asyncpg
import httpx
import pytest

from tests.acceptance.cli import Cli, Worker
from tests.bouncer import running_bouncer
from tidegate.jobs.publishing import cloud_event
from tidegate.stack.names import StackAddresses
from tidegate_kernel.kafka import open_writer
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import Outgoing

pytestmark = pytest.mark.timeout(180)

Rows = Callable[[str], list[asyncpg.Record]]

ROUND = 400
ROUNDS = 3


@pytest.fixture(scope="module")
def pooled_cli(cli: Cli, stack: StackAddresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """The small service, as yet without tables and topics, told nothing but the pooler's address."""
    with running_bouncer(stack.postgres_dsn, tmp_path_factory.mktemp("bouncer"), size=5) as bouncer:
        database = cli.environment["TIDEGATE_POSTGRES_DSN"]
        made = Cli({**cli.environment, "TIDEGATE_POSTGRES_DSN": bouncer.dsn(database)})
        yield made
        made.close()


def test_workers_come_and_go_and_apply_once(pooled_cli: Cli, rows: Rows) -> None:
    """G2, G9 and Case 115 from the outside: migrations, consumer, projection, relay and status share five connections
    with other processes, members join and leave under load, and every payment counts once."""
    migrated = pooled_cli.json("migrate")
    assert migrated["migrations"]
    assert pooled_cli.run("topics", "create").returncode == 0
    workers: list[Worker] = []
    for number in range(ROUNDS):
        workers.append(_started(pooled_cli))
        asyncio.run(_produce(pooled_cli, range(number * ROUND, (number + 1) * ROUND)))
        if len(workers) > 1:
            # In the middle of what was just sent: its partitions go over to the one that has just joined.
            workers[-1].wait_for("partition.owned")
            assert workers.pop(0).stop() == 0

    _until_caught_up(pooled_cli)

    assert workers.pop().stop() == 0
    events = ROUND * ROUNDS
    told = rows("SELECT count(*) AS applied, count(DISTINCT id) AS payments, sum(cents) AS cents FROM public.payment")
    assert tuple(told[0]) == (events, events, sum(range(events)))
    assert _documents(pooled_cli) == events
    assert rows("SELECT count(*) FROM tidegate.dead_letter")[0][0] == 0


def test_backfill_runs_behind_the_pooler(pooled_cli: Cli) -> None:
    """Its lease, positions and progress are in the database like all the rest; the token and the audit, too."""
    token = pooled_cli.run("tokens", "create", "tests", "--bootstrap")
    assert token.returncode == 0, token.stderr

    done = pooled_cli.run(
        "run", "search", "--backfill", "--from-beginning", "--json", TIDEGATE_TOKEN=token.stdout.strip()
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tally"]["records"] == ROUND * ROUNDS
    assert _documents(pooled_cli) == ROUND * ROUNDS


def _started(cli: Cli) -> Worker:
    worker = Worker(cli.start("run", "--all"))
    worker.wait_for("worker.started")
    return worker


def _until_caught_up(cli: Cli) -> None:
    deadline = time.monotonic() + 60
    while any(job["records_behind"] for job in cli.json("status")["jobs"]):
        assert time.monotonic() < deadline, "the workers do not catch up"


async def _produce(cli: Cli, numbers: range) -> None:
    topic = f"{cli.environment['SMALL_PREFIX']}.payments"
    async with open_writer(KafkaSettings(bootstrap=cli.environment["TIDEGATE_KAFKA_BOOTSTRAP"])) as writer:
        assert not any(await writer.write([_payment(topic, n) for n in numbers]))


def _payment(topic: str, number: int) -> Outgoing:
    told = {"id": f"paid-{number}", "source": "tests", "type": "payment.made"}
    return cloud_event(topic, {"payment": f"p{number}", "cents": number}, key=f"p{number}", attributes=told)


def _documents(cli: Cli) -> int:
    index = f"{cli.environment['TIDEGATE_ELASTICSEARCH_URL']}/{cli.environment['SMALL_PREFIX']}-payments"
    httpx.post(f"{index}/_refresh", trust_env=False).raise_for_status()
    count: int = httpx.get(f"{index}/_count", trust_env=False).raise_for_status().json()["count"]
    return count
