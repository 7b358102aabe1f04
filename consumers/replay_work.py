"""What a run takes up at once: records of one partition, out of dead letters and of the events parked behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from uuid import UUID

from consumers.batch import Attempts, Batch
from dlq.parking import OrderKey
from dlq.runs import Hold
from dlq.sequences import (
    LetterRecord,
    Link,
    ParkedRecord,
    beginnings,
    keys_of,
    letters_of_run,
    limit_silence,
    lock_keys,
    lock_letters,
    parked_records,
)
from dlq.stored import StoredRecord
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import Fence, JobId, RunId
from tidegate_kernel.postgres import Connection

# An event that is parked has its claim for as long as it waits.
_NEVER_ANOTHERS = date.max - timedelta(days=2)
_NO_RUN = RunId(-1)


@dataclass(frozen=True, slots=True)
class Entry:
    """A record to be handled, in the sequence of `key` if it has one: of a `letter`, or parked under a number."""

    link: Link
    key: OrderKey | None
    record: StoredRecord
    of_letter: LetterRecord | None
    claim: tuple[date, UUID] | None

    @property
    def letter(self) -> UUID | None:
        return self.link.letter

    @property
    def failed_on(self) -> date:
        """The day from which its claim is."""
        return _NEVER_ANOTHERS if self.of_letter is None else self.of_letter.first_failed_at.date()

    @property
    def is_discarded(self) -> bool:
        return self.of_letter is not None and self.of_letter.correction == "discard"

    @property
    def has_nothing(self) -> bool:
        """Whether there is nothing to be handled: only the record's place could be kept."""
        return self.of_letter is not None and not self.of_letter.has_payload and self.of_letter.correction is None


@dataclass(frozen=True, slots=True)
class Group:
    """What is to be taken up: letters without an order, or the beginnings of some keys' sequences, of one partition."""

    topic: str
    topic_id: UUID
    partition: int
    letters: Sequence[UUID] = ()
    keys: Sequence[OrderKey] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """The entries of a group, keys one after the other and each in its order; their offsets are distinct."""

    group: Group
    entries: Sequence[Entry]

    def by_offset(self) -> Mapping[int, Entry]:
        return {entry.record.offset: entry for entry in self.entries}

    def batch(self, entries: Sequence[Entry], job: JobId, attempts: Attempts) -> Batch:
        """Returns some of the entries as the pipeline's parts want them; the position of no partition is theirs."""
        group, records = self.group, [entry.record for entry in entries]
        fence = Fence(job, _NO_RUN, group.topic, group.partition, 0, 0)
        return Batch(fence, group.topic_id, records, next_offset=0, attempts=attempts)


async def look(connection: Connection, held: Hold, group: Group, *, limit: int) -> Work:
    """Returns what of the group can be handled now: at most `limit` entries, none of them behind one that cannot be.

    Nothing is locked when it returns.
    """
    keys = list(group.keys)
    each = max(1, limit // len(keys)) if keys else 0
    links = await beginnings(connection, held.job, keys, limit=each) if keys else {}
    letters = [link.letter for chain in links.values() for link in chain if link.letter is not None]
    records = await letters_of_run(connection, held.run, [*group.letters, *letters])
    parked = await parked_records(connection, [n.parked for chain in links.values() for n in chain if n.parked])
    others = await keys_of(connection, letters) if letters else {}
    chooser = _Chooser(group, records, parked, links, others)
    return Work(group, list(chooser.entries())[:limit])


async def confirm(connection: Connection, held: Hold, work: Work, *, silence_limit: timedelta) -> None:
    """In a transaction: the entries are the caller's, and as they were. Raises Transient where one has changed.

    Postgres ends the transaction when its owner stays silent for `silence_limit`: the keys are not locked for ever.
    """
    await limit_silence(connection, silence_limit)
    group = work.group
    keys = list(await lock_keys(connection, held.job, group.keys)) if group.keys else []
    expected: dict[OrderKey, list[Link]] = {}
    for entry in work.entries:
        if entry.key is not None:
            expected.setdefault(entry.key, []).append(entry.link)
    most = max(map(len, expected.values()), default=0)
    found = await beginnings(connection, held.job, keys, limit=most) if keys and most else {}
    letters = [entry.letter for entry in work.entries if entry.letter is not None]
    locked = await lock_letters(connection, held.run, letters)
    is_same = all(list(found.get(key, ()))[: len(links)] == links for key, links in expected.items())
    if not is_same or len(locked) != len(letters):
        raise Transient("the letters, or what is parked behind them, changed meanwhile")


class _Chooser:
    """Which entries may be handled now, in this group."""

    def __init__(
        self,
        group: Group,
        records: Mapping[UUID, LetterRecord],
        parked: Mapping[int, ParkedRecord],
        links: Mapping[OrderKey, Sequence[Link]],
        others: Mapping[UUID, Sequence[OrderKey]],
    ) -> None:
        self._group, self._records, self._parked = group, records, parked
        self._links, self._others = links, others
        self._taken: set[UUID] = set()

    def entries(self) -> Iterator[Entry]:
        for letter in self._group.letters:
            if letter in self._records:
                record = self._records[letter]
                place = (0, record.record.offset, record.topic_id, record.record.partition, False)
                yield self._of_letter(Link(letter, None, *place), None)
        for key, chain in self._links.items():
            yield from self._of_key(key, chain)

    def _of_key(self, key: OrderKey, chain: Sequence[Link]) -> Iterator[Entry]:
        last = -1
        for place, link in enumerate(chain):
            is_here = (link.topic_id, link.partition) == (self._group.topic_id, self._group.partition)
            # Not in the order of their offsets: what came later to the sequence is handled in a batch of its own.
            if not is_here or link.is_held_back or link.offset <= last:
                return
            last = link.offset
            if link.parked is not None:
                if link.parked not in self._parked:
                    return
                found = self._parked[link.parked]
                yield Entry(link, key, found.record, None, found.claim)
                continue
            if link.letter is None or link.letter not in self._records:
                return
            if not self._is_first_everywhere(link.letter, key, place):
                return
            if link.letter not in self._taken:
                self._taken.add(link.letter)
                yield self._of_letter(link, key)

    def _is_first_everywhere(self, letter: UUID, key: OrderKey, place: int) -> bool:
        """A letter that blocks two keys is handled when nothing is before it in either."""
        others = [other for other in self._others.get(letter, ()) if other != key]
        if not others:
            return True
        heads = [self._links[other][0].letter if self._links.get(other) else None for other in others]
        return place == 0 and all(head == letter for head in heads)

    def _of_letter(self, link: Link, key: OrderKey | None) -> Entry:
        assert link.letter is not None
        record = self._records[link.letter]
        return Entry(link, key, record.current, record, record.claim)
