"""Order past a failure: which events of a batch have to wait behind a dead letter of their key.

A ConsumerJob asks once a batch, in the claim's own statement, whether any key of the job is blocked. Nearly always none
is, and nothing more is asked or computed. Why that is safe:

- The answer is read by a snapshot taken after the claim has its ids (`tidegate.has_blocked_key`). A claim waits for
  whoever is taking one of its ids; if that one left a dead letter, its event is a duplicate here, and its key must be
  seen to be blocked. The claim's own snapshot, older than the wait, would not show it.
- Dead letters of this partition's earlier batches were committed before the claim began: one batch at a time, and the
  fence keeps out every other owner.
- What blocks a key later, from another partition, is concurrent with this batch: there never was an order between them.
- If some key is blocked, the keys of the batch are looked up and locked in a statement of its own, so a replay that is
  emptying one of them is waited for, and one that comes later waits for this batch and finds what it has parked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from consumers.batch import Batch, Stop
from consumers.claims import BatchClaims
from consumers.decoding import Arrival, Decoded
from consumers.order import Gate, Order
from dlq.letters import Failure, Origin
from dlq.parking import (
    Blocking,
    OrderKey,
    Parked,
    blocked_among,
    decided_offsets,
    park,
    parked_now,
    record_key,
    sequences_ahead,
)
from tidegate_kernel.errors import Misconfigured, TidegateError
from tidegate_kernel.postgres import Connection, Pool, translated_errors


@dataclass(frozen=True, slots=True)
class ParkingLimit:
    """How many events may be parked behind the dead letters of one key, and of all keys of a job together.

    At the limit the partition rests until there is room. Several partitions at once may exceed that of the job by a
    batch each.
    """

    per_key: int = 1_000
    per_job: int = 100_000

    def __post_init__(self) -> None:
        if self.per_key < 1 or self.per_job < 1:
            raise Misconfigured("a ParkingLimit needs per_key and per_job of at least 1")


class ParkingFull(TidegateError):
    """The event at `stop` has to be parked and there is no room: roll back, and settle what is before it."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.why)
        self.stop = stop


class Parking:
    """Parks events of one job. `order` None: later events of a key pass its dead letters, nothing is ever parked."""

    def __init__(self, pool: Pool, origin: Origin, order: Order | None, limit: ParkingLimit) -> None:
        self._pool, self._origin, self._order, self._limit = pool, origin, order, limit

    @property
    def parks(self) -> bool:
        return self._order is not None

    async def gate(
        self, connection: Connection, batch: Batch, decoded: Decoded, fresh: Sequence[Arrival], *, is_any_blocked: bool
    ) -> Gate:
        """In the caller's transaction, after its claim: what is known to be in the way of `fresh`."""
        gate = Gate(self._order)
        if self._order is None:
            return gate
        if is_any_blocked:
            await self._block(connection, batch, gate, fresh)
        if decoded.failures or batch.attempts.is_isolating:
            gate.decided = await decided_offsets(connection, self._origin.job, batch.topic_id, batch.records)
        for undecoded in decoded.failures:
            gate.close_behind(undecoded.record, record_key(undecoded.record))
        return gate

    async def _block(self, connection: Connection, batch: Batch, gate: Gate, fresh: Sequence[Arrival]) -> None:
        # Of each key its first event: the later ones are looked at first, and overwritten.
        earliest = {key: arrival.record.offset for arrival in reversed(fresh) for key in gate.keys(arrival)}
        blocked = await blocked_among(connection, self._origin.job, earliest.keys())
        if blocked:
            of_blocked = {key: earliest[key] for key in blocked}
            ahead = await sequences_ahead(
                connection, self._origin.job, of_blocked, topic_id=batch.topic_id, partition=batch.fence.partition
            )
            gate.block(blocked, ahead)

    async def keep(
        self,
        connection: Connection,
        batch: Batch,
        gate: Gate,
        *,
        claims: BatchClaims,
        fresh: Sequence[Arrival],
        letters: Mapping[int, UUID],
    ) -> int:
        """In the caller's transaction: what `gate` does not admit of `fresh` is parked; returns how many that are.

        `letters` are the batch's dead letters by offset, kept already: their keys are blocked. Raises ParkingFull.
        """
        waiting = [arrival for arrival in fresh if not gate.admits(arrival)] if gate.is_closed else []
        if not waiting and not gate.letters:
            return 0
        events = self._parked(batch, gate, claims, waiting)
        await self._raise_if_full(connection, gate, events)
        # A letter that has just been erased blocks nothing.
        blocking = [Blocking(letters[at], key, at) for at, key in sorted(gate.letters.items()) if at in letters]
        await park(connection, self._origin.job, blocking, events)
        return len(events)

    async def block_behind(self, connection: Connection, failure: Failure, letter: UUID) -> None:
        """In the caller's transaction: the letter of a record that never became an event blocks its key."""
        key, offset = record_key(failure.record), failure.record.offset
        if self._order is None or key is None:
            return
        if offset not in await decided_offsets(connection, self._origin.job, failure.topic_id, [failure.record]):
            await park(connection, self._origin.job, [Blocking(letter, key, offset)], [])

    async def has_room(self, key: OrderKey) -> bool:
        """Whether an event of `key` could be parked now. Raises Transient."""
        with translated_errors("look for room to park"):
            async with self._pool.acquire(timeout=10) as connection:
                of_key, of_job = await parked_now(connection, self._origin.job, key)
        return of_key < self._limit.per_key and of_job < self._limit.per_job

    def _parked(self, batch: Batch, gate: Gate, claims: BatchClaims, waiting: Sequence[Arrival]) -> list[Parked]:
        taken = claims.by_offset() if waiting else {}
        return [
            Parked(
                record=arrival.record,
                topic_id=batch.topic_id,
                key=keys[0],
                waits_for=next((key for key in keys[1:] if gate.blocks(key)), None),
                event_id=arrival.event.id,
                event_type=arrival.event.type,
                scope=arrival.event.scope,
                claim=(taken[arrival.record.offset].bucket, taken[arrival.record.offset].id),
            )
            for arrival in waiting
            for keys in [gate.keys(arrival)]
        ]

    async def _raise_if_full(self, connection: Connection, gate: Gate, events: Sequence[Parked]) -> None:
        if not events:
            return
        _, total = await parked_now(connection, self._origin.job, events[0].key)
        counts = dict(gate.parked_before)
        for event in events:
            parked = counts.get(event.key, 0)
            if parked >= self._limit.per_key:
                raise ParkingFull(_full(event, f"{parked} events are parked behind a dead letter of the same key"))
            if total >= self._limit.per_job:
                raise ParkingFull(_full(event, f"{total} events of the job are parked behind dead letters"))
            counts[event.key], total = parked + 1, total + 1


def _full(event: Parked, why: str) -> Stop:
    return Stop(event.record.offset, f"offset {event.record.offset} has to be parked, and {why}", full=event.key)
