"""docs/access.md tells the table that the code has."""

from __future__ import annotations

import re

from tests.acceptance.deeds import NOT_YET
from tests.architecture.source import ROOT
from tidegate_kernel.permissions import LEAST_ROLE, NEEDS_REASON, Action

_ROW = re.compile(r"^\| `([a-z-]+:[a-z-]+)` \| (\w+) \| (\w*) ?\| (.+) \|$", re.MULTILINE)


def test_table_of_roles_is_the_one_in_force() -> None:
    """Whoever hands tokens out decides by this page."""
    rows = _ROW.findall((ROOT / "docs" / "access.md").read_text(encoding="utf-8"))

    told = {(action, role, reason == "needed") for action, role, reason, _ in rows}
    assert told == {(action.value, LEAST_ROLE[action].value, action in NEEDS_REASON) for action in Action}
    assert {action for action, *_, what in rows if "not there yet" in what} == {action.value for action in NOT_YET}
