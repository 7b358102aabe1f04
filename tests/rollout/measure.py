"""What a roll did to the records that came meanwhile."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg

# PERFORMANCE: longest gap of a partition; records that a handler sees twice (one batch); effects are never doubled.
MOST_GAP_SECONDS = 6.0
AIM_GAP_SECONDS = 2.0
_MOST_REPEATED = 500

# A gap counts in the window in which it ends, from its beginning on, which may lie before.
_LONGEST = """
SELECT max(at - before) FROM (
    SELECT at, lag(at) OVER (PARTITION BY partition ORDER BY at) AS before FROM effect
) AS each WHERE at BETWEEN $1 AND $2
"""
_PARTITIONS_SEEN = "SELECT count(DISTINCT partition) FROM effect"
_COUNT = "SELECT count(*) AS effects, count(DISTINCT event_id) AS events FROM effect"
_JOINED = re.compile(r"Joined group '.*' \(generation (\d+)\)")


@dataclass(frozen=True)
class Rolled:
    """What one roll cost. Seconds of wall clock; `generations`: how often the group was dealt anew."""

    workload: str
    seconds: float
    longest_gap: float
    longest_gap_before: float
    produced: int
    lost: int
    doubled: int
    repeated: int
    generations: int
    exit_codes: Sequence[int]

    @property
    def failures(self) -> Sequence[str]:
        """What a roll must not do, and this one did."""
        checks = {
            f"{self.lost} records are lost": self.lost > 0,
            f"{self.doubled} effects are doubled": self.doubled > 0,
            f"a partition rested for {self.longest_gap:.1f} s": self.longest_gap > MOST_GAP_SECONDS,
            f"{self.repeated} records were handled twice": self.repeated > _MOST_REPEATED,
            f"pods ended with {self.exit_codes}": any(self.exit_codes),
        }
        return [failure for failure, is_so in checks.items() if is_so]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "failures": list(self.failures)}


async def longest_gap(connection: asyncpg.Connection[asyncpg.Record], since: datetime, until: datetime) -> float:
    """The longest time without an effect in any one partition, in seconds, of those that ended in the window.

    Raises LookupError if none did: then nothing was measured.
    """
    gap: timedelta | None = await connection.fetchval(_LONGEST, since, until)
    if gap is None:
        raise LookupError(f"no partition has two effects, the later one between {since} and {until}")
    return gap.total_seconds()


async def partitions_seen(connection: asyncpg.Connection[asyncpg.Record]) -> int:
    """Of how many partitions a record has acted."""
    seen: int = await connection.fetchval(_PARTITIONS_SEEN)
    return seen


async def counted(connection: asyncpg.Connection[asyncpg.Record]) -> tuple[int, int]:
    """Returns how many effects there are, and of how many events."""
    row = await connection.fetchrow(_COUNT)
    assert row is not None
    return row["effects"], row["events"]


def repeated(seen: Path) -> int:
    """How often a handler saw a record that it or another one had seen."""
    places = Counter(seen.read_bytes().splitlines())
    return sum(places.values()) - len(places)


def generations(joins: Path, *, after: int = 0) -> Sequence[int]:
    """The group's generations that members joined, in order, from the given place in the file on."""
    return sorted({int(found) for found in _JOINED.findall(joins.read_text()[after:])})
