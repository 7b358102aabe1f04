"""What the producer writes: changes of many things, and everything that makes it hard to apply each of them once."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from random import Random
from zlib import crc32

import msgspec

CHANGES, MIRROR = "chaos.changes", "chaos.mirror"
PARTITIONS = {CHANGES: 4, MIRROR: 2}
SOURCE = "/chaos/producer"
# Few enough that each is changed every other second, so that order per key has something to show.
_KEYS = 500
# Between two versions of a key there is room for late ones.
_VERSION_STEP = 10
# A repeat may come at once or long after: of so many earlier changes any may be repeated.
_REMEMBERED = 20_000


class Kind(StrEnum):
    """What a record is to the jobs."""

    CHANGE = "change"
    LATE = "late"  # a change of its own, with an older version than what was told before
    REPEAT = "repeat"  # the same event once more, at a new offset
    TWIN = "twin"  # the same event in the other topic
    REMOVAL = "removal"  # no value: the thing is gone as of its version
    GARBAGE = "garbage"  # no job can decode it
    REFUSED = "refused"  # the ledger rejects it, the projections take it
    BEHIND = "behind"  # a change that comes behind one of these two under its key: the ledger must not take it
    UNLISTED = "unlisted"  # a type that no job takes


_WEIGHTS = {
    Kind.CHANGE: 800,
    Kind.LATE: 50,
    Kind.REPEAT: 60,
    Kind.TWIN: 30,
    Kind.REMOVAL: 30,
    Kind.GARBAGE: 8,
    Kind.REFUSED: 2,
    Kind.UNLISTED: 20,
}


class Told(msgspec.Struct, frozen=True, gc=False):
    """One record as the producer means it; this is what its log keeps. `number` is unique per record told."""

    number: int
    kind: Kind
    topic: str
    key: str
    event_id: str
    version: int
    cents: int

    @property
    def partition(self) -> int:
        return crc32(self.key.encode()) % PARTITIONS[self.topic]


class Story:
    """The same records in the same order for the same seed, but for the days in their ids."""

    def __init__(self, seed: int, began: datetime) -> None:
        self._chance = Random(seed)
        self._began = began
        self._number = 0
        self._versions: dict[str, int] = {}
        self._lates: dict[str, int] = {}
        self._earlier: deque[Told] = deque(maxlen=_REMEMBERED)

    def next(self, count: int) -> list[Told]:
        """At least `count` more records."""
        told: list[Told] = []
        while len(told) < count:
            told += self._tell(self._chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0])
        return told

    def _tell(self, kind: Kind) -> Sequence[Told]:
        key = f"k{self._chance.randrange(_KEYS):04d}"
        match kind:
            case Kind.REPEAT if self._earlier:
                earlier = self._earlier[self._chance.randrange(len(self._earlier))]
                return [msgspec.structs.replace(earlier, number=self._count(), kind=Kind.REPEAT)]
            case Kind.LATE if (version := self._late_version(key)) is not None:
                return [self._change(Kind.LATE, key, version)]
            case Kind.TWIN:
                # A thing of its own: between two topics there is no order to be kept.
                first = self._change(Kind.TWIN, f"twin-{self._number}", _VERSION_STEP)
                return [first, msgspec.structs.replace(first, number=self._count(), topic=MIRROR)]
            case Kind.REMOVAL:
                return [Told(self._count(), kind, CHANGES, key, "", self._next_version(key), 0)]
            case Kind.UNLISTED:
                return [self._change(kind, f"{kind}-{self._number}", 0, is_remembered=False)]
            case Kind.GARBAGE | Kind.REFUSED:
                bad = self._change(kind, f"{kind}-{self._number}", _VERSION_STEP, is_remembered=False, sign=-1)
                return [bad, self._change(Kind.BEHIND, bad.key, 2 * _VERSION_STEP, is_remembered=False)]
            case _:
                return [self._change(Kind.CHANGE, key, self._next_version(key))]

    def _change(self, kind: Kind, key: str, version: int, *, is_remembered: bool = True, sign: int = 1) -> Told:
        number, cents = self._count(), sign * self._chance.randrange(1, 1000)
        told = Told(number, kind, CHANGES, key, self._identity(number), version, cents)
        if is_remembered:
            self._earlier.append(told)
        return told

    def _identity(self, number: int) -> str:
        """Three habits of producers: UUIDv7, random UUIDs, plain text."""
        raw = self._chance.randbytes(16)
        match number % 3:
            case 0:
                return str(_uuid7(self._began, number, raw))
            case 1:
                return str(uuid.UUID(bytes=raw, version=4))
            case _:
                return f"event-{number}"

    def _next_version(self, key: str) -> int:
        self._versions[key] = self._versions.get(key, 0) + _VERSION_STEP
        self._lates[key] = 0
        return self._versions[key]

    def _late_version(self, key: str) -> int | None:
        """A version before the newest that nothing else has; None where there is none."""
        newest, used = self._versions.get(key, 0), self._lates.get(key, 0)
        if newest == 0 or used == _VERSION_STEP - 1:
            return None
        self._lates[key] = used + 1
        return newest - _VERSION_STEP + used + 1

    def _count(self) -> int:
        self._number += 1
        return self._number


def tenant_of(key: str) -> str:
    """Half of the things belong to each of two tenants."""
    return "north" if crc32(key.encode()) % 7 < 4 else "south"


def wire(told: Told, now: datetime) -> tuple[bytes, bytes | None, list[tuple[str, bytes]]]:
    """Key, value and headers. The header `told` leads from a record back to the producer's log."""
    headers = [("told", b"%d" % told.number)]
    if told.kind is Kind.REMOVAL:
        return told.key.encode(), None, [*headers, ("version", b"%d" % told.version)]
    type_ = "chaos.noise" if told.kind is Kind.UNLISTED else "chaos.changed"
    attributes = {
        "specversion": "1.0",
        "id": told.event_id,
        "source": SOURCE,
        "type": type_,
        "time": now.astimezone(UTC).isoformat(),
        "tenantid": tenant_of(told.key),
        "brandid": "chaos",
    }
    headers += [("content-type", b"application/json")]
    headers += [(f"ce_{name}", text.encode()) for name, text in attributes.items()]
    if told.kind is Kind.GARBAGE:
        return told.key.encode(), b"\xff\xfe{", headers
    body = {"key": told.key, "version": told.version, "cents": told.cents}
    return told.key.encode(), msgspec.json.encode(body), headers


def _uuid7(began: datetime, number: int, raw: bytes) -> uuid.UUID:
    milliseconds = int(began.timestamp() * 1000) + number
    rest = bytearray(raw[6:])
    rest[0] = rest[0] & 0x0F | 0x70
    rest[2] = rest[2] & 0x3F | 0x80
    return uuid.UUID(bytes=milliseconds.to_bytes(6, "big") + bytes(rest))
