"""Stable batches: begin, apply, settle. For sinks that count what they are given, as materialized views do.

A versioned write may be repeated; a counted one may not. So each event is claimed, and the range of records with what
is left out of it is written down, before anything is applied: whoever comes after a crash applies exactly that range
again, under the same name, which the store takes once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

from consumers.batch import Batch, Outcome
from consumers.claims import BatchClaims, claims_of
from consumers.decoding import Arrival, Decoded
from consumers.ledger import Ledger
from consumers.letters import failure_of_record, failure_of_undecoded
from consumers.positions import advance
from consumers.projecting import Projected, project
from consumers.ranges import Begun, begin_range, begun_range
from dlq.letters import Failure
from inbox.store import claim
from projections.stable import StableSink
from tidegate_kernel.errors import Poison, Reason

# As for every projection: its transactions hold nothing but statements.
_SILENCE_LIMIT = timedelta(seconds=60)


class StableRoad:
    """As `consumers.pipeline.Road`, for a stable sink."""

    def __init__(self, ledger: Ledger, sink: StableSink) -> None:
        self._ledger, self._sink = ledger, sink

    async def settle(self, batch: Batch, decoded: Decoded) -> Outcome:
        claims = claims_of(self._ledger.rule, batch, decoded.events)
        projected = project(batch, decoded, claims, self._sink)
        begun = await self._begin(batch, decoded, claims, projected)
        _fail_as_begun(batch, decoded, projected, begun)
        failures = _failures(batch, decoded, projected, begun)
        left_out = begun.repeats.union(begun.failed, (failure.record.offset for failure in failures))
        await self._sink.apply_range(_writes(projected, left_out), _name(self._ledger, batch))
        async with self._ledger.transaction() as connection:
            await advance(connection, batch.fence, next_offset=batch.next_offset)
            await self._ledger.keep(connection, failures)
        return Outcome(
            applied=len(batch.records) - decoded.passed_by - len(begun.repeats) - len(failures),
            duplicates=len(begun.repeats),
            skipped=decoded.passed_by,
            failures=failures,
        )

    async def _begin(self, batch: Batch, decoded: Decoded, claims: BatchClaims, projected: Projected) -> Begun:
        async with self._ledger.transaction() as connection:
            begun = await begun_range(connection, batch.fence, next_offset=batch.next_offset)
            if begun is not None:
                return begun
            claimed = await claim(connection, batch.fence, claims.keys, silence_limit=_SILENCE_LIMIT)
            fresh = {arrival.record.offset for arrival in claims.fresh(claimed.duplicates)}
            repeats = {arrival.record.offset for arrival in decoded.events} - fresh
            failed = _failing(decoded, projected) - repeats
            return await begin_range(
                connection, batch.fence, next_offset=batch.next_offset, failed=failed, repeats=repeats
            )


async def apply_letters(
    ledger: Ledger, sink: StableSink, batch: Batch, projected: Projected, *, fresh: Collection[int]
) -> None:
    """The writes of replayed dead letters are in, each letter's under a name of its own; of events, those at `fresh`.

    A replay that ends between this and its verdict is repeated, perhaps together with other letters.
    """
    writes: dict[int, list[Any]] = {}
    for encoded, owner in zip(projected.encoded, projected.owners, strict=True):
        offset = projected.offset_of(owner)
        if offset in fresh or not isinstance(owner, Arrival):
            writes.setdefault(offset, []).append(encoded)
    for offset, encoded_writes in writes.items():
        name = f"{_whose(ledger, batch)}:letter:{batch.topic_id}:{batch.fence.partition}:{offset}"
        await sink.apply_range(encoded_writes, name)


def _name(ledger: Ledger, batch: Batch) -> str:
    """Which range it is, and whose: a backfill has a number of its own, as it takes other events."""
    fence = batch.fence
    range_name = f"{batch.topic_id}:{fence.partition}:{fence.next_offset}-{batch.next_offset - 1}"
    return f"{_whose(ledger, batch)}:{fence.run}:{range_name}"


def _whose(ledger: Ledger, batch: Batch) -> str:
    """Each generation of a job has a number; services with databases of their own may use one number each."""
    return f"tg:{ledger.origin.service}:{ledger.origin.job_code}:{batch.fence.job}"


def _failing(decoded: Decoded, projected: Projected) -> set[int]:
    failing = {undecoded.record.offset for undecoded in decoded.failures}
    failing.update(failure.record.offset for failure in projected.failed_events)
    failing.update(failure.record.offset for failure in projected.failed_tombstones)
    return failing


def _fail_as_begun(batch: Batch, decoded: Decoded, projected: Projected, begun: Begun) -> None:
    """What failed when the range was begun fails now, also where newer code could project it.

    Its row may be missing from what the store took then, and would be passed over now: it must not go under.
    """
    mended = begun.failed - _failing(decoded, projected)
    if not mended:
        return
    error = Poison(
        "it failed when its batch was begun, by code that may have been mended since; replay it",
        reason=Reason.PROJECTION_FAILED,
    )
    arrivals = {arrival.record.offset: arrival for arrival in decoded.events}
    for record in batch.records:
        if record.offset in mended and record.offset in arrivals:
            projected.fail(arrivals[record.offset], error)
        elif record.offset in mended:
            projected.failed_tombstones.append(failure_of_record(batch, record, error, reason=error.reason))


def _failures(batch: Batch, decoded: Decoded, projected: Projected, begun: Begun) -> list[Failure]:
    """The letters to keep. What fails only now is one too: whether its row was taken then, nobody knows."""
    events = [failure for failure in projected.failed_events if failure.record.offset not in begun.repeats]
    undecoded = [failure_of_undecoded(batch, undecoded) for undecoded in decoded.failures]
    return events + projected.failed_tombstones + undecoded


def _writes(projected: Projected, left_out: Collection[int]) -> Sequence[Any]:
    if not left_out:
        return projected.encoded
    pairs = zip(projected.encoded, projected.owners, strict=True)
    return [encoded for encoded, owner in pairs if projected.offset_of(owner) not in left_out]
