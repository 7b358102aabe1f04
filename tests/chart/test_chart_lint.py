"""The chart as Helm sees it, and the default that everybody gets, line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chart.rendering import EXAMPLES, helm, template

_GOLDEN = Path(__file__).with_name("golden.yaml")


@pytest.mark.parametrize("values", EXAMPLES, ids=lambda path: path.stem)
def test_every_set_of_values_passes_lint(values: Path) -> None:
    """A chart that warns teaches its users to ignore warnings."""
    done = helm("lint", "helm", "--strict", "--quiet", "-f", str(values))
    assert done.returncode == 0, done.stdout + done.stderr


def test_default_is_as_reviewed() -> None:
    """A default that changes by the way changes every installation.

    If it is meant: `.state/chart/bin/helm template shop helm -n shop > tests/chart/golden.yaml`.
    """
    done = template()
    assert done.returncode == 0, done.stderr
    assert done.stdout == _GOLDEN.read_text(encoding="utf-8")
