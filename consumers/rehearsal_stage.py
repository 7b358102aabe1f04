"""One transaction of a rehearsal: sequences of keys are tried in it, up to what would stay, and it is rolled back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from consumers.batch import Attempts
from consumers.dispatch import HandlerFailed
from consumers.ledger import Ledger
from consumers.rehearsed import Rehearsed
from consumers.replay_hands import Hands
from consumers.replay_verdicts import STAYS, those_reached
from consumers.replay_work import Entry, Group, Work
from dlq.cause import cause_of
from dlq.envelope import Place
from dlq.letters import Failure
from dlq.parking import OrderKey
from dlq.runs import Outcome
from dlq.sequences import LetterRecord, Link, letter_records, parked_records
from tidegate_kernel.errors import Reason
from tidegate_kernel.postgres import Connection

# Records in memory at once, and in one pass of the handlers.
_ENTRIES_AT_ONCE = 20
# Longer than this no sequence is gone on with: live consumers may wait for rows that its handlers have touched.
_LONGEST_SECONDS = 10.0


class Step(NamedTuple):
    """What is taken up at once: the sequence of a key, or some letters of one partition without an order."""

    key: OrderKey | None
    topic: str
    links: Sequence[Link]


@dataclass(slots=True)
class Memory:
    """What outlives a transaction. `passed`: letters that were come to, and whether those behind them may be.

    `attempts` and `broke` are for the next try of a transaction that did not come to its end: records whose handlers
    broke the connection are not given to them again.
    """

    chosen: frozenset[UUID]
    passed: dict[UUID, bool] = field(default_factory=dict)
    attempts: dict[Place, Attempts] = field(default_factory=dict)
    broke: dict[Place, HandlerFailed] = field(default_factory=dict)


class Stage:
    """One transaction of a rehearsal."""

    def __init__(self, connection: Connection, hands: Hands, ledger: Ledger, memory: Memory) -> None:
        self._connection, self._hands, self._ledger, self._memory = connection, hands, ledger, memory
        self._began = ledger.clock.monotonic()
        self.found = Rehearsed()
        self.passed: dict[UUID, bool] = {}

    @property
    def seconds(self) -> float:
        """How long the transaction lasts by now."""
        return self._ledger.clock.monotonic() - self._began

    async def take(self, step: Step) -> None:
        """The step's entries are tried; of a key, up to the first that would stay."""
        for start in range(0, len(step.links), _ENTRIES_AT_ONCE):
            if start and self.seconds > _LONGEST_SECONDS:
                return
            links, are_all = self._tryable(step.links[start : start + _ENTRIES_AT_ONCE])
            if not await self._go_through(step, links) or not are_all:
                self._leave_behind(step)
                return

    async def _go_through(self, step: Step, links: Sequence[Link]) -> bool:
        """Whether those behind them may be tried."""
        for entries in _by_partition(await self._entries(step, links)):
            if not await self._try(step, entries):
                return False
        return True

    def _tryable(self, links: Sequence[Link]) -> tuple[Sequence[Link], bool]:
        """Those up to the first that a run of the chosen letters would not handle, and whether they are all."""
        some: list[Link] = []
        for link in links:
            passed = None if link.letter is None else self._has_passed(link.letter)
            if passed:
                continue  # it blocks another key, too, and was come to there
            is_not_ours = link.is_held_back if link.letter is None else link.letter not in self._memory.chosen
            if is_not_ours or passed is False:
                return some, False
            some.append(link)
        return some, True

    def _has_passed(self, letter: UUID) -> bool | None:
        return self.passed.get(letter, self._memory.passed.get(letter))

    async def _entries(self, step: Step, links: Sequence[Link]) -> Sequence[Entry]:
        """The entries as far as they are still there."""
        letters = await letter_records(self._connection, [link.letter for link in links if link.letter is not None])
        numbers = [link.parked for link in links if link.parked is not None]
        parked = await parked_records(self._connection, numbers) if numbers else {}
        entries: list[Entry] = []
        for link in links:
            if link.letter is not None and (letter := letters.get(link.letter)) is not None:
                entries.append(Entry.of(link, step.key, letter))
            elif link.parked is not None and (event := parked.get(link.parked)) is not None:
                entries.append(Entry.of(link, step.key, event))
        return entries

    async def _try(self, step: Step, entries: Sequence[Entry]) -> bool:
        """Whether those behind them may be tried."""
        for index, entry in enumerate(entries):
            if (failed := self._memory.broke.get(_place(entry))) is not None:
                if not await self._try(step, entries[:index]):
                    return False
                self._note(entry, Outcome.FAILED)
                cause = cause_of(failed.cause, Reason.HANDLER_FAILED)
                self.found.fail(entry, Reason.HANDLER_FAILED, cause, handler="")
                return step.key is None and await self._try(step, entries[index + 1 :])
        return not entries or await self._hand_over(step, entries)

    async def _hand_over(self, step: Step, entries: Sequence[Entry]) -> bool:
        first = entries[0].link
        work = Work(Group(step.topic, first.topic_id, first.partition), entries)
        attempts = self._memory.attempts.setdefault(_place(entries[0]), Attempts(is_isolating=True))
        made = await self._hands.rehearse(self._connection, work, attempts)
        failures = {failure.record.offset: failure for failure in made.failures}
        reached = list(those_reached(entries, made.outcomes))
        for entry in reached:
            outcome = made.outcomes[entry.record.offset]
            self._note(entry, outcome)
            if outcome is Outcome.FAILED:
                self._fail(entry, failures[entry.record.offset])
        is_stopped = len(reached) < len(entries) or any(made.outcomes[e.record.offset] in STAYS for e in reached)
        return step.key is None or not is_stopped

    def _note(self, entry: Entry, outcome: Outcome) -> None:
        self.found.note(entry, outcome)
        if entry.letter is not None:
            self.passed[entry.letter] = outcome not in STAYS

    def _fail(self, entry: Entry, failure: Failure) -> None:
        shows = self._ledger.origin.include_error_messages
        cause = cause_of(failure.error, failure.reason, handler=failure.handler, include_foreign_message=shows)
        self.found.fail(entry, failure.reason, cause, failure.handler)

    def _leave_behind(self, step: Step) -> None:
        for link in step.links:
            if link.letter in self._memory.chosen and self._has_passed(link.letter) is None:
                self.found.outcomes[Outcome.BEHIND] += 1
                self.passed[link.letter] = False


