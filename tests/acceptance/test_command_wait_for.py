"""`tidegate wait-for` as somebody types it who has just written an event, and the same over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.cli import Cli, Worker

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module")
def worker(ready_cli: Cli) -> Iterator[Worker]:
    """Both jobs are running."""
    running = Worker(ready_cli.start("run", "--all", TIDEGATE_HTTP_PORT="0"))
    running.port = running.wait_for("worker.started")["port"]
    yield running
    running.stop()


def ends(cli: Cli) -> dict[str, int]:
    ledger = next(job for job in cli.json("status")["jobs"] if job["code"] == "ledger")
    return {f"{each['topic']}:{each['partition']}": each["end"] for each in ledger["partitions"]}


def send(cli: Cli, payment: str, cents: int) -> str:
    """Where the event of the payment stands now."""
    topic = f"{cli.environment['SMALL_PREFIX']}.payments"
    before = ends(cli)
    data = json.dumps({"payment": payment, "cents": cents})
    done = cli.run("send", topic, "--type", "payment.made", "--key", payment, "--json", data)
    assert done.returncode == 0, done.stderr
    (place,) = (f"{where}:{end - 1}" for where, end in ends(cli).items() if end > before[where])
    return place


def wait_for(cli: Cli, job: str, place: str, *arguments: str) -> tuple[int, Any]:
    done = cli.run("wait-for", job, place, *arguments, "--json")
    return done.returncode, json.loads(done.stdout)


def asked(worker: Worker, job: str, place: str) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{worker.port}/v1/jobs/{job}/visible?offset={place}&timeout=20"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:  # loopback
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_written_event_is_visible_to_both_jobs(ready_cli: Cli, worker: Worker) -> None:
    """Exit 0: whoever searches now finds it. Of a job without readers: its handler has committed."""
    place = send(ready_cli, "paid", 5)

    for job in ("search", "ledger"):
        code, told = wait_for(ready_cli, job, place, "--timeout", "40s")
        assert (code, told["state"], told["is_visible"]) == (0, "visible", True), told
    assert asked(worker, "search", place)[0] == 200


def test_dead_record_ends_it_at_once(ready_cli: Cli, worker: Worker) -> None:
    """Exit 1 long before the time-out, with the letter's number: what to look at next."""
    place = send(ready_cli, "refused", -5)
    worker.wait_for("dead_letter.kept")

    done = ready_cli.run("wait-for", "ledger", place, "--timeout", "10m")

    assert done.returncode == 1
    assert "dead letter" in done.stdout
    assert "rejected" in done.stdout
    status, told = asked(worker, "ledger", place)
    assert (status, told["state"]) == (409, "dead")
    assert told["letter"] in done.stdout


def test_event_that_nobody_writes_is_not_visible_in_time(ready_cli: Cli, worker: Worker) -> None:
    """Exit 1, and how far it is."""
    topic = f"{ready_cli.environment['SMALL_PREFIX']}.payments"

    code, told = wait_for(ready_cli, "search", f"{topic}:0:100000", "--timeout", "1s")

    assert (code, told["state"]) == (1, "pending")
    assert "not handled yet" in told["told"]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("search", "nowhere"), "orders:3:18277"),
        (("nobody", "a:0:1"), "no job 'nobody'"),
        (("search", "others:0:1"), "does not read topic 'others'"),
        (("search", "{topic}:77:1"), "kafka has no partition"),
        (("search", "{topic}:0:1", "--timeout", "soon"), "--timeout 'soon' is no duration"),
    ],
)
def test_misuse_is_told_apart_from_waiting_in_vain(ready_cli: Cli, arguments: tuple[str, ...], words: str) -> None:
    """Exit 2: no time-out would ever help."""
    topic = f"{ready_cli.environment['SMALL_PREFIX']}.payments"

    done = ready_cli.run("wait-for", *(each.format(topic=topic) for each in arguments))

    assert done.returncode == 2, done.stdout
    assert words in done.stderr
