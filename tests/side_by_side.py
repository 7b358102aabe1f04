"""Which tests run side by side (`pytest -n 3 --dist loadfile`), and in which order."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadFileScheduling

# Each of these starts servers of its own and measures what work needs under faults: one at a time, and not beside the
# schedules of tests/property, which take all cores.
_TOGETHER = "tests/chaos/"
# What waits for servers, leases and processes begins first, side by side; what only computes fills what is left.
_ORDER = (
    "chaos",
    "integration",
    "rollout",
    "acceptance",
    "chart",
    "property",
    "contract",
    "migration",
    "architecture",
    "unit",
)


class SideBySide(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """A file of tests runs in one process, and so do all of the chaos suite."""

    def _split_scope(self, nodeid: str) -> Any:
        return _TOGETHER if nodeid.startswith(_TOGETHER) else super()._split_scope(nodeid)


def place_in_order(nodeid: str) -> int:
    """Sorts tests by their folder, stably."""
    folder = nodeid.removeprefix("tests/").partition("/")[0]
    return _ORDER.index(folder) if folder in _ORDER else len(_ORDER)
