"""Dead letters: every one that must be there, none that must not, whole in Postgres and in the DLQ topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from examples.check_shop.expected import JOBS, poison_reasons
from examples.check_shop.servers import FoundRecord, Servers

MARK = "x-poison"
OURS = "tg-dlq-"

_LETTERS = """
SELECT l.topic, l.partition, l."offset", l.key, l.value, l.header_names, l.header_values, l.reason
FROM tidegate.dead_letter AS l
JOIN tidegate.job AS j ON j.id = l.job
WHERE j.code = $1
"""

Place = tuple[str, int, int]


class Letters:
    """What was found of dead letters, and how it differs from what was sent."""

    def __init__(self, sent: Sequence[FoundRecord]) -> None:
        self._sent: Mapping[Place, FoundRecord] = {(r.topic, r.partition, r.offset): r for r in sent}
        self.by_reason: dict[str, Counter[str]] = {}
        self.differences: list[str] = []

    async def check(self, servers: Servers, service: str) -> None:
        """Compares all jobs' letters, in both places."""
        for job in JOBS:
            rows = list(stored(await servers.rows(_LETTERS, job)))
            topic = list(published(await servers.records(f"{service}.{job}.dlq")))
            self.by_reason[job] = Counter(reason for _, _, reason in rows)
            self.compare(f"{job}: Postgres", rows, poison_reasons(job))
            self.compare(f"{job}: DLQ topic", topic, poison_reasons(job))

    def compare(self, where: str, letters: Sequence[tuple[Place, FoundRecord, str]], wanted: Mapping[str, str]) -> None:
        found: dict[str, str] = {}
        for place, letter, reason in letters:
            original = self._sent.get(place)
            if original is None:
                self.differences.append(f"{where}: a dead letter of {spell(place)}, where no record stands")
                continue
            kind = original.header(MARK)
            if kind is None:
                self.differences.append(f"{where}: a sound record is dead: {spell(place)} {original.key!r}, {reason}")
                continue
            found[kind] = reason
            self.differences += bent(f"{where}: {kind} at {spell(place)}", letter, original)
        for kind in sorted(wanted.keys() | found.keys()):
            if wanted.get(kind) != found.get(kind):
                self.differences.append(
                    f"{where}: poison {kind!r} should be {wanted.get(kind, 'no letter')}, "
                    f"is {found.get(kind, 'no letter')}"
                )


def bent(what: str, letter: FoundRecord, original: FoundRecord) -> Iterator[str]:
    """One sentence for each part of the letter that is not, byte for byte, what was sent."""
    for part in ("key", "value", "headers"):
        if getattr(letter, part) != getattr(original, part):
            yield f"{what}: its {part} differs from what was sent"


def stored(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Place, FoundRecord, str]]:
    for row in rows:
        place = (row["topic"], row["partition"], row["offset"])
        names = [name.decode() for name in row["header_names"]]
        headers = tuple(zip(names, row["header_values"], strict=True))
        yield place, FoundRecord(*place, row["key"], row["value"], headers), row["reason"]


def published(records: Sequence[FoundRecord]) -> Iterator[tuple[Place, FoundRecord, str]]:
    """One for each letter id: the relay may repeat itself, and tells later how letters ended."""
    by_id = {record.header(OURS + "id"): record for record in records if record.header(OURS + "topic") is not None}
    for record in by_id.values():
        told = {name: record.header(OURS + name) or "" for name in ("topic", "partition", "offset", "reason")}
        place = (told["topic"], int(told["partition"]), int(told["offset"]))
        original = tuple((name, value) for name, value in record.headers if not name.startswith(OURS))
        yield place, FoundRecord(*place, record.key, record.value, original), told["reason"]


def spell(place: Place) -> str:
    topic, partition, offset = place
    return f"{topic}:{partition}:{offset}"
