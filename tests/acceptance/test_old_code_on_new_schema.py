"""A release rolls onto a schema that the one before it still works on, and is rolled back from there."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.acceptance.cli import Cli, Worker

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

_ROOT = Path(__file__).resolve().parents[2]
_VERSIONS = "tidegate/migrations/versions"
_DEADLINE_SECONDS = 50.0

_RUNS_THAT_ENDED_WELL = """
SELECT count(*) FROM tidegate.job_run AS r JOIN tidegate.job AS j ON j.id = r.job
WHERE j.code = 'notes' AND r.state = 'done'
"""

Rows = Callable[[str], list[asyncpg.Record]]


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(_ROOT), *arguments], check=True, capture_output=True).stdout


def _commit_before_the_newest_migration() -> str:
    """The newest commit whose code knows an earlier schema. Skips where this copy of the repository has none."""
    newest = max((_ROOT / _VERSIONS).glob("*.sql")).name
    try:
        added = _git("log", "--format=%H", "--diff-filter=A", "--", f"{_VERSIONS}/{newest}").split()
        before = f"{added[-1].decode()}^" if added else "HEAD"
        return _git("rev-parse", "--verify", "--quiet", before).decode().strip()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this copy of the repository has no commit with an earlier migration head")


@pytest.fixture(scope="module")
def old_cli(ready_cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """The service as the commit before the newest migration has it, on the database that today's code migrated."""
    old = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(_git("archive", _commit_before_the_newest_migration()))) as archive:
        archive.extractall(old, filter="data")
    folder = old / "tests" / "acceptance" / "apps"
    made = Cli({**ready_cli.environment, "PYTHONPATH": str(old)}, folder, is_warm=False)
    assert _location(made).startswith(str(old)), "today's code would be tried on today's schema"
    yield made
    made.close()


def _send(cli: Cli, payment: str, cents: int = 5) -> None:
    data = json.dumps({"payment": payment, "cents": cents})
    topic = f"{cli.environment['SMALL_PREFIX']}.payments"
    sent = cli.run("send", topic, "--type", "payment.made", "--json", data, "--key", payment)
    assert sent.returncode == 0, sent.stderr


def _works(cli: Cli, number: int) -> Worker:
    """A worker of that release has handled a payment, and one that no handler takes."""
    worker = Worker(cli.start("run", "ledger"))
    worker.wait_for("worker.started")
    _send(cli, f"bad-{number}", cents=-1)
    worker.wait_for("dead_letter.kept")
    _send(cli, f"good-{number}")
    worker.wait_for("batch.settled")
    return worker


def test_old_code_works_on_the_new_schema(ready_cli: Cli, old_cli: Cli, rows: Rows) -> None:
    """Between `migrate --phase pre` and the last new pod both are there; a roll back finds the same schema."""
    for number, cli in enumerate((old_cli, ready_cli, old_cli)):
        assert _works(cli, number).stop() == 0

    letters = ready_cli.json("dlq", "list", "--job", "ledger")["letters"]
    assert sorted(row["id"] for row in rows("SELECT id FROM payment")) == ["good-0", "good-1", "good-2"]
    assert len(letters) == 3


def test_jobs_by_the_clock_of_old_code_work_on_the_new_schema(ready_cli: Cli, old_cli: Cli, rows: Rows) -> None:
    """Their tables are the ones that change most; a column that old code does not fill would end each of its runs."""
    clocked = {"TIDEGATE_APP": "clocked:app"}
    worker = Worker(old_cli.start("run", "--all", **clocked))
    worker.wait_for("worker.started")

    give_up_at = time.monotonic() + _DEADLINE_SECONDS
    while not rows(_RUNS_THAT_ENDED_WELL)[0][0]:
        assert time.monotonic() < give_up_at, rows("SELECT state, attempt FROM tidegate.job_run")
        time.sleep(0.2)  # another process: nothing to wait on

    told = [old_cli.run(*command, **clocked) for command in (("status",), ("jobs", "runs", "notes"))]
    assert [(done.returncode, done.stderr) for done in told if done.returncode] == []
    assert worker.stop() == 0


def _location(cli: Cli) -> str:
    done = cli.start_python("-c", "import tidegate; print(tidegate.__file__)")
    return done.communicate()[0]
