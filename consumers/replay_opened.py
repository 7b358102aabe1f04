"""The records of a run's work as events: what of them is to be handled, and under which claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import NamedTuple, Protocol

from consumers.batch import Attempts, Batch
from consumers.claims import BatchClaims, claims_of
from consumers.decoding import Arrival, Decoded, Decoder
from consumers.ledger import Ledger
from consumers.letters import failure_of_undecoded
from consumers.replay_verdicts import Made
from consumers.replay_work import Entry, Work
from dlq.letters import Failure
from dlq.runs import Outcome, RunKind
from inbox.identity import ClaimKey, ClaimRule
from inbox.store import ByHand, claim_by_hand
from tidegate_kernel.event import JobId
from tidegate_kernel.postgres import Connection


class Opened(NamedTuple):
    """A work whose records are decoded: those that are to be handled, as the pipeline's parts want them."""

    made: Made
    batch: Batch
    decoded: Decoded
    claims: BatchClaims
    entries: Mapping[int, Entry]

    def undecoded(self) -> Iterator[Failure]:
        """The failures of records that are no events."""
        return (failure_of_undecoded(self.batch, undecoded) for undecoded in self.decoded.failures)


def open_work(work: Work, attempts: Attempts, *, decoder: Decoder, ledger: Ledger, kind: RunKind) -> Opened:
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
    return Opened(made, batch, decoded, _claims(ledger.rule, batch, decoded.events, entries), entries)


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


class Claiming(Protocol):
    """Asks for claims, and may make them."""

    async def __call__(
        self, connection: Connection, job: JobId, keys: Sequence[ClaimKey], *, claimed_on: Sequence[date | None]
    ) -> ByHand: ...


class Fresh(NamedTuple):
    """Events that nobody but their entries has claimed. `new`: offsets of those that had not been claimed at all."""

    arrivals: Sequence[Arrival]
    new: frozenset[int] = frozenset()


async def claim_fresh(connection: Connection, job: JobId, opened: Opened, claiming: Claiming = claim_by_hand) -> Fresh:
    """In the caller's transaction: what is to be handled, claimed; the other events are done with."""
    made, claims, entries = opened.made, opened.claims, opened.entries
    claimed_on = []
    for key, arrival in zip(claims.keys, claims.firsts, strict=True):
        entry = entries[arrival.record.offset]
        claimed_on.append(entry.claimed_on if entry.claim == (key.bucket, key.id) else None)
    if not claims.keys:
        return Fresh([])
    others, new = await claiming(connection, job, claims.keys, claimed_on=claimed_on)
    fresh = claims.fresh(others)
    offsets = {arrival.record.offset for arrival in fresh}
    for arrival in opened.decoded.events:
        if arrival.record.offset not in offsets:
            made.outcomes[arrival.record.offset] = Outcome.ALREADY_PROCESSED
    return Fresh(fresh, frozenset(claims.firsts[index].record.offset for index in new))
