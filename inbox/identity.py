"""From an event to the (bucket, id) that is claimed for it.

The rule is stored per job at its first start: another rule would forget what was claimed before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, timedelta
from hashlib import blake2b
from typing import Any
from uuid import UUID

import msgspec
from asyncpg.pgproto.pgproto import UUID as FastUUID  # noqa: N811  # a uuid.UUID made ten times as fast

from tidegate_kernel.event import Event

CONSTANT_BUCKET = date(1970, 1, 1)
"""Ids that carry no day share this bucket, a partition of its own."""

# A UUIDv7 outside these years is an id that merely looks like one, or a producer with a broken clock: no partition of
# its own for such a day.
_FIRST_DAY = (date(2000, 1, 1) - CONSTANT_BUCKET).days
_LAST_DAY = (date(2100, 1, 1) - CONSTANT_BUCKET).days
_MS_PER_DAY = 86_400_000
# The first five bytes of a UUIDv7 count units of 256 ms, of which a day holds a whole number.
_UNIT_BYTES = 5
_UNITS_PER_DAY = _MS_PER_DAY // 256
_DAYS_KNOWN = 10_000


class ClaimKey(msgspec.Struct, frozen=True, gc=False):
    """What is unique per job in the inbox."""

    bucket: date
    id: UUID


class _Days(dict[bytes, date | None]):
    """The day of a UUIDv7 by its first five bytes; None outside the years that are believed."""

    def __missing__(self, unit: bytes) -> date | None:
        day = int.from_bytes(unit, "big") // _UNITS_PER_DAY
        if len(self) >= _DAYS_KNOWN:
            self.clear()
        found = self[unit] = CONSTANT_BUCKET + timedelta(days=day) if _FIRST_DAY <= day < _LAST_DAY else None
        return found


@dataclass(frozen=True, slots=True)
class ClaimRule:
    """How a job turns event ids into claims.

    `global_ids`: ids that are no UUIDs are unique over all sources, tenants and brands. `bucket_by_event_time`: an id
    without a day of its own is claimed under the day of its event's occurred-at, if the envelope tells one.
    """

    global_ids: bool = False
    bucket_by_event_time: bool = False
    _days: _Days = field(default_factory=_Days, init=False, repr=False, compare=False)

    def spell(self) -> str:
        """The rule as it is stored and compared at start."""
        ids = "global" if self.global_ids else "per-source"
        bucket = "event-time" if self.bucket_by_event_time else "constant"
        return f"v1 ids={ids} bucket={bucket}"

    def is_scoped(self, event_id: str) -> bool:
        """Whether the claim of this id also depends on the event's source, tenant and brand."""
        return not self.global_ids and _uuid(event_id) is None

    def key(self, event: Event[Any]) -> ClaimKey:
        """The claim of `event`: the same for every delivery, whatever topic, offset or clock it arrives by."""
        identity = _uuid(event.id)
        if identity is None:
            return ClaimKey(self._bucket(event), FastUUID(self._hash(event)))
        raw = identity.bytes
        day = self._days[raw[:_UNIT_BYTES]] if raw[6] >> 4 == 7 else None
        return ClaimKey(self._bucket(event) if day is None else day, identity)

    def _bucket(self, event: Event[Any]) -> date:
        if self.bucket_by_event_time and event.has_own_time:
            return event.occurred_at.date()
        # Also where the record's timestamp stands in for the event's time: the next delivery may have another.
        return CONSTANT_BUCKET

    def _hash(self, event: Event[Any]) -> bytes:
        parts = (event.id,) if self.global_ids else (event.source, event.scope.tenant, event.scope.brand, event.id)
        # The lengths keep ("ab", "c") and ("a", "bc") apart.
        spelled = "".join(f"{len(part)}:{part}" for part in parts)
        return blake2b(spelled.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _uuid(text: str) -> UUID | None:
    """The UUID that `text` is in its 36-character form, else None."""
    if len(text) != 36 or not text[8] == text[13] == text[18] == text[23] == "-":
        return None
    try:
        return FastUUID(text)
    except ValueError:
        return None