def loose_steps(letters: Sequence[tuple[UUID, LetterRecord]]) -> Iterator[Step]:
    """Letters without an order, by partition and in order, some at once."""
    for place, group in groupby(letters, key=lambda pair: (pair[1].record.topic, *_partition(pair[1]))):
        of = list(group)
        for start in range(0, len(of), _ENTRIES_AT_ONCE):
            links = [_loose(letter, record) for letter, record in of[start : start + _ENTRIES_AT_ONCE]]
            yield Step(None, place[0], links)


def _loose(letter: UUID, record: LetterRecord) -> Link:
    return Link(letter, None, 0, record.record.offset, *_partition(record))


def _partition(record: LetterRecord) -> tuple[UUID, int]:
    return record.topic_id, record.record.partition


def _by_partition(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """The entries in their order, cut where the partition changes or offsets do not grow."""
    some: list[Entry] = []
    for entry in entries:
        if some and not _follows(some[-1].link, entry.link):
            yield some
            some = []
        some.append(entry)
    if some:
        yield some


def _follows(before: Link, link: Link) -> bool:
    is_there = (before.topic_id, before.partition) == (link.topic_id, link.partition)
    return is_there and before.offset < link.offset


def _place(entry: Entry) -> Place:
    return Place(entry.record.topic, entry.record.partition, entry.record.offset)
