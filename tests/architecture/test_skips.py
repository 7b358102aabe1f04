"""The rule about skipped tests, on pytest itself as a build runs it: in processes of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.architecture.source import ROOT

_HOOKS = "from tests.conftest import pytest_make_collect_report, pytest_runtest_makereport\n"
_TESTS = """\
import pytest

def test_runs() -> None: ...

def test_skips() -> None:
    pytest.skip("no reason that anybody has agreed to")

def test_skips_by_name() -> None:
    pytest.skip("pgbouncer is not installed: apt-get install pgbouncer")
"""
_MODULE = "import pytest\npytest.importorskip('nowhere', reason='nothing here')\n\ndef test_never() -> None: ...\n"


def test_skipped_test_fails_the_build_unless_it_is_listed(tmp_path: Path) -> None:
    """A test that is skipped where it should run proves nothing, and a green summary hides it."""
    done = _pytest(tmp_path, _TESTS, CI="true")

    assert re.search(r"^1 failed, 1 passed, 1 skipped", done.stdout, re.MULTILINE), done.stdout
    assert "FAILED test_given.py::test_skips" in done.stdout
    assert "skipped with CI=true: 'no reason that anybody has agreed to'" in done.stdout
    assert done.returncode == 1


def test_skipped_module_fails_the_build(tmp_path: Path) -> None:
    """It would take all its tests out of the summary at once."""
    done = _pytest(tmp_path, _MODULE, CI="true")

    assert "skipped with CI=true: 'nothing here'" in done.stdout
    assert done.returncode != 0


def test_skipped_test_is_nobodys_trouble_elsewhere(tmp_path: Path) -> None:
    """Whoever has no PgBouncer can still run the rest."""
    done = _pytest(tmp_path, _TESTS, CI="")

    assert re.search(r"^1 passed, 2 skipped", done.stdout, re.MULTILINE), done.stdout
    assert done.returncode == 0


def _pytest(folder: Path, tests: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(_HOOKS)
    (folder / "test_given.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "--dist", "loadfile", "-p", "no:cacheprovider"]
    told = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, cwd=folder, env=told, capture_output=True, text=True, check=False, timeout=50)
