"""A fold as operators see it: what is told of it, an index that was lost, a backfill refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import httpx
import pytest

from tests.acceptance.cli import Cli, Worker
from tests.acceptance.totals import index_of, totals, until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

Rows = Callable[[str], list[asyncpg.Record]]
_DEADLINE_SECONDS = 40.0
_TOO_RICH = 2_000_000


@pytest.fixture(scope="module")
def fold_cli(admin_cli: Cli) -> Iterator[Cli]:
    """The service with the fold, migrated and with its topics, typed by an admin."""
    made = Cli({**admin_cli.environment, "TIDEGATE_APP": "folding:app"})
    prepared = made.run("dev-prepare")
    assert prepared.returncode == 0, prepared.stderr
    yield made
    made.close()
    httpx.delete(index_of(made), trust_env=False)


@pytest.fixture(scope="module")
def worker(fold_cli: Cli) -> Iterator[Worker]:
    started = Worker(fold_cli.start("run", "--all"))
    started.wait_for("worker.started")
    yield started
    assert started.stop() == 0


def _until(ask: Callable[[], Any], wanted: object) -> None:
    until(ask, wanted, seconds=_DEADLINE_SECONDS)


def _pay(cli: Cli, account: str, cents: int) -> None:
    topic = f"{cli.environment['SMALL_PREFIX']}.paid"
    body = f'{{"account": "{account}", "cents": {cents}}}'
    done = cli.run("send", topic, "--type", "paid", "--key", account, "--json", body)
    assert done.returncode == 0, done.stderr


def test_a_check_says_that_the_sink_of_a_fold_is_away(fold_cli: Cli) -> None:
    """Folding could begin without it, but whoever asks whether everything is there wants to hear that it is not."""
    nobody = "http://127.0.0.1:9"

    done = fold_cli.run("run", "totals", "--check", TIDEGATE_ELASTICSEARCH_URL=nobody, TIDEGATE_LOG_LEVEL="error")

    assert done.returncode == 2, done.stderr
    assert f"job 'totals': elasticsearch at {nobody} (TIDEGATE_ELASTICSEARCH_URL) cannot be used" in done.stderr


def test_a_fold_is_kept_rendered_and_rendered_again(fold_cli: Cli, worker: Worker, rows: Rows) -> None:
    """The operator's whole road: what is there, what could not be rendered, and an index that was lost."""
    for account, cents in [("a", 5), ("b", 1), ("a", 6), ("rich", _TOO_RICH)]:
        _pay(fold_cli, account, cents)
    _until(lambda: totals(fold_cli), {"a": 11, "b": 1})
    _until(lambda: rows("SELECT count(*) FROM tidegate.dirty WHERE error IS NOT NULL")[0][0], 1)

    status = fold_cli.run("status").stdout
    explained = fold_cli.run("explain", "totals").stdout
    plain = fold_cli.json("status")["jobs"][0]
    for told in (status, explained):
        assert "1 keys could not be rendered (the render function raised ValueError)" in told
        assert "tidegate projections rerender totals --failed" in told
        assert "rich" not in told, "a key may name a person"
    assert (plain["kind"], plain["rendering"]["rendering"]["failed"]) == ("FoldJob", 1)

    httpx.delete(index_of(fold_cli), trust_env=False).raise_for_status()
    assert fold_cli.run("migrate").returncode == 0
    plan = fold_cli.run("projections", "rerender", "totals")
    refused = fold_cli.run("projections", "rerender", "totals", "--yes")
    assert "3 keys to be rendered again" in plan.stdout
    assert "nothing was changed" in plan.stderr
    assert (refused.returncode, "without a reason" in refused.stderr) == (3, True)
    assert totals(fold_cli) == {}

    done = fold_cli.run("projections", "rerender", "totals", "--reason", "index lost", "--yes")

    assert "3 keys are marked" in done.stdout, done.stderr
    _until(lambda: totals(fold_cli), {"a": 11, "b": 1})
    audited = rows("SELECT outcome FROM tidegate.audit WHERE action = 'projection:rerender' ORDER BY seq")
    assert [row["outcome"] for row in audited] == ["denied", "done"]
    assert worker.process.poll() is None


def test_a_backfill_of_a_fold_is_refused_with_what_helps(fold_cli: Cli) -> None:
    """It would count every event twice; the sentence says what is meant instead."""
    done = fold_cli.run("run", "totals", "--backfill", "--from-beginning")

    assert done.returncode == 2
    assert "tidegate projections rerender totals" in done.stderr


def test_what_is_no_fold_has_nothing_to_render(admin_cli: Cli) -> None:
    """A projection's documents come from its topic, not from states."""
    done = admin_cli.run("projections", "rerender", "search")

    assert done.returncode == 2
    assert "tidegate run search --backfill --from-beginning" in done.stderr
