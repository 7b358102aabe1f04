"""Sound records that were dead letters for a while: each whole, resolved in Postgres, and told so on the DLQ topic."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from examples.check_shop.letters import OURS, Place, bent, published, spell, stored
from examples.check_shop.servers import FoundRecord, Servers

PARKED = "SELECT count(*) AS parked FROM tidegate.parked"
_LETTERS = """
SELECT l.topic, l.partition, l."offset", l.key, l.value, l.header_names, l.header_values, l.reason, l.state
FROM tidegate.dead_letter AS l
JOIN tidegate.job AS j ON j.id = l.job
WHERE j.code = $1
"""
_RESOLVED = "resolved"
_ORDER_ID = re.compile(rb'"order_id":"([^"]+)"')


@dataclass
class Recovered:
    """The letters of one job. `reasons`: why they were dead."""

    resolved: int = 0
    told_resolved: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


async def recovered(servers: Servers, sent: Sequence[FoundRecord], *, job: str, dlq_topic: str) -> Recovered:
    """What is there of the job's letters, in both places, and each that is not as it must be."""
    originals = {(record.topic, record.partition, record.offset): record for record in sent}
    found = Recovered()
    rows = await servers.rows(_LETTERS, job)
    for row, (place, letter, reason) in zip(rows, stored(rows), strict=True):
        found.reasons[reason] += 1
        found.resolved += row["state"] == _RESOLVED
        if row["state"] != _RESOLVED:
            found.differences.append(f"{job}: {_named(place, originals)} is still {row['state']}")
        found.differences += _compared(f"{job}: letter", place, letter, originals)
    records = await servers.records(dlq_topic)
    for place, letter, _ in published(records):
        found.differences += _compared(f"{job}: DLQ topic", place, letter, originals)
    told = {record.header(OURS + "id"): state for record in records if (state := record.header(OURS + "state"))}
    found.told_resolved = sum(state == _RESOLVED for state in told.values())
    return found


def _compared(where: str, place: Place, letter: FoundRecord, originals: dict[Place, FoundRecord]) -> Sequence[str]:
    original = originals.get(place)
    if original is None:
        return [f"{where}: a dead letter of {spell(place)}, where no record stands"]
    return list(bent(f"{where} of {spell(place)}", letter, original))


def _named(place: Place, originals: dict[Place, FoundRecord]) -> str:
    """The order by its id, else by where its record stands."""
    original = originals.get(place)
    found = _ORDER_ID.search(original.value or b"") if original is not None else None
    return f"order {found[1].decode()}" if found else f"the record at {spell(place)}"
