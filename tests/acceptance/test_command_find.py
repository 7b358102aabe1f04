"""`tidegate find` as an operator types it, beside a worker that has done its work."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.acceptance.cli import Cli, Worker

pytestmark = pytest.mark.timeout(150)

PAID = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
REFUSED = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5c"


@pytest.fixture(scope="module")
def worked(ready_cli: Cli) -> Cli:
    """One payment was applied, one refused; nothing runs any more."""
    for event_id, cents in ((PAID, 5), (REFUSED, -5)):
        data = json.dumps({"payment": event_id, "cents": cents})
        done = ready_cli.run(
            "send", f"{ready_cli.environment['SMALL_PREFIX']}.payments", "--type", "payment.made", "--id", event_id,
            "--key", "p1", "--json", data,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    worker = Worker(ready_cli.start("run", "ledger"))
    worker.wait_for("dead_letter.kept")
    assert worker.stop() == 0
    return ready_cli


def _job(found: Any, code: str) -> Any:
    return next(job for job in found["jobs"] if job["job"] == code)


def test_event_is_found_by_its_id(worked: Cli) -> None:
    """Claimed where a worker ran; the other job, never started, says so. No payload, no token."""
    found = worked.json("find", "--event-id", PAID)

    assert _job(found, "ledger")["fate"] == "claimed"
    assert _job(found, "search")["told"] == "the job was never started"


def test_dead_letter_is_found_by_its_key_and_its_payload_is_not_shown(worked: Cli) -> None:
    """The letter's number, reason and state are what the next command needs; the data is nobody's business here."""
    done = worked.run("find", "--key", "p1", "--job", "ledger")

    assert done.returncode == 0, done.stderr
    assert "ledger: dead letter" in done.stdout
    assert "rejected" in done.stdout
    assert "cents" not in done.stdout
    letter = _job(worked.json("find", "--event-id", REFUSED), "ledger")["letters"][0]
    at = f"{letter['topic']}:{letter['partition']}:{letter['offset']}"
    assert _job(worked.json("find", at), "ledger")["letters"][0]["id"] == letter["id"]


def test_what_leaves_no_trace_ends_with_1(worked: Cli) -> None:
    """A script can tell 'not found' from 'cannot ask'."""
    done = worked.run("find", "--event-id", "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4aff")

    assert done.returncode == 1
    assert "no trace of it" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((), "one of TOPIC:PARTITION:OFFSET, --event-id ID, or --key KEY"),
        (("a:0:1", "--key", "k"), "one of"),
        (("nowhere:0:1",), "no job asked about reads topic 'nowhere'"),
        (("nowhere",), "orders:3:18277"),
        (("--event-id", ""), "found by its place"),
    ],
)
def test_wrong_question_names_the_form(worked: Cli, arguments: tuple[str, ...], words: str) -> None:
    """Exit 2: the question was wrong, whatever there is to find."""
    done = worked.run("find", *arguments)

    assert done.returncode == 2
    assert words in done.stderr
