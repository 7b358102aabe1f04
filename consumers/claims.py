"""The claims of a batch: one per distinct event, in the order of first arrival."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from uuid import UUID

from consumers.batch import Batch
from consumers.decoding import Arrival
from inbox.identity import CONSTANT_BUCKET, ClaimKey, ClaimRule


@dataclass(frozen=True, slots=True)
class BatchClaims:
    """`keys[i]` is claimed for `firsts[i]`; `repeats` later arrivals of the batch carry an id that is among them."""

    keys: Sequence[ClaimKey]
    firsts: Sequence[Arrival]
    repeats: int

    def fresh(self, seen: frozenset[int]) -> Sequence[Arrival]:
        """The arrivals whose key is not at an index of `seen`."""
        if not seen:
            return self.firsts
        return [arrival for index, arrival in enumerate(self.firsts) if index not in seen]

    def by_offset(self) -> dict[int, ClaimKey]:
        """The claim of each first arrival by its record's offset; built only when something failed."""
        return {arrival.record.offset: key for key, arrival in zip(self.keys, self.firsts, strict=True)}


def claims_of(rule: ClaimRule, batch: Batch, arrivals: Iterable[Arrival]) -> BatchClaims:
    """Returns the distinct claims of `arrivals`. Postgres sorts them, so that two batches never deadlock."""
    firsts: dict[bytes, Arrival] = {}
    keys: list[ClaimKey] = []
    count = 0
    for count, arrival in enumerate(arrivals, start=1):  # noqa: B007  # the last count is the number of arrivals
        event = arrival.event
        key = rule.key(event) if event.id else _key_from_coordinates(batch.topic_id, arrival)
        # The 16 bytes alone: they say what the event is, and its day follows from that.
        identity = key.id.bytes
        if identity not in firsts:
            firsts[identity] = arrival
            keys.append(key)
    return BatchClaims(keys, list(firsts.values()), count - len(keys))


def _key_from_coordinates(topic_id: UUID, arrival: Arrival) -> ClaimKey:
    """No id in the record: a second delivery is known by where it stood, in this incarnation of the topic."""
    record = arrival.record
    spelled = f"{topic_id}:{record.topic}:{record.partition}:{record.offset}"
    return ClaimKey(CONSTANT_BUCKET, UUID(bytes=blake2b(spelled.encode(), digest_size=16).digest()))
