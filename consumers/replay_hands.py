"""How each kind of job handles the entries of a run: through its own decoder, handlers, judge and sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from typing import NamedTuple, Protocol

from consumers.batch import Attempts, Batch
from consumers.claims import BatchClaims, claims_of
from consumers.decoding import Arrival, Decoded, Decoder
from consumers.dispatch import Dispatcher, Prepared, hidden_failure
from consumers.fold_isolation import isolation_of
from consumers.judging import Judge
from consumers.ledger import Ledger
from consumers.letters import failure_of_undecoded
from consumers.order import Gate, Order
from consumers.projecting import Projected, project
from consumers.replay_verdicts import STAYS, Made, Taken, Verdicts
from consumers.replay_work import Entry, Work, confirm
from consumers.stable import apply_letters
from consumers.trying import as_a_whole_or_apart
from dlq.parking import OrderKey, record_key
from dlq.runs import Outcome, RunKind
from inbox.identity import ClaimKey, ClaimRule
from inbox.store import ByHand, claim_by_hand, claimed_by_others
from projections.sink import Applied, Sink
from projections.stable import StableSink
from tidegate_kernel.errors import RetryLater, TidegateError, Transient
from tidegate_kernel.event import JobId
from tidegate_kernel.postgres import Connection


class Hands(Protocol):
    """How a kind of job handles what a run has taken up."""

    async def attempt(self, work: Work, attempts: Attempts, verdicts: Verdicts) -> Taken:
        """Effects and verdicts are final together, or nothing is.

        Raises LeaseLost (the run is another's), Transient (wait, look again, try again with the same attempts).
        """

    async def rehearse(self, connection: Connection, work: Work, attempts: Attempts) -> Made:
        """Returns what would become of the entries. Nothing is claimed, kept or written to a sink; what handlers do is
        done in the caller's transaction, which he rolls back.

        Raises Transient: roll back, wait, try again with the same attempts.
        """


class _Opened(NamedTuple):
    """A work whose records are decoded: those that are to be handled, as the pipeline's parts want them."""

    made: Made
    batch: Batch
    decoded: Decoded
    claims: BatchClaims
    entries: Mapping[int, Entry]


def _open(work: Work, attempts: Attempts, decoder: Decoder, ledger: Ledger, kind: RunKind) -> _Opened:
    """Of what needs no handling the outcome stands already; of the rest, that it is skipped unless it is an event.

    What stood in a topic that the job reads no more cannot be decoded: letters are refused, parked events have to wait.
    """
    made = Made()
    handled: list[Entry] = []
    for entry in work.entries:
        if entry.is_discarded or (entry.letter is not None and kind is RunKind.DISCARD):
            made.outcomes[entry.record.offset] = Outcome.DISCARDED
        elif not decoder.reads(entry.record.topic):
            if entry.letter is not None:
                made.outcomes[entry.record.offset] = Outcome.REFUSED
        elif entry.has_nothing:
            made.outcomes[entry.record.offset] = Outcome.REFUSED
        else:
            handled.append(entry)
            made.outcomes[entry.record.offset] = Outcome.RESOLVED
    batch = work.batch(handled, ledger.origin.job, attempts)
    decoded = decoder.decode(batch.records)
    entries = work.by_offset()
    return _Opened(made, batch, decoded, _claims(ledger.rule, batch, decoded.events, entries), entries)


def _claims(rule: ClaimRule, batch: Batch, arrivals: Sequence[Arrival], entries: Mapping[int, Entry]) -> BatchClaims:
    """The claims of the arrivals. Of several with one id the one that has the claim stands for them, not the first: the
    others would find it taken, and it would go under as their repeat, unhandled."""
    claims = claims_of(rule, batch, arrivals)
    if not claims.repeats:
        return claims
    places = {arrival.record.offset: place for place, arrival in enumerate(arrivals)}

    def has_another_claim(arrival: Arrival) -> bool:
        (key,) = claims_of(rule, batch, [arrival]).keys
        return entries[arrival.record.offset].claim != (key.bucket, key.id)

    owned = claims_of(rule, batch, sorted(arrivals, key=has_another_claim))
    pairs = zip(owned.keys, owned.firsts, strict=True)
    in_order = sorted(pairs, key=lambda pair: places[pair[1].record.offset])
    return BatchClaims([key for key, _ in in_order], [first for _, first in in_order], owned.repeats)


class _Claiming(Protocol):
    """Asks for claims, and may make them."""

    async def __call__(
        self, connection: Connection, job: JobId, keys: Sequence[ClaimKey], *, failed_on: Sequence[date | None]
    ) -> ByHand: ...


class _Fresh(NamedTuple):
    """Events that nobody but their entries has claimed. `new`: offsets of those that had not been claimed at all."""

    arrivals: Sequence[Arrival]
    new: frozenset[int] = frozenset()


async def _fresh(connection: Connection, job: JobId, opened: _Opened, claiming: _Claiming = claim_by_hand) -> _Fresh:
    """In the caller's transaction: what is to be handled, claimed; the other events are done with."""
    made, claims, entries = opened.made, opened.claims, opened.entries
    failed_on = []
    for key, arrival in zip(claims.keys, claims.firsts, strict=True):
        entry = entries[arrival.record.offset]
        failed_on.append(entry.failed_on if entry.claim == (key.bucket, key.id) else None)
    if not claims.keys:
        return _Fresh([])
    others, new = await claiming(connection, job, claims.keys, failed_on=failed_on)
    fresh = claims.fresh(others)
    offsets = {arrival.record.offset for arrival in fresh}
    for arrival in opened.decoded.events:
        if arrival.record.offset not in offsets:
            made.outcomes[arrival.record.offset] = Outcome.ALREADY_PROCESSED
    return _Fresh(fresh, frozenset(claims.firsts[index].record.offset for index in new))


class _ClaimedInVain(TidegateError):
    """Events have to wait, and some of their claims are new: roll back, and leave those at `offsets` alone.

    Nobody would remember such a claim: the next replay would take it for that of another delivery, which was handled.
    """

    def __init__(self, offsets: frozenset[int]) -> None:
        super().__init__("claimed, and not handled")
        self.offsets = offsets


class _SequenceGate(Gate):
    """Also keeps back what stands in a sequence behind a failure, whatever key the job reads from the events by now.

    An edit, or a release, may have given them other keys; the sequence goes on from its first entry that stays.
    """

    def __init__(self, order: Order | None, entries: Mapping[int, Entry]) -> None:
        super().__init__(order)
        self._entries = entries

    def keys(self, arrival: Arrival) -> Sequence[OrderKey]:
        keys, stands_in = super().keys(arrival), self._entries[arrival.record.offset].key
        return keys if stands_in is None or stands_in in keys else (*keys, stands_in)

    def admits(self, arrival: Arrival) -> bool:
        is_admitted = super().admits(arrival)
        if not is_admitted:
            self.stay(arrival.record.offset)
        return is_admitted

    def fail(self, arrival: Arrival) -> None:
        super().fail(arrival)
        self.stay(arrival.record.offset)

    def stay(self, offset: int) -> None:
        """What is behind the entry in its sequence has to wait."""
        stands_in = self._entries[offset].key
        if stands_in is not None:
            self._close(stands_in, offset)


class CommandHands:
    """Handlers, claims and verdicts in one transaction, as the live road has it."""

    def __init__(
        self,
        ledger: Ledger,
        decoder: Decoder,
        dispatcher: Dispatcher,
        judge: Judge,
        *,
        order: Order | None,
        kind: RunKind,
    ) -> None:
        self._ledger, self._decoder, self._dispatcher, self._judge = ledger, decoder, dispatcher, judge
        self._order, self._kind = order, kind

    async def attempt(self, work: Work, attempts: Attempts, verdicts: Verdicts) -> Taken:
        while True:
            try:
                return await as_a_whole_or_apart(
                    attempts,
                    self._judge,
                    whole=partial(self._all_at_once, work, attempts, verdicts),
                    apart=partial(self._one_by_one, work, attempts, verdicts),
                )
            except _ClaimedInVain as waiting:
                work = work.without(waiting.offsets)

    async def _all_at_once(self, work: Work, attempts: Attempts, verdicts: Verdicts) -> Taken:
        opened = self._open(work, attempts)
        prepared = await self._prepare(opened.claims.firsts)
        async with self._ledger.transaction() as connection:
            await confirm(connection, verdicts.held, work, silence_limit=verdicts.silence_limit)
            fresh = await _fresh(connection, self._ledger.origin.job, opened)
            gate = self._gate(opened)
            admitted = gate.admitted(fresh.arrivals)
            if admitted:
                opened.made.published += await self._dispatcher.dispatch(admitted, connection, prepared)
            self._leave_waiting(opened.made, gate, fresh)
            return await verdicts.write(connection, work, opened.made)

    async def _one_by_one(self, work: Work, attempts: Attempts, verdicts: Verdicts) -> Taken:
        opened = self._open(work, attempts)
        isolation = isolation_of(opened.batch, opened.claims.by_offset(), self._dispatcher, self._judge)
        prepared = await isolation.prepare(opened.claims.firsts)
        try:
            async with self._ledger.transaction() as connection:
                await confirm(connection, verdicts.held, work, silence_limit=verdicts.silence_limit)
                fresh = await _fresh(connection, self._ledger.origin.job, opened)
                gate = self._gate(opened)
                await isolation.run(connection, fresh.arrivals, prepared, gate)
                self._leave_waiting(opened.made, gate, fresh)
                for failure in isolation.failures:
                    opened.made.fail(failure)
                opened.made.published += isolation.published
                return await verdicts.write(connection, work, opened.made)
        except Transient as error:
            if not isinstance(error, RetryLater) and (hidden := hidden_failure(error)) is not None:
                await isolation.blame(hidden)
            raise

    async def rehearse(self, connection: Connection, work: Work, attempts: Attempts) -> Made:
        """Handlers run one by one, each under a savepoint. What a handler prepares would be done for good: refuse it
        before."""
        opened = self._open(work, attempts)
        isolation = isolation_of(opened.batch, opened.claims.by_offset(), self._dispatcher, self._judge)
        fresh = await _fresh(connection, self._ledger.origin.job, opened, claimed_by_others)
        gate = self._gate(opened)
        await isolation.run(connection, fresh.arrivals, {}, gate)
        self._leave_waiting(opened.made, gate, fresh)
        for failure in isolation.failures:
            opened.made.fail(failure)
        return opened.made

    def _open(self, work: Work, attempts: Attempts) -> _Opened:
        opened = _open(work, attempts, self._decoder, self._ledger, self._kind)
        for undecoded in opened.decoded.failures:
            opened.made.fail(failure_of_undecoded(opened.batch, undecoded))
        return opened

    def _gate(self, opened: _Opened) -> Gate:
        """What is behind a record that is as undecodable as ever, or of which nothing is there, has to wait."""
        gate = _SequenceGate(self._order, opened.entries)
        for offset, outcome in opened.made.outcomes.items():
            if outcome in STAYS:
                gate.stay(offset)
        for undecoded in opened.decoded.failures if self._order is not None else ():
            gate.close_behind(undecoded.record, record_key(undecoded.record))
        return gate

    def _leave_waiting(self, made: Made, gate: Gate, fresh: _Fresh) -> None:
        """Raises _ClaimedInVain."""
        made.blocking = dict(gate.letters)
        if not gate.is_closed:
            return
        waiting = frozenset(a.record.offset for a in fresh.arrivals if not gate.admits(a))
        if waiting & fresh.new:
            raise _ClaimedInVain(waiting)
        for offset in waiting:
            del made.outcomes[offset]

    async def _prepare(self, arrivals: Sequence[Arrival]) -> Prepared:
        if not self._dispatcher.prepares:
            return {}
        return {arrival.record.offset: await self._dispatcher.prepare(arrival) for arrival in arrivals}


class ProjectionHands:
    """Apply, then tell: newest wins, so a letter that newer events have overtaken is superseded and harms nothing."""

    def __init__(self, ledger: Ledger, decoder: Decoder, sink: Sink, *, kind: RunKind) -> None:
        self._ledger, self._decoder, self._sink, self._kind = ledger, decoder, sink, kind

    async def attempt(self, work: Work, attempts: Attempts, verdicts: Verdicts) -> Taken:
        opened = _open(work, attempts, self._decoder, self._ledger, self._kind)
        made = opened.made
        projected = project(opened.batch, opened.decoded, opened.claims, self._sink)
        applied = await self._apply(work, opened, projected, verdicts)
        # No position moves by a replay, so no refresher would notice: a letter that is resolved is visible.
        await self._sink.refresh()
        projected.refuse(applied.refused)
        for offset in projected.superseded(applied.stale_at):
            made.outcomes[offset] = Outcome.SUPERSEDED
        async with self._ledger.transaction() as connection:
            await confirm(connection, verdicts.held, work, silence_limit=verdicts.silence_limit)
            fresh = await _fresh(connection, self._ledger.origin.job, opened)
            for failure in projected.letters(fresh.arrivals):
                made.fail(failure)
            for undecoded in opened.decoded.failures:
                made.fail(failure_of_undecoded(opened.batch, undecoded))
            return await verdicts.write(connection, work, made)

    async def _apply(self, work: Work, opened: _Opened, projected: Projected, verdicts: Verdicts) -> Applied:
        async with self._ledger.transaction() as connection:
            # The store knows of no run. Whoever was asleep must not write what somebody has discarded meanwhile, and
            # nobody discards what is being written.
            await confirm(connection, verdicts.held, work, silence_limit=verdicts.silence_limit)
            if not isinstance(self._sink, StableSink):
                return await self._sink.apply(projected.encoded)
            # Before, not after: what somebody else has handled must not be counted again.
            fresh = await _fresh(connection, self._ledger.origin.job, opened, claimed_by_others)
        offsets = {arrival.record.offset for arrival in fresh.arrivals}
        await apply_letters(self._ledger, self._sink, opened.batch, projected, fresh=offsets)
        return Applied()

    async def rehearse(self, connection: Connection, work: Work, attempts: Attempts) -> Made:
        """Events become writes as the sink would want them, and none is sent: what the store refuses stays unknown."""
        opened = _open(work, attempts, self._decoder, self._ledger, RunKind.REPLAY)
        projected = project(opened.batch, opened.decoded, opened.claims, self._sink)
        fresh = await _fresh(connection, self._ledger.origin.job, opened, claimed_by_others)
        for failure in projected.letters(fresh.arrivals):
            opened.made.fail(failure)
        for undecoded in opened.decoded.failures:
            opened.made.fail(failure_of_undecoded(opened.batch, undecoded))
        return opened.made
