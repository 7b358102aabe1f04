"""What must be there, from what was written and the stated rules alone."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from hashlib import blake2b
from zlib import crc32

from tests.chaos.auditor.found import LEDGER, REPORT, SEARCH
from tests.chaos.auditor.written import Logged, Place, Told, Written

_SOURCE, _BRAND = "/chaos/producer", "chaos"
_NO_DAY = date(1970, 1, 1)
BEHIND, RESOLVED = "behind", "resolved"
CLOSED = (RESOLVED, "discarded")
"""What waits behind such a letter waits no longer."""
LETTERS: Mapping[str, Mapping[str, str]] = {
    LEDGER: {"garbage": "undecodable", "refused": "rejected"},
    SEARCH: {"garbage": "undecodable"},
    REPORT: {"garbage": "undecodable"},
}
"""Which kinds are dead letters of a job, and why."""


@dataclass(frozen=True)
class Newest:
    """The newest state of a thing; no document where it was removed."""

    version: int
    document: Mapping[str, object] | None


States = Mapping[Place, str]
"""What became of the ledger's dead letters, as their rows tell it."""
_NONE: States = {}
MENDED = "refused"
"""Of this kind a mended ledger can handle the even amounts."""


def events(written: Written, states: States = _NONE) -> dict[str, Told]:
    """Every event that the ledger must apply once, by id: also those whose letters were resolved, and what waited."""
    open_keys = _open_keys(written, states)
    return {
        told.event_id: told
        for logged, told in written.firsts()
        if told.is_applied_by_ledger
        or (told.kind == MENDED and states.get(logged.place) == RESOLVED)
        or (told.kind == BEHIND and not _waits(logged, told, open_keys))
    }


def parked(written: Written, states: States = _NONE) -> dict[str, Told]:
    """Every event that the ledger must neither apply nor drop, by id: it comes behind a dead letter of its key."""
    open_keys = _open_keys(written, states)
    return {t.event_id: t for at, t in written.firsts() if t.kind == BEHIND and _waits(at, t, open_keys)}


def must_be_resolved(written: Written) -> dict[Place, Told]:
    """Letters of the ledger that the last replay, by a mended ledger, brings to their end."""
    firsts = written.firsts()
    return {at.place: told for at, told in firsts if told.kind == MENDED and told.cents % 2 == 0}


def _open_keys(written: Written, states: States) -> dict[str, int]:
    """The first offset of each key at which a dead letter of the ledger still stands."""
    found: dict[str, int] = {}
    for logged, _ in dead(written, LEDGER):
        if states.get(logged.place) not in CLOSED:
            key = (logged.key or b"").decode()
            found[key] = min(logged.place[2], found.get(key, logged.place[2]))
    return found


def _waits(logged: Logged, told: Told, open_keys: Mapping[str, int]) -> bool:
    return open_keys.get(told.key, logged.place[2]) < logged.place[2]


def order_of_keys(written: Written, states: States = _NONE) -> dict[str, list[str]]:
    """Ids of the ledger's events in the order in which each key's log has them first. Twins have no order."""
    order: dict[str, list[str]] = defaultdict(list)
    for told in events(written, states).values():
        if not told.key.startswith("twin-"):
            order[told.key].append(told.event_id)
    return order


def newest(written: Written) -> dict[str, Newest]:
    """The newest state of everything that projections were told."""
    states: dict[str, Newest] = {}
    for _, told in written.records:
        if not told.is_taken and told.kind != "removal":
            continue
        if told.key not in states or told.version > states[told.key].version:
            states[told.key] = Newest(told.version, None if told.kind == "removal" else _document(told))
    return states


def claims(written: Written) -> dict[tuple[date, uuid.UUID], Told]:
    """What every job must have claimed: each event that it can decode and takes, once."""
    return {claim(told): told for _, told in written.firsts() if told.is_taken}


def claim(told: Told) -> tuple[date, uuid.UUID]:
    """A UUID as it is, under its own day if it is of version 7; other ids by their source, tenant, brand and text."""
    try:
        identity = uuid.UUID(told.event_id)
    except ValueError:
        parts = (_SOURCE, tenant_of(told.key), _BRAND, told.event_id)
        spelled = "".join(f"{len(part)}:{part}" for part in parts)
        return _NO_DAY, uuid.UUID(bytes=blake2b(spelled.encode(), digest_size=16).digest())
    if identity.version != 7:
        return _NO_DAY, identity
    return datetime.fromtimestamp((identity.int >> 80) / 1000, UTC).date(), identity


def dead(written: Written, job: str) -> Sequence[tuple[Logged, str]]:
    """The records that must be dead letters of the job, each with its reason.

    Of a refused event every delivery after the first is a duplicate: its claim is kept.
    """
    reasons, refused, expected = LETTERS[job], set[str](), []
    for logged, told in written.records:
        if told.kind not in reasons or told.event_id in refused:
            continue
        if told.kind == "refused":
            refused.add(told.event_id)
        expected.append((logged, reasons[told.kind]))
    return expected


def tenant_of(key: str) -> str:
    return "north" if crc32(key.encode()) % 7 < 4 else "south"


def _document(told: Told) -> Mapping[str, object]:
    return {"key": told.key, "version": told.version, "cents": told.cents, "event_id": told.event_id}
