"""The producer's log, and Kafka's log of it: what was told, and where it stands.

Nothing here or beside it uses code of Tidegate or of the producer: what they agree on is stated again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SOURCES = ("chaos.changes", "chaos.mirror")
Place = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass(frozen=True)
class Told:
    """A line of the producer's log."""

    number: int
    kind: str
    topic: str
    key: str
    event_id: str
    version: int
    cents: int

    @property
    def is_applied_by_ledger(self) -> bool:
        return self.kind in ("change", "late", "repeat", "twin")

    @property
    def is_taken(self) -> bool:
        """Whether it is an event in every job's eyes, so that each claims its id."""
        return self.is_applied_by_ledger or self.kind in ("refused", "behind")


@dataclass(frozen=True)
class Logged:
    """A record as it stands in Kafka."""

    place: Place
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]

    def header(self, name: str) -> str | None:
        found = next((value for each, value in self.headers if each == name), None)
        return None if found is None else found.decode("utf-8", "replace")


@dataclass(frozen=True)
class Written:
    """Every record of the source topics with what the producer meant by it, in the order of the logs."""

    records: Sequence[tuple[Logged, Told]]
    ends: Mapping[tuple[str, int], int]
    problems: Sequence[str]
    acknowledged: int

    def firsts(self) -> Iterator[tuple[Logged, Told]]:
        """The first record of every event, log by log."""
        seen: set[str] = set()
        for logged, told in self.records:
            if told.event_id not in seen:
                seen.add(told.event_id)
                yield logged, told


@dataclass
class _ProducersLog:
    told: dict[int, Told] = field(default_factory=dict)
    taken: dict[Place, int] = field(default_factory=dict)
    unplaced: set[int] = field(default_factory=set)


def read_producers_log(file: Path) -> _ProducersLog:
    """What was told, by number, and which number Kafka acknowledged where."""
    log = _ProducersLog()
    for line in file.read_text().splitlines():
        entry = json.loads(line)
        if "told" in entry:
            told = Told(**entry["told"])
            log.told[told.number] = told
            continue
        batch = entry["taken"]
        if batch["offset"] < 0:
            log.unplaced.update(batch["numbers"])
            continue
        for index, number in enumerate(batch["numbers"]):
            log.taken[batch["topic"], batch["partition"], batch["offset"] + index] = number
    return log


def compare_logs(log: _ProducersLog, found: Sequence[Logged], ends: Mapping[tuple[str, int], int]) -> Written:
    """Kafka's log explained by the producer's; what does not fit is a problem of the run itself, not of a job."""
    problems: list[str] = []
    records: list[tuple[Logged, Told]] = []
    numbers: dict[Place, int] = {}
    counts: dict[tuple[str, int], int] = defaultdict(int)
    for logged in found:
        counts[logged.place[:2]] += 1
        told = log.told.get(int(logged.header("told") or -1))
        if told is None or told.topic != logged.place[0] or told.key.encode() != logged.key:
            problems.append(f"{spell(logged.place)}: a record that the producer never told")
            continue
        numbers[logged.place] = told.number
        records.append((logged, told))
    problems += [
        f"{spell(place)}: Kafka acknowledged number {number} there, and has {numbers.get(place)}"
        for place, number in log.taken.items()
        if numbers.get(place) != number
    ]
    missing = set(log.told) - set(numbers.values())
    problems += [f"number {number} was told and is in no log" for number in sorted(missing)]
    problems += [
        f"{t}:{p}: the log ends at {end} and has {counts[t, p]} records"
        for (t, p), end in ends.items()
        if counts[t, p] != end
    ]
    return Written(records, ends, problems, len(log.taken) + len(log.unplaced))


def spell(place: Place) -> str:
    topic, partition, offset = place
    return f"{topic}:{partition}:{offset}"
