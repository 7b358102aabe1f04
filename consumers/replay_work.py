"""What a run takes up at once: records of one partition, out of dead letters and of the events parked behind them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from itertools import islice
from uuid import UUID

from consumers.batch import Attempts, Batch
from dlq.parking import OrderKey
from dlq.runs import Hold
from dlq.sequences import (
    LetterRecord,
    Link,
    OpenLetter,
    ParkedRecord,
    beginnings,
    bytes_of_events,
    keys_of,
    letters_of_run,
    limit_silence,
    lock_keys,
    lock_letters,
    open_letters,
    parked_records,
)
from dlq.stored import StoredRecord
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import Fence, JobId, RunId
from tidegate_kernel.postgres import Connection

# An event that is parked has its claim for as long as it waits.
_NEVER_ANOTHERS = date.max - timedelta(days=2)
_NO_RUN = RunId(-1)
# Values in memory at once; with what is made of them several times as much. A consumer fetches up to 50 MiB.
_LARGEST_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """A record to be handled, in the sequence of `key` if it has one: of a `letter`, or parked under a number.

    `record`: as corrected. `original`: as it came.
    """

    link: Link
    key: OrderKey | None
    record: StoredRecord
    of_letter: LetterRecord | None
    claim: tuple[date, UUID] | None
    original: StoredRecord
    is_discarded: bool

    @classmethod
    def of(cls, link: Link, key: OrderKey | None, found: LetterRecord | ParkedRecord) -> Entry:
        of_letter = found if isinstance(found, LetterRecord) else None
        is_discarded = found.correction == "discard"
        return cls(link, key, found.current, of_letter, found.claim, found.record, is_discarded)

    @property
    def letter(self) -> UUID | None:
        return self.link.letter

    @property
    def failed_on(self) -> date:
        """The day of which its claim is at the latest: a replay in which it failed may have made it anew."""
        return _NEVER_ANOTHERS if self.of_letter is None else self.of_letter.last_failed_at.date()

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

    def without(self, offsets: Collection[int]) -> Work:
        """The entries but for those at `offsets`, behind which none of their sequences is."""
        return replace(self, entries=[entry for entry in self.entries if entry.record.offset not in offsets])

    def batch(self, entries: Sequence[Entry], job: JobId, attempts: Attempts) -> Batch:
        """Returns some of the entries as the pipeline's parts want them; the position of no partition is theirs."""
        group, records = self.group, [entry.record for entry in entries]
        fence = Fence(job, _NO_RUN, group.topic, group.partition, 0, 0)
        return Batch(fence, group.topic_id, records, next_offset=0, attempts=attempts)


async def look(connection: Connection, held: Hold, group: Group, *, limit: int) -> Work:
    """Returns what of the group can be handled now: at most `limit` entries, none of them behind one that cannot be.

    Together they hold no more than `_LARGEST_BYTES`, unless the first alone does. Nothing is locked when it returns.
    Raises Transient where something changes meanwhile.
    """
    keys = list(group.keys)
    each = max(1, limit // len(keys)) if keys else 0
    links = await beginnings(connection, held.job, keys, limit=each) if keys else {}
    letters = [link.letter for chain in links.values() for link in chain if link.letter is not None]
    still_open = await open_letters(connection, held.run, [*group.letters, *letters])
    sizes = await bytes_of_events(connection, [n.parked for chain in links.values() for n in chain if n.parked])
    others = await keys_of(connection, letters) if letters else {}
    chosen = islice(_Chooser(group, still_open, links, others).entries(), limit)
    return Work(group, await _read(connection, held.run, list(_bounded(chosen, still_open, sizes))))


_Chosen = tuple[Link, OrderKey | None]


def _bounded(
    chosen: Iterable[_Chosen], still_open: Mapping[UUID, OpenLetter], sizes: Mapping[int, int]
) -> Iterator[_Chosen]:
    """The first of them, as many as may be in memory at once."""
    left = _LARGEST_BYTES
    for place, (link, key) in enumerate(chosen):
        left -= sizes.get(link.parked or 0, 0) if link.letter is None else still_open[link.letter].bytes
        if place and left < 0:
            return
        yield link, key


async def _read(connection: Connection, run: int, chosen: Sequence[_Chosen]) -> Sequence[Entry]:
    letters = await letters_of_run(connection, run, [link.letter for link, _ in chosen if link.letter is not None])
    parked = await parked_records(connection, [link.parked for link, _ in chosen if link.parked is not None])
    entries: list[Entry] = []
    for link, key in chosen:
        found = parked.get(link.parked or 0) if link.letter is None else letters.get(link.letter)
        if found is None:
            raise Transient("letters, or events parked behind them, have gone meanwhile")
        entries.append(Entry.of(link, key, found))
    return entries


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
        still_open: Mapping[UUID, OpenLetter],
        links: Mapping[OrderKey, Sequence[Link]],
        others: Mapping[UUID, Sequence[OrderKey]],
    ) -> None:
        self._group, self._open, self._links, self._others = group, still_open, links, others
        self._taken: set[UUID] = set()

    def entries(self) -> Iterator[_Chosen]:
        for letter in self._group.letters:
            if letter in self._open:
                offset, topic_id, partition, _ = self._open[letter]
                yield Link(letter, None, 0, offset, topic_id, partition, False), None
        for key, chain in self._links.items():
            yield from self._of_key(key, chain)

    def _of_key(self, key: OrderKey, chain: Sequence[Link]) -> Iterator[_Chosen]:
        last = -1
        for place, link in enumerate(chain):
            is_here = (link.topic_id, link.partition) == (self._group.topic_id, self._group.partition)
            # Not in the order of their offsets: what came later to the sequence is handled in a batch of its own.
            if not is_here or link.is_held_back or link.offset <= last:
                return
            if link.letter is not None and not self._takes(link.letter, key, place):
                return
            last = link.offset
            yield link, key

    def _takes(self, letter: UUID, key: OrderKey, place: int) -> bool:
        """Not those that are not the run's, nor one that was met in another key: behind it this key waits for the next
        batch, which finds it gone."""
        if letter not in self._open or letter in self._taken or not self._is_first_everywhere(letter, key, place):
            return False
        self._taken.add(letter)
        return True

    def _is_first_everywhere(self, letter: UUID, key: OrderKey, place: int) -> bool:
        """A letter that blocks two keys is handled when nothing is before it in either."""
        others = [other for other in self._others.get(letter, ()) if other != key]
        if not others:
            return True
        heads = [self._links[other][0].letter if self._links.get(other) else None for other in others]
        return place == 0 and all(head == letter for head in heads)
