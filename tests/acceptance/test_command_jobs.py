"""Jobs by the clock as an operator types them, with workers as processes."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.acceptance.cli import Cli, Worker

pytestmark = pytest.mark.timeout(240)

Rows = Callable[[str], list[asyncpg.Record]]
_DEADLINE_SECONDS = 50


@pytest.fixture(scope="module")
def clocked(ready_cli: Cli, admin_token: str) -> Iterator[Cli]:
    """The service with jobs by the clock, typed by the bearer of a token."""
    made = Cli({**ready_cli.environment, "TIDEGATE_APP": "clocked:app", "TIDEGATE_TOKEN": admin_token})
    yield made
    made.close()


@pytest.fixture
def worker(clocked: Cli) -> Iterator[Worker]:
    running = Worker(clocked.start("run", "--all"))
    running.wait_for("worker.started")
    yield running
    if running.process.poll() is None:
        running.stop()


def until(rows: Rows, query: str, condition: Callable[[Any], bool]) -> Any:
    """Returns the query's first value once it fulfils the condition."""
    give_up_at = time.monotonic() + _DEADLINE_SECONDS
    found: Any = None
    while time.monotonic() < give_up_at:
        found = rows(query)[0][0]
        if condition(found):
            return found
        time.sleep(0.2)
    raise AssertionError(f"{query} gave {found}")


def test_registry_is_told_without_any_server(clocked: Cli) -> None:
    """A developer looks at it on a train; CI asks whether every job is declared whole."""
    away = {"TIDEGATE_POSTGRES_DSN": "postgresql://nobody@127.0.0.1:1/none"}

    listed = clocked.run("jobs", "list", **away)
    shown = clocked.run("jobs", "show", "notes", **away)
    checked = clocked.run("jobs", "check", **away)
    unknown = clocked.run("jobs", "show", "nots", **away)

    assert (listed.returncode, shown.returncode, checked.returncode, unknown.returncode) == (0, 0, 0, 2)
    assert "every 0:00:02, or by hand" in listed.stdout
    assert "tidegate.letters" in listed.stdout, "the service's own upkeep is among them"
    for words in ("PaymentsDue", "Note", "docs/runbooks/notes.md", "once for each occasion", "{tenant}"):
        assert words in shown.stdout
    assert "note: without its checkpoints" in shown.stderr
    assert json.loads(clocked.run("jobs", "show", "notes", "--json", **away).stdout)["progress"] is None
    assert "2 jobs are declared whole: notes, asked" in checked.stdout


def test_dry_run_tells_what_would_go_and_removes_nothing(ready_cli: Cli, rows: Rows) -> None:
    """Typed before the first night, without a token: it changes nothing, and Postgres sees to it that it cannot."""
    rows("INSERT INTO payment (id, cents) SELECT 'large-' || n, 500 FROM generate_series(1, 5) AS n")
    cleaning = {"TIDEGATE_APP": "cleaning:app"}

    told = ready_cli.run("jobs", "run", "large-payments", "--dry-run", "--json", **cleaning)
    table = ready_cli.run("jobs", "run", "large-payments", "--dry-run", **cleaning)
    upkeep = ready_cli.run("jobs", "run", "tidegate.letters", "--dry-run", **cleaning)

    assert (told.returncode, table.returncode, upkeep.returncode) == (0, 0, 2), told.stderr + table.stderr
    (scope,) = json.loads(told.stdout)["scopes"]
    assert (scope["items"], scope["chunks"], scope["first"], scope["last"]) == (5, 3, "large-1", "large-5")
    assert "would remove 5 items; nothing was removed" in table.stderr
    assert "is Tidegate's own upkeep" in upkeep.stderr
    assert rows("SELECT count(*) FROM payment WHERE cents = 500")[0][0] == 5
    assert rows("SELECT count(*) FROM tidegate.job WHERE service LIKE '%-cleaning'")[0][0] == 0, "nor was a run made"


def test_documents_are_written_and_compared(clocked: Cli, tmp_path: Path) -> None:
    """CI asks whether what is committed is what the declarations say: 1 names the file that is not."""
    words = ("jobs", "docs", "--lang", "ru", "--root", str(tmp_path), "--out", str(tmp_path / "ru"))

    written, current = clocked.run(*words), clocked.run(*words, "--check")
    (tmp_path / "ru" / "notes.md").write_text("drifted\n", encoding="utf-8")
    drifted = clocked.run(*words, "--check")

    assert (written.returncode, current.returncode, drifted.returncode) == (0, 0, 1)
    assert "notes.md is not current" in drifted.stdout
    assert "## Назначение" in (tmp_path / "ru" / "asked.md").read_text(encoding="utf-8")
    assert "## Back references" in clocked.run("jobs", "docs", "asked", "--root", str(tmp_path)).stdout
    assert clocked.run("jobs", "docs", "--check").returncode == 2


