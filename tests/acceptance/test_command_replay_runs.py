"""Runs over dead letters as processes: killed, told to end, stopped by others, waited for, paced; never twice."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from tests.acceptance.cli import Cli, Worker
from tests.acceptance.letters import Letters, Rows, produce, run_ledger

pytestmark = [pytest.mark.servers, pytest.mark.timeout(240)]

MENDED = {"TIDEGATE_APP": "mended:app"}
WHY = ("--reason", "mended in 4.2", "--yes")
# Batches of one letter.
SLOWLY = ("--rate", "4")
_KILLED = -9


@pytest.fixture(scope="module")
def failed(admin_cli: Cli) -> Cli:
    """The ledger has run once. Nothing runs any more."""
    produce(admin_cli, ("k", "first", 5))
    run_ledger(admin_cli, "batch.settled")
    return admin_cli


@pytest.fixture(scope="module")
def other(failed: Cli) -> Iterator[Cli]:
    """A second operator."""
    token = failed.run("tokens", "create", "bert", "--role", "operator").stdout.strip()
    made = Cli({**failed.environment, "TIDEGATE_TOKEN": token})
    yield made
    made.close()


@pytest.fixture
def letters(failed: Cli, rows: Rows) -> Letters:
    """No letters but those that a test keeps, and no payments."""
    rows("UPDATE tidegate.dead_letter SET state = 'resolved'")
    rows("DELETE FROM payment")
    return Letters(failed)


def paid(rows: Rows) -> list[str]:
    return [row["id"] for row in rows("SELECT id FROM payment ORDER BY id")]


def newest_run(cli: Cli) -> dict[str, object]:
    found: dict[str, object] = cli.json("dlq", "runs", "--job", "ledger")["runs"][0]
    return found


def test_a_run_that_was_killed_is_resumed_and_nothing_acts_twice(letters: Letters, rows: Rows) -> None:
    """Case 61: kill -9 in the middle of a transaction. What was decided stays, the rest is done by whoever resumes."""
    names = [f"kill-{n}" for n in range(6)]
    letters.keep(*names)

    killed = letters.cli.run("dlq", "replay", *letters.named(), *SLOWLY, *WHY, MENDED_KILLER="kill-3", **MENDED)

    assert (killed.returncode, paid(rows)) == (_KILLED, names[:3])
    run = str(newest_run(letters.cli)["id"])
    too_early = letters.cli.run("dlq", "replay", "--resume", run, **MENDED)
    assert too_early.returncode == 1
    assert "in the hands of" in too_early.stderr
    rows("UPDATE tidegate.replay SET lease_until = now() WHERE state = 'running'")
    assert "stalled" in letters.cli.run("dlq", "runs", "--run", run).stdout

    resumed = letters.cli.run("dlq", "replay", "--resume", run, "--json", **MENDED)

    assert resumed.returncode == 0, resumed.stderr
    told = json.loads(resumed.stdout)["run"]
    assert (told["outcomes"], told["state"]) == ({"resolved": 6}, "done")
    assert paid(rows) == names
    attempts = rows("SELECT outcome, reason FROM tidegate.audit WHERE action = 'dlq:replay' ORDER BY seq DESC LIMIT 3")
    assert [tuple(row) for row in attempts] == [(end, "mended in 4.2") for end in ("done", "failed", "done")]
    nothing_left = letters.cli.run("dlq", "replay", "--resume", run, **MENDED)
    assert (nothing_left.returncode, paid(rows)) == (2, names)


def test_a_run_ends_on_sigterm_after_the_batch_in_hand(letters: Letters, rows: Rows) -> None:
    """G10: a node that is drained takes no half-handled letter along; the rest is as it was, and can be resumed."""
    names = [f"term-{n}" for n in range(8)]
    letters.keep(*names)
    runner = Worker(letters.cli.start("dlq", "replay", *letters.named(), *SLOWLY, *WHY, **MENDED))
    runner.wait_for("replay.batch")

    began = time.monotonic()
    code = runner.stop()

    assert (code, time.monotonic() - began < 15) == (1, True)
    run = newest_run(letters.cli)
    done = len(paid(rows))
    assert 0 < done < 8
    assert (run["state"], run["outcomes"]) == ("stopped", {"resolved": done, "not_tried": 8 - done})
    assert {row["state"] for row in rows("SELECT state FROM tidegate.dead_letter")} == {"resolved", "dead"}
    assert run["next"] == [f"tidegate dlq replay --resume {run['id']}"]
    assert letters.cli.run("dlq", "replay", "--resume", str(run["id"]), **MENDED).returncode == 0
    assert paid(rows) == names


def test_a_run_is_stopped_by_somebody_else(letters: Letters, other: Cli, rows: Rows) -> None:
    """Whoever sees the harm ends it, wherever the runner is; a reason is kept, and it can go on later."""
    names = [f"stop-{n:02}" for n in range(40)]
    letters.keep(*names)
    runner = Worker(letters.cli.start("dlq", "replay", *letters.named(), "--rate", "1", *WHY, **MENDED))
    runner.wait_for("replay.batch")
    run = str(newest_run(letters.cli)["id"])

    unexplained = other.run("dlq", "stop", run)
    stopped = other.run("dlq", "stop", run, "--reason", "load")

    assert (unexplained.returncode, stopped.returncode) == (3, 0), stopped.stderr
    assert "after the batch in hand" in stopped.stdout
    assert runner.process.wait(timeout=30) == 1
    assert 0 < len(paid(rows)) < 40
    shown = letters.cli.run("dlq", "runs", "--run", run).stdout
    assert "bert asked it to stop" in shown
    [row] = rows(
        "SELECT actor, reason, outcome FROM tidegate.audit WHERE action = 'dlq:replay' ORDER BY seq DESC LIMIT 1"
    )
    assert tuple(row) == ("bert", "load", "done")
    assert other.run("dlq", "stop", run, "--reason", "again").returncode == 2
    assert other.run("dlq", "replay", "--resume", run, **MENDED).returncode == 0
    assert paid(rows) == names


def test_a_large_run_waits_for_a_second_person(letters: Letters, other: Cli, rows: Rows) -> None:
    """Above the threshold nobody acts alone: not by resuming, not by agreeing with himself."""
    letters.keep("large-1", "large-2")
    above = MENDED | {"TIDEGATE_REPLAY_APPROVAL_ABOVE": "1"}

    proposed = letters.cli.run("dlq", "replay", *letters.named(), *WHY, **above)

    assert (proposed.returncode, paid(rows)) == (0, []), proposed.stderr
    run = str(newest_run(letters.cli)["id"])
    assert f"tidegate dlq approve {run}" in proposed.stdout
    alone = letters.cli.run("dlq", "replay", "--resume", run, **above)
    himself = letters.cli.run("dlq", "approve", run, "--reason", "sure")
    assert (alone.returncode, himself.returncode, paid(rows)) == (2, 3, []), himself.stderr
    assert "somebody else" in himself.stderr
    assert letters.cli.run("dlq", "replay", *letters.named(), *WHY, **above).returncode == 1, "its letters are taken"

    approved = other.run("dlq", "approve", run, "--reason", "looked at it", "--json")
    begun = letters.cli.run("dlq", "replay", "--resume", run, **above)

    assert approved.returncode == 0, approved.stderr
    assert begun.returncode == 0, begun.stderr
    assert paid(rows) == ["large-1", "large-2"]
    assert "approved by bert" in letters.cli.run("dlq", "runs", "--run", run).stdout
    found = rows("SELECT actor, outcome FROM tidegate.audit WHERE action = 'dlq:replay' ORDER BY seq DESC LIMIT 6")
    ends = [("tests", "done"), ("tests", "failed"), ("tests", "denied"), ("tests", "failed"), ("bert", "done")]
    assert [tuple(row) for row in reversed(found)] == [*ends, ("tests", "done")]


def test_a_run_keeps_its_pace(letters: Letters, rows: Rows) -> None:
    """Case 61: so many letters a second at most, so that the repair is not the next outage."""
    letters.keep(*(f"pace-{n:02}" for n in range(13)))

    done = letters.cli.run("dlq", "replay", *letters.named(), *SLOWLY, *WHY, **MENDED)

    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines() if '"replay.batch"' in line]
    times = [datetime.fromisoformat(line["timestamp"]) for line in lines]
    assert [line["resolved"] for line in lines] == [1] * 13
    seconds = (times[-1] - times[0]).total_seconds()
    assert 12 / seconds < 6, "four a second are asked for; a first line that is written late makes it look quicker"


def test_runs_are_listed_with_what_became_of_their_letters(letters: Letters) -> None:
    """Who, when, why and with what end: the next one on call reads it from one table."""
    letters.keep("listed")
    assert letters.cli.run("dlq", "replay", *letters.named(), *WHY, **MENDED).returncode == 0

    run = newest_run(letters.cli)
    table = letters.cli.run("dlq", "runs").stdout

    assert (run["job"], run["kind"], run["state"], run["asked_by"]) == ("ledger", "replay", "done", "tests")
    assert (run["outcomes"], run["letters"], run["undecided"], run["next"]) == ({"resolved": 1}, 1, 0, [])
    assert "mended in 4.2" in table
    assert "1 resolved" in table
    assert letters.cli.json("dlq", "runs", "--job", "search")["runs"] == []
    assert letters.cli.run("dlq", "runs", "--run", "4711").returncode == 2
