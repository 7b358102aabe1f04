"""The journey of a batch: decode, handle, settle.

A ConsumerJob's batch is one transaction: fence and claim, blocked keys, handlers, dead letters and parked events,
outbox, position. A projection's batch is applied first, which is harmless to repeat, and then settled by one fenced
statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import NamedTuple, Protocol

from consumers.batch import Batch, Outcome, Stop
from consumers.claims import BatchClaims, claims_of
from consumers.correcting import decode_corrected, is_known_otherwise
from consumers.decoding import Arrival, Decoded, Decoder
from consumers.dispatch import Dispatcher, Prepared, hidden_failure
from consumers.fold_isolation import isolation_of
from consumers.judging import Judge
from consumers.ledger import Ledger
from consumers.letters import failure_of_record, failure_of_undecoded
from consumers.order import Gate
from consumers.parking import Parking, ParkingFull
from consumers.positions import advance
from consumers.projecting import Projected, project
from consumers.tenants import first_stop
from consumers.trying import as_a_whole_or_apart
from dlq.letters import Failure
from inbox.store import claim, claim_and_settle
from projections.sink import Sink
from tidegate_kernel.errors import Poison, RetryLater, Transient
from tidegate_kernel.outbox import enqueue
from tidegate_kernel.postgres import Connection
from tidegate_kernel.source import Outgoing
from tidegate_kernel.tracing import AttributeValue, batch_span


class Road(Protocol):
    """How a kind of job handles and settles a decoded batch."""

    async def settle(self, batch: Batch, decoded: Decoded) -> Outcome:
        """Effects, claims, dead letters and position are final, or nothing is.

        Raises StaleOwner (the partition is another's), Transient (roll back, wait, try again).
        """


class Pipeline:
    """Takes a batch of one partition to its end."""

    def __init__(self, decoder: Decoder, road: Road, ledger: Ledger, parking: Parking) -> None:
        self._decoder, self._road, self._ledger, self._parking = decoder, road, ledger, parking
        self.paused_tenants: Mapping[str, str] = {}
        """Tenants of whom nothing may be begun, and why: by whom, until when."""

    async def handle(self, batch: Batch) -> Outcome:
        """Every record of `batch` was handled, parked, dropped as a duplicate or skipped, or is a dead letter.

        Where one is of a paused tenant, or there is no room to park it, that holds of the records before it; the
        outcome's `stop` tells where that is. Raises StaleOwner or Transient as `Road.settle`.
        """
        if batch.unreadable is not None and not is_known_otherwise(batch):
            return await self._bury(batch, batch.unreadable)
        decoded = self._decode(batch)
        # Asked once a batch: while no tenant is paused, which is nearly always, no event is looked at for it.
        stop = first_stop(decoded, self.paused_tenants) if self.paused_tenants else None
        if stop is None:
            try:
                return await self._settle(batch, decoded)
            except ParkingFull as full:
                stop = full.stop
        if batch.is_begun:
            return Outcome(stop=replace(stop, offset=batch.fence.next_offset))  # whole or not at all
        return await self._handle_before(batch, stop)

    async def _handle_before(self, batch: Batch, stop: Stop) -> Outcome:
        while (allowed := batch.before(stop.offset)).records:
            try:
                return replace(await self._settle(allowed, self._decode(allowed)), stop=stop)
            except ParkingFull as full:
                stop = full.stop
        return Outcome(stop=stop)

    def _decode(self, batch: Batch) -> Decoded:
        return decode_corrected(self._decoder, batch) if batch.corrections else self._decoder.decode(batch.records)

    async def _settle(self, batch: Batch, decoded: Decoded) -> Outcome:
        told: dict[str, AttributeValue] = {
            "messaging.system": "kafka",
            "messaging.destination.name": batch.fence.topic,
            "messaging.destination.partition.id": str(batch.fence.partition),
            "messaging.kafka.offset": batch.fence.next_offset,
            "messaging.batch.message_count": len(batch.records),
            "tidegate.job": self._ledger.origin.job_code,
            "tidegate.run": batch.fence.run,
            "tidegate.epoch": batch.fence.epoch,
        }
        events = (arrival.event for arrival in decoded.events)
        with batch_span((event.traceparent for event in events), told, partial(_whose, decoded)):
            return await self._road.settle(batch, decoded)

    async def _bury(self, batch: Batch, error: Poison) -> Outcome:
        """A record the client itself cannot hand over is a dead letter with its coordinates; raises as `handle`."""
        failure = failure_of_record(batch, batch.records[0], error, reason=error.reason)
        async with self._ledger.transaction() as connection:
            letters = await self._ledger.keep(connection, [failure])
            for letter in letters.values():  # none where it has been erased
                await self._parking.block_behind(connection, failure, letter)
            await advance(connection, batch.fence, next_offset=batch.next_offset)
        return Outcome(failures=[failure])


def _whose(decoded: Decoded) -> Mapping[str, Iterable[str | None]]:
    events = [arrival.event for arrival in decoded.events]
    return {
        "tidegate.tenant": (event.scope.tenant for event in events),
        "tidegate.correlation_id": (event.correlation_id for event in events),
    }


class _Handled(NamedTuple):
    """What the handlers made of a batch's new events; those that `gate` does not admit have to wait."""

    fresh: Sequence[Arrival]
    gate: Gate
    published: Sequence[Outgoing]
    failed: Sequence[Failure]


def _note_nothing(_: Sequence[Outgoing]) -> None:
    """For roads whose target publishes nothing."""


class CommandRoad:
    """One transaction for everything: the claim and the handler's own statements commit together or not at all."""

    def __init__(
        self,
        ledger: Ledger,
        parking: Parking,
        dispatcher: Dispatcher,
        judge: Judge,
        *,
        silence_limit: timedelta,
        note_published: Callable[[Sequence[Outgoing]], None] = _note_nothing,
    ) -> None:
        self._ledger, self._parking, self._dispatcher, self._judge = ledger, parking, dispatcher, judge
        self._silence_limit, self._note_published = silence_limit, note_published

    async def settle(self, batch: Batch, decoded: Decoded) -> Outcome:
        claims = claims_of(self._ledger.rule, batch, decoded.events)
        return await as_a_whole_or_apart(
            batch.attempts,
            self._judge,
            whole=partial(self._all_at_once, batch, decoded, claims),
            apart=partial(self._one_by_one, batch, decoded, claims),
        )

    async def _all_at_once(self, batch: Batch, decoded: Decoded, claims: BatchClaims) -> Outcome:
        prepared = await self._prepare(claims.firsts)
        async with self._ledger.transaction() as connection:
            fresh, gate = await self._claim(connection, batch, decoded, claims)
            admitted = gate.admitted(fresh)
            published = await self._dispatcher.dispatch(admitted, connection, prepared) if admitted else ()
            return await self._settle(connection, batch, decoded, claims, _Handled(fresh, gate, published, ()))

    async def _one_by_one(self, batch: Batch, decoded: Decoded, claims: BatchClaims) -> Outcome:
        isolation = isolation_of(batch, claims.by_offset(), self._dispatcher, self._judge)
        prepared = await isolation.prepare(claims.firsts)
        try:
            async with self._ledger.transaction() as connection:
                fresh, gate = await self._claim(connection, batch, decoded, claims)
                await isolation.run(connection, fresh, prepared, gate)
                handled = _Handled(fresh, gate, isolation.published, isolation.failures)
                return await self._settle(connection, batch, decoded, claims, handled)
        except Transient as error:
            if not isinstance(error, RetryLater) and (hidden := hidden_failure(error)) is not None:
                await isolation.blame(hidden)
            raise

    async def _claim(
        self, connection: Connection, batch: Batch, decoded: Decoded, claims: BatchClaims
    ) -> tuple[Sequence[Arrival], Gate]:
        duplicates, is_any_blocked = await claim(
            connection,
            batch.fence,
            claims.keys,
            silence_limit=self._silence_limit,
            asks_for_blocked=self._parking.parks,
        )
        fresh = claims.fresh(duplicates)
        # A statement of its own, if any: with the claim's snapshot a key would pass its own fresh dead letter.
        return fresh, await self._parking.gate(connection, batch, decoded, fresh, is_any_blocked=is_any_blocked)

    async def _settle(
        self, connection: Connection, batch: Batch, decoded: Decoded, claims: BatchClaims, handled: _Handled
    ) -> Outcome:
        fresh, gate, published, failed = handled
        failures = [*failed, *(failure_of_undecoded(batch, undecoded) for undecoded in decoded.failures)]
        letters = await self._ledger.keep(connection, failures)
        parked = await self._parking.keep(connection, batch, gate, claims=claims, fresh=fresh, letters=letters)
        if published:
            await enqueue(connection, published)
            self._note_published(published)
        await advance(connection, batch.fence, next_offset=batch.next_offset)
        return Outcome(
            applied=len(fresh) - len(failed) - parked,
            duplicates=len(claims.keys) - len(fresh) + claims.repeats,
            skipped=decoded.passed_by + len(decoded.tombstones),
            parked=parked,
            failures=failures,
        )

    async def _prepare(self, arrivals: Sequence[Arrival]) -> Prepared:
        if not self._dispatcher.prepares:
            return {}
        return {arrival.record.offset: await self._dispatcher.prepare(arrival) for arrival in arrivals}


class ProjectionRoad:
    """Apply, then settle. A crash in between applies again, which a versioned sink does not notice."""

    def __init__(self, ledger: Ledger, sink: Sink) -> None:
        self._ledger, self._sink = ledger, sink

    async def settle(self, batch: Batch, decoded: Decoded) -> Outcome:
        claims = claims_of(self._ledger.rule, batch, decoded.events)
        projected = project(batch, decoded, claims, self._sink)
        applied = await self._sink.apply(projected.encoded)
        projected.refuse(applied.refused)
        if projected.has_failures or decoded.failures:
            seen, failures = await self._settle_with_letters(batch, decoded, claims, projected)
        else:
            seen, failures = await self._settle(batch, claims), []
        # A backfill applies again what was claimed long ago: that is its purpose, not a duplicate.
        duplicates = claims.repeats if self._ledger.origin.backfill else len(seen) + claims.repeats
        return Outcome(
            applied=len(batch.records) - decoded.passed_by - duplicates - len(failures),
            duplicates=duplicates,
            skipped=decoded.passed_by,
            stale=applied.stale,
            failures=failures,
        )

    async def _settle(self, batch: Batch, claims: BatchClaims) -> frozenset[int]:
        async with self._ledger.statement() as connection:
            return await claim_and_settle(connection, batch.fence, claims.keys, next_offset=batch.next_offset)

    async def _settle_with_letters(
        self, batch: Batch, decoded: Decoded, claims: BatchClaims, projected: Projected
    ) -> tuple[frozenset[int], list[Failure]]:
        async with self._ledger.transaction() as connection:
            seen = await claim_and_settle(connection, batch.fence, claims.keys, next_offset=batch.next_offset)
            # A backfill runs newer code over events that were claimed long ago: what fails now is news.
            fresh = claims.firsts if self._ledger.origin.backfill else claims.fresh(seen)
            failures = projected.letters(fresh)
            failures += (failure_of_undecoded(batch, undecoded) for undecoded in decoded.failures)
            await self._ledger.keep(connection, failures)
            return seen, failures
