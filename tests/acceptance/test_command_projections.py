"""What sinks hold, and one made anew, as an operator types it."""

from __future__ import annotations

import json

from tests.acceptance.cli import Cli


def test_state_of_each_sink_is_listed(ready_cli: Cli) -> None:
    """Before a release it tells which projections the new declaration would stop."""
    listed = ready_cli.json("projections", "list")
    shown = ready_cli.run("projections", "show", "search")

    assert {each["job"]: each["state"] for each in listed}["search"] == "as declared"
    assert (shown.returncode, shown.stderr) == (0, "")


def test_reset_shows_its_plan_and_refuses_until_the_job_is_paused(admin_cli: Cli) -> None:
    """Plan, refusal with the remedy, pause, done: each says what comes next, by exit code and words."""
    started = admin_cli.run("run", "search", "--backfill", "--from-beginning")
    assert started.returncode == 0, started.stderr

    planned = admin_cli.run("projections", "reset", "search")
    assert planned.returncode == 0, planned.stderr
    assert "0 documents are dropped" in planned.stdout
    assert "would be refused: the job is not paused; run 'tidegate pause search" in planned.stdout
    assert "nothing was changed: add --reason and --yes to do it" in planned.stdout

    refused = admin_cli.run("projections", "reset", "search", "--reason", "new mapping", "--yes")
    assert (refused.returncode, refused.stderr.count("is refused: the job is not paused")) == (3, 1), refused.stderr

    paused = admin_cli.run("pause", "search", "--reason", "new mapping")
    assert paused.returncode == 0, paused.stderr
    done = admin_cli.run("projections", "reset", "search", "--reason", "new mapping", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["plan"]["obstacles"], told["report"]["is_done"]) == ([], True)


def test_without_a_token_nothing_is_reset(ready_cli: Cli) -> None:
    """Whoever may read the database's address may not empty what readers see."""
    done = ready_cli.run("projections", "reset", "search", "--reason", "x", "--yes")

    assert done.returncode == 3, done.stderr
