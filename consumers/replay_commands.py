"""How the entries of a run are handled in a job with handlers: as on the live road, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from consumers.batch import Attempts
from consumers.decoding import Arrival, Decoder
from consumers.dispatch import Dispatcher, Prepared, hidden_failure
from consumers.fold_isolation import isolation_of
from consumers.judging import Judge
from consumers.ledger import Ledger
from consumers.order import Gate, Order
from consumers.replay_opened import Fresh, Opened, claim_fresh, open_work
from consumers.replay_verdicts import STAYS, Made, Taken, Verdicts
from consumers.replay_work import Entry, Work, confirm
from consumers.trying import as_a_whole_or_apart
from dlq.parking import OrderKey, record_key
from dlq.runs import RunKind
from inbox.store import claimed_by_others
from tidegate_kernel.errors import RetryLater, TidegateError, Transient
from tidegate_kernel.postgres import Connection


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
            fresh = await claim_fresh(connection, self._ledger.origin.job, opened)
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
                fresh = await claim_fresh(connection, self._ledger.origin.job, opened)
                gate = self._gate(opened)
                await isolation.run(connection, fresh.arrivals, prepared, gate)
                self._leave_waiting(opened.made, gate, fresh)
                opened.made.fail_all(isolation.failures)
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
        fresh = await claim_fresh(connection, self._ledger.origin.job, opened, claimed_by_others)
        gate = self._gate(opened)
        await isolation.run(connection, fresh.arrivals, {}, gate)
        self._leave_waiting(opened.made, gate, fresh)
        opened.made.fail_all(isolation.failures)
        return opened.made

    def _open(self, work: Work, attempts: Attempts) -> Opened:
        opened = open_work(work, attempts, decoder=self._decoder, ledger=self._ledger, kind=self._kind)
        opened.made.fail_all(opened.undecoded())
        return opened

    def _gate(self, opened: Opened) -> Gate:
        """What is behind a record that is as undecodable as ever, or of which nothing is there, has to wait."""
        gate = _SequenceGate(self._order, opened.entries)
        for offset, outcome in opened.made.outcomes.items():
            if outcome in STAYS:
                gate.stay(offset)
        for undecoded in opened.decoded.failures if self._order is not None else ():
            gate.close_behind(undecoded.record, record_key(undecoded.record))
        return gate

    def _leave_waiting(self, made: Made, gate: Gate, fresh: Fresh) -> None:
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
