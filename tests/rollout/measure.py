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

_GAPS = """
SELECT partition, at - lag(at) OVER (PARTITION BY partition ORDER BY at) AS gap
FROM effect WHERE at BETWEEN $1 AND $2
"""
_LONGEST = f"SELECT partition, max(gap) AS gap FROM ({_GAPS}) AS g GROUP BY partition ORDER BY 2 DESC NULLS LAST"
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
    """The longest time without an effect in any one partition, in seconds."""
    rows = await connection.fetch(_LONGEST, since, until)
    gap: timedelta | None = rows[0]["gap"] if rows else None
    return (gap if gap is not None else until - since).total_seconds()


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