def test_worker_runs_what_the_clock_brings_and_what_is_asked_for(clocked: Cli, worker: Worker, rows: Rows) -> None:
    """From a declaration and a command to effects; asked for twice under one key it runs once."""
    until(rows, "SELECT count(*) FROM tidegate.job_run WHERE trigger = 'schedule' AND state = 'done'", lambda n: n >= 2)
    words = (
        "jobs",
        "run",
        "asked",
        "--tenant",
        "acme",
        "--param",
        "payments=5",
        "--key",
        "ticket-7",
        "--reason",
        "[x]",
    )
    first, again = clocked.json(*words), clocked.json(*words)
    until(rows, f"SELECT state FROM tidegate.job_run WHERE id = {first['run']}", lambda state: state == "done")

    assert (first["is_new"], again) == (True, {"run": first["run"], "is_new": False})
    assert rows(f"SELECT processed FROM tidegate.job_run WHERE id = {first['run']}")[0][0] == 5
    (stands,) = clocked.json("jobs", "show", "asked")["progress"]
    assert (stands["tenant"], stands["checkpoint"]) == ("acme", "p004")
    assert "p004" in clocked.run("jobs", "show", "asked").stdout
    table = clocked.run("jobs", "runs", "asked")
    assert "tests" in table.stdout
    assert "[x]" in table.stdout
    assert worker.stop() == 0


def test_run_of_a_killed_worker_is_gone_on_with_by_another(clocked: Cli, worker: Worker, rows: Rows) -> None:
    """kill -9 in the middle: found by its lease within two heartbeats (20 s), and nothing acts twice."""
    asked = clocked.json("jobs", "run", "asked", "--tenant", "acme", "--param", "payments=30", "--param", "seconds=0.2")
    progress = f"SELECT processed FROM tidegate.job_run WHERE id = {asked['run']}"
    until(rows, progress, lambda processed: processed >= 3)
    worker.process.send_signal(signal.SIGKILL)
    worker.process.wait()

    other = Worker(clocked.start("run", "asked"))
    chain = f"WHERE {asked['run']} IN (id, first_run)"
    until(rows, f"SELECT bool_or(state = 'done') FROM tidegate.job_run {chain}", bool)

    assert [row["state"] for row in rows(f"SELECT state FROM tidegate.job_run {chain} ORDER BY id")] == [
        "stalled",
        "done",
    ]
    assert rows(f"SELECT sum(processed) FROM tidegate.job_run {chain}")[0][0] == 30
    assert other.stop() == 0


def test_pause_reaches_jobs_by_the_clock_and_cancel_their_runs(clocked: Cli, worker: Worker, rows: Rows) -> None:
    """`pause --all` before the database moves means these, too."""
    paused = clocked.json("pause", "--all", "--reason", "database moves")
    asked = clocked.json("jobs", "run", "asked", "--tenant", "acme")
    cancelled = clocked.json("jobs", "cancel", str(asked["run"]), "--reason", "the wrong one")
    resumed = clocked.json("resume", "--all")

    assert {each["job"] for each in paused["jobs"]} == {each["job"] for each in resumed["jobs"]} == {"notes", "asked"}
    assert cancelled == {"run": asked["run"], "is_over": True}
    actions = [row["action"] for row in rows("SELECT action FROM tidegate.audit ORDER BY seq DESC LIMIT 4")]
    assert actions == ["job:resume", "run:cancel", "run:trigger", "job:pause"]
    assert worker.stop() == 0


def test_misuse_is_told_by_name(clocked: Cli) -> None:
    """What somebody types at night is answered with what to type instead."""
    said = {
        "no tenant": clocked.run("jobs", "run", "asked"),
        "unknown parameter": clocked.run("jobs", "run", "asked", "--tenant", "acme", "--param", "speed=1"),
        "no value": clocked.run("jobs", "run", "asked", "--tenant", "acme", "--param", "speed"),
        "no such job": clocked.run("jobs", "run", "ledger", "--tenant", "acme"),
        "no such run": clocked.run("jobs", "cancel", "999999"),
        "no number of a run": clocked.run("jobs", "cancel", "99999999999999999999", "--reason", "x"),
        "no such item": clocked.run("jobs", "replay", "asked", "--tenant", "acme", "--item", "p9"),
        "which items": clocked.run("jobs", "discard", "asked", "--tenant", "acme", "--reason", "x"),
        "no token": clocked.run("jobs", "run", "asked", "--tenant", "acme", TIDEGATE_TOKEN=""),
    }

    assert {what: ended.returncode for what, ended in said.items()} == {
        "no tenant": 2,
        "unknown parameter": 2,
        "no value": 2,
        "no such job": 2,
        "no such run": 2,
        "no number of a run": 2,
        "no such item": 2,
        "which items": 2,
        "no token": 3,
    }
    assert clocked.json("jobs", "items") == []
    assert "say which" in said["no tenant"].stderr
    assert "has no run 99999999999999999999" in said["no number of a run"].stderr
    assert "it has payments, seconds" in said["unknown parameter"].stderr
    assert "those are: asked, notes" in said["no such job"].stderr


