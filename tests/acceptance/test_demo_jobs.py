"""`make demo-jobs` in small: five kinds of jobs, three schedulers, one of them killed; and a check that can say no."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.demos import ROOT, run_demo
from tidegate.stack.names import StackAddresses

# Some twenty seconds of it are the lease of the scheduler that is killed.
pytestmark = [pytest.mark.servers, pytest.mark.timeout(500)]


def test_a_night_of_five_kinds_of_jobs_adds_up_through_a_kill(stack: StackAddresses, tmp_path: Path) -> None:
    """Cases 112, 115, 117, 118 and 119 as one story: every figure is as it must be, whoever did the work. And an order
    that is twice on its account is found: the table says so, and the exit code."""
    outcome = run_demo("examples.shop.demo_jobs", stack, tmp_path / "report.json", orders=600, DEMO_SABOTAGE="double")

    report = outcome.report
    wrong = [what for what, expected, found in report["figures"] if expected != found]
    assert (outcome.exit_code, wrong) == (1, ["ledger: orders", "ledger: cents"]), outcome.printed
    assert any(report["sabotaged"] in failure for failure in report["failures"])
    assert len(report["figures"]) >= 50
    assert len(report["claims"]) == 3
    assert report["killed"] in report["claims"]
    for told in ("killed", "stalled, done", "failed, done", "Expected = found", "replay"):
        assert told in outcome.printed


def test_demo_jobs_without_servers_says_what_is_missing() -> None:
    """The first thing that goes wrong for whoever does not use make."""
    command, home = [sys.executable, "-m", "examples.shop.demo_jobs"], {"PATH": "/usr/bin"}
    ended = subprocess.run(command, env=home, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "TIDEGATE_KAFKA_BOOTSTRAP" in ended.stderr
    assert "Traceback" not in ended.stderr
