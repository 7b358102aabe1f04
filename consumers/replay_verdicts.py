"""What became of the entries of a run, written in the transaction that made it so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from consumers.ledger import Ledger
from consumers.replay_work import Entry, Work
from dlq.corrections import keep_discards
from dlq.letters import Failure
from dlq.outcomes import tell_outcomes
from dlq.parking import Blocking, OrderKey, park
from dlq.runs import Hold, Outcome, decide, hold
from dlq.sequences import Failed, TakenOut, put_in_place, take_out
from tidegate_kernel.outbox import enqueue
from tidegate_kernel.postgres import Connection
from tidegate_kernel.source import Outgoing

# A letter of which it is told that nothing can be handled stays, and what is behind it stays too.
STAYS = frozenset({Outcome.FAILED, Outcome.REFUSED})


@dataclass(slots=True)
class Made:
    """What the hands made of a work's entries, by offset. An entry without an outcome had to wait."""

    outcomes: dict[int, Outcome] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    published: list[Outgoing] = field(default_factory=list)
    blocking: dict[int, OrderKey] = field(default_factory=dict)
    """Under which key a failed letter is known now, where it has an order."""

    def fail_all(self, failures: Iterable[Failure]) -> None:
        """Their entries have failed, each with its failure to be kept."""
        for failure in failures:
            self.outcomes[failure.record.offset] = Outcome.FAILED
            self.failures.append(failure)


class Taken(NamedTuple):
    """What came of a work: outcomes of its letters, parked events dealt with, and keys whose events may go on now.

    `stop_asked_by`: who wants the run to stop, if anybody does. `emptied`: keys of whose sequences nothing is left.
    """

    outcomes: Mapping[UUID, Outcome] = {}
    parked: int = 0
    freed: Sequence[OrderKey] = ()
    stop_asked_by: str | None = None
    emptied: Sequence[OrderKey] = ()

    @property
    def is_empty(self) -> bool:
        return not self.outcomes and not self.parked


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Writes verdicts of one run. `decided_by` and `reason` stand on the corrections of a discard."""

    ledger: Ledger
    held: Hold
    most_replays: int
    decided_by: str
    reason: str
    silence_limit: timedelta

    async def write(self, connection: Connection, work: Work, made: Made) -> Taken:
        """In the caller's transaction, in which `work` is confirmed. Raises LeaseLost where the run is another's."""
        reached = list(those_reached(work.entries, made.outcomes))
        letters = {e.letter: made.outcomes[e.record.offset] for e in reached if e.letter is not None}
        events = [e for e in reached if e.link.parked is not None]
        failed = sum(made.outcomes[e.record.offset] is Outcome.FAILED for e in events)
        asked = await hold(connection, self.held, parked=len(events), failed_events=failed)
        await self._decide(connection, letters)
        await self._keep(connection, made, reached)
        gone = [letter for letter, outcome in letters.items() if outcome not in STAYS]
        out = await self._take_out(connection, work, gone, events)
        await enqueue(connection, made.published)
        return Taken(letters, len(events), out.behind, asked, out.freed)

    async def _decide(self, connection: Connection, letters: Mapping[UUID, Outcome]) -> None:
        if not letters:
            return
        discarded = [letter for letter, outcome in letters.items() if outcome is Outcome.DISCARDED]
        if discarded:
            await keep_discards(connection, discarded, reason=self.reason, made_by=self.decided_by)
        ended = await decide(connection, self.held, letters, most_replays=self.most_replays)
        await tell_outcomes(connection, self.ledger.origin, ended)

    async def _keep(self, connection: Connection, made: Made, reached: Sequence[Entry]) -> None:
        """Failures are kept with the records as they came, and stand where their entries stood."""
        entries = {entry.record.offset: entry for entry in reached}
        failures = [_as_it_came(f, entries[f.record.offset]) for f in made.failures if f.record.offset in entries]
        kept = await self.ledger.keep(connection, failures)
        new = [
            Failed(e.link.parked, kept[offset], e.key, e.link.turn, offset)
            for offset, e in entries.items()
            if offset in kept and e.link.parked is not None and e.key is not None
        ]
        await put_in_place(connection, self.held.job, new)
        # Undecodable then, it blocked its record's key; now it is known by the key that the job reads from it.
        moved = [
            Blocking(kept[offset], made.blocking[offset], offset)
            for offset, e in entries.items()
            if offset in kept and e.key is not None and made.blocking.get(offset, e.key) != e.key
        ]
        if moved:
            await park(connection, self.held.job, moved, [])

    async def _take_out(
        self, connection: Connection, work: Work, letters: Sequence[UUID], events: Sequence[Entry]
    ) -> TakenOut:
        if not work.group.keys or not (letters or events):
            return TakenOut()
        numbers = [e.link.parked for e in events if e.link.parked is not None]
        return await take_out(connection, self.held.job, letters=letters, events=numbers, keys=work.group.keys)


def those_reached(entries: Iterable[Entry], outcomes: Mapping[int, Outcome]) -> Iterable[Entry]:
    """The entries of which something became, up to the first of each key that stays."""
    closed: set[OrderKey] = set()
    for entry in entries:
        if entry.key in closed:
            continue
        outcome = outcomes.get(entry.record.offset)
        if outcome is not None:
            yield entry
        if entry.key is not None and (outcome is None or outcome in STAYS):
            closed.add(entry.key)


def _as_it_came(failure: Failure, entry: Entry) -> Failure:
    """The letter keeps the original, also where an edited record failed; and the claim that an event had, parked.

    Without it a later replay would take the event's own claim for somebody else's, and the event for done.
    """
    failure = replace(failure, record=entry.original)
    if entry.of_letter is not None or failure.claim is not None:
        return failure
    return replace(failure, claim=entry.claim)
