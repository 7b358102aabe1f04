"""`tidegate dev`: one command from a folder of code to running jobs, again after each change."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli import APPS, Cli, Worker

pytestmark = pytest.mark.timeout(150)


@pytest.fixture
def dev(cli: Cli, tmp_path: Path) -> Iterator[Worker]:
    """`tidegate dev` on a copy of the small service, with nothing migrated or created before."""
    shutil.copytree(APPS, tmp_path / "service")
    here = Cli(cli.environment, tmp_path / "service")
    running = Worker(here.start("dev", TIDEGATE_LOG_FORMAT="json"))
    yield running
    if running.process.poll() is None:
        running.stop()
    here.close()


def test_dev_prepares_runs_and_starts_anew_on_a_change(dev: Worker, tmp_path: Path) -> None:
    """The worker before the change ends in order, and the new one has the new code."""
    first = dev.wait_for("worker.started")
    service = tmp_path / "service" / "small.py"
    service.write_text(service.read_text() + "\nassert app.job('ledger')\n")
    dev.wait_for("worker.stopped")
    second = dev.wait_for("worker.started")
    assert first["owner"] != second["owner"]
    assert any(line.startswith("created: topic ") for line in dev.lines)
    assert "changed: small.py; starting anew" in dev.lines
    assert dev.stop() == 0
