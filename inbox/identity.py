"""From an event to the (bucket, id) that is claimed for it.

The rule is stored per job at its first start: another rule would forget what was claimed before.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from hashlib import blake2b
from typing import Any, NamedTuple
from uuid import UUID

from tidegate_kernel.event import Event

CONSTANT_BUCKET = date(1970, 1, 1)
"""Ids that carry no day share this bucket, a partition of its own."""

# A UUIDv7 outside these years is an id that merely looks like one, or a producer with a broken clock: no partition of
# its own for such a day.
_FIRST_DAY = (date(2000, 1, 1) - CONSTANT_BUCKET).days
_LAST_DAY = (date(2100, 1, 1) - CONSTANT_BUCKET).days
_MS_PER_DAY = 86_400_000


class ClaimKey(NamedTuple):
    """What is unique per job in the inbox."""

    bucket: date
    id: UUID


@dataclass(frozen=True, slots=True)
class ClaimRule:
    """How a job turns event ids into claims.

    `global_ids`: ids that are no UUIDs are unique over all sources, tenants and brands. `bucket_by_event_time`: an id
    without a day of its own is claimed under the day of its event's occurred-at.
    """

    global_ids: bool = False
    bucket_by_event_time: bool = False

    def spell(self) -> str:
        """The rule as it is stored and compared at start."""
        ids = "global" if self.global_ids else "per-source"
        bucket = "event-time" if self.bucket_by_event_time else "constant"
        return f"v1 ids={ids} bucket={bucket}"

    def key(self, event: Event[Any]) -> ClaimKey:
        """The claim of `event`: the same for every delivery, whatever topic, offset or clock it arrives by."""
        raw = _uuid_bytes(event.id)
        if raw is None:
            return ClaimKey(self._bucket(event), UUID(bytes=self._hash(event)))
        if raw[6] >> 4 == 7:
            day = int.from_bytes(raw[:6], "big") // _MS_PER_DAY
            if _FIRST_DAY <= day < _LAST_DAY:
                return ClaimKey(CONSTANT_BUCKET + timedelta(days=day), UUID(bytes=raw))
        return ClaimKey(self._bucket(event), UUID(bytes=raw))

    def _bucket(self, event: Event[Any]) -> date:
        return event.occurred_at.date() if self.bucket_by_event_time else CONSTANT_BUCKET

    def _hash(self, event: Event[Any]) -> bytes:
        parts = (event.id,) if self.global_ids else (event.source, event.scope.tenant, event.scope.brand, event.id)
        # The lengths keep ("ab", "c") and ("a", "bc") apart.
        spelled = "".join(f"{len(part)}:{part}" for part in parts)
        return blake2b(spelled.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _uuid_bytes(text: str) -> bytes | None:
    """The 16 bytes of a UUID in its 36-character form, else None."""
    if len(text) != 36 or text[8] != "-" or text[13] != "-" or text[18] != "-" or text[23] != "-":
        return None
    try:
        raw = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        return None
    return raw if len(raw) == 16 else None