_FAILED_ITEMS = """
    WITH job AS (
        INSERT INTO tidegate.job (service, code, claim_rule) VALUES ('{service}', 'settling', 'v1') RETURNING id
    )
    INSERT INTO tidegate.job_item (
        job, tenant, key, run, outcome, letter, place, scheduled_at, reason, error_class, error_message, fingerprint,
        first_failed_at, last_failed_at, attempts, occurrences, is_quarantined, replays
    )
    SELECT
        job.id, i.tenant, i.key, 1, 'quarantined', gen_random_uuid(), i.key, now(), 'rejected', 'Rejected',
        'closed account', 'f', now(), now(), 1, 1, i.key = 'p002', CASE WHEN i.key = 'p002' THEN 5 END
    FROM job CROSS JOIN (VALUES ('acme', 'p001'), ('acme', 'p002'), ('zeta', 'p003')) AS i (tenant, key)
    RETURNING key, letter::text
"""


def test_items_are_letters_among_the_letters(ready_cli: Cli, admin_token: str, rows: Rows) -> None:
    """Found, replayed and discarded by `tidegate dlq`, by ids or by filters: nobody has to know what they are of."""
    service = f"{ready_cli.environment['SMALL_PREFIX']}-quarantine"
    ids = {row["key"]: row["letter"] for row in rows(_FAILED_ITEMS.format(service=service))}
    cli = Cli({**ready_cli.environment, "TIDEGATE_APP": "quarantining:app", "TIDEGATE_TOKEN": admin_token})
    why = ("--reason", "it is open again", "--yes")

    listed = cli.json("dlq", "list", "--status", "any")["letters"]
    shown = cli.run("dlq", "show", ids["p001"])
    plan = cli.json("dlq", "replay", "--letter", ids["p001"])
    replayed = cli.json(*plan["next"].replace("'…'", "mended").split()[1:])
    by_filter = cli.json("dlq", "discard", "--job", "settling", "--tenant", "zeta", *why)
    too_often = cli.run("dlq", "replay", "--letter", ids["p002"], *why)
    forced = cli.json("jobs", "replay", "settling", "--tenant", "acme", "--all", "--force", *why)

    assert {(each["kind"], each["item"], each["state"]) for each in listed} == {
        ("item", "p001", "dead"),
        ("item", "p002", "quarantined"),
        ("item", "p003", "dead"),
    }
    assert {each["next"] for each in listed} == {
        f"tidegate dlq replay --letter {letter}{' --force' if key == 'p002' else ''}" for key, letter in ids.items()
    }
    assert "closed account" in shown.stdout
    assert (plan["items"], plan["is_done"], replayed["items"], len(replayed["runs"])) == (1, False, 1, 1)
    assert (by_filter["items"], forced["items"]) == (1, 1)
    assert (too_often.returncode, "too many failed replays; --force includes them" in too_often.stderr) == (1, True)
    done = rows(f"SELECT action, tenant, outcome FROM tidegate.audit WHERE target = '{service}.settling' ORDER BY seq")
    assert [tuple(row) for row in done] == [
        ("dlq:replay", "acme", "done"),
        ("dlq:discard", "zeta", "done"),
        ("dlq:replay", "acme", "failed"),
        ("dlq:replay", "acme", "done"),
    ]


@pytest.mark.parametrize(
    "words, told",
    [
        (("jobs", "replay", "asked", "--tenant", "acme", "--item", "p\udcff"), "is named by UTF-8"),
        (("dlq", "stop", "9" * 40), "9223372036854775807"),
        (("dlq", "replay", "--job", "asked", "--rehearse"), "--rehearse is about records"),
    ],
)
def test_what_names_nothing_is_refused_without_a_traceback(clocked: Cli, words: tuple[str, ...], told: str) -> None:
    """Exit 2, whatever bytes and numbers a script pastes: not an encoder's error, and not Postgres' either."""
    done = clocked.run(*words)

    assert (done.returncode, told in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr
