"""Which tests run side by side (`pytest -n 2 --dist loadfile`), and in which order."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadFileScheduling

# Each of these starts servers of its own and measures what work needs under faults: one at a time, and not beside the
# schedules of tests/property, which take all cores.
_TOGETHER = "tests/chaos/"
# What takes long begins first, so that nobody waits for it at the end; the many small ones fill what is left.
_ORDER = (
    "chaos",
    "integration",
    "rollout",
    "property",
    "chart",
    "acceptance",
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
