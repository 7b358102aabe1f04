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
from tidegate_kernel.event import Fence, JobId, ReplayId, RunId
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
    def claimed_on(self) -> date:
        """The day of which its claim is at the latest: a replay in which it failed may have made it anew."""
        return _NEVER_ANOTHERS if self.of_letter is None else self.of_letter.claimed_on

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
class Sight:
    """How the sequences of some keys begin, with at most `each` entries, as it was seen without any lock.

    `still_open`: which letters among them the run has yet to decide. `shared`: all keys of those that block several.
    """

    each: int
    links: Mapping[OrderKey, Sequence[Link]]
    still_open: Mapping[UUID, OpenLetter]
    shared: Mapping[UUID, Sequence[OrderKey]]

    @property
    def heads(self) -> dict[OrderKey, Link]:
        """What the sequences begin with, where the run may handle it."""
        firsts = {key: links[0] for key, links in self.links.items()}
        return {
            key: first
            for key, first in firsts.items()
            if not first.is_held_back and (first.letter is None or first.letter in self.still_open)
        }

    def of(self, keys: Iterable[OrderKey]) -> Sight:
        """The same of some of the keys."""
        return replace(self, links={key: self.links[key] for key in keys if key in self.links})


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


async def see(connection: Connection, held: Hold, keys: Sequence[OrderKey], *, limit: int) -> Sight:
    """Returns how the sequences of the keys begin: about `limit` entries in all, and one of each at least."""
    each = max(1, limit // len(keys)) if keys else 0
    links = await beginnings(connection, held.job, keys, limit=each)
    letters = [link.letter for chain in links.values() for link in chain if link.letter is not None]
    shared = [link.letter for chain in links.values() for link in chain if link.letter is not None and link.is_shared]
    return Sight(
        each,
        links,
        await open_letters(connection, held.run, letters) if letters else {},
        await keys_of(connection, shared) if shared else {},
    )


async def look(connection: Connection, held: Hold, group: Group, *, limit: int, seen: Sight | None = None) -> Work:
    """Returns what of the group can be handled now: at most `limit` entries, none of them behind one that cannot be.

    `seen`: its keys, and perhaps others, as they were just now. Together the entries hold no more than
    `_LARGEST_BYTES`, unless the first alone does. Nothing is locked when it returns. Raises Transient where something
    changes meanwhile.
    """
    if group.letters:
        sight = Sight(0, {}, await open_letters(connection, held.run, group.letters), {})
    elif seen is not None and seen.each * len(group.keys) >= limit // 2:
        sight = seen.of(group.keys)
    else:
        sight = await see(connection, held, group.keys, limit=limit)
    numbers = [link.parked for chain in sight.links.values() for link in chain if link.parked is not None]
    sizes = await bytes_of_events(connection, numbers) if numbers else {}
    chosen = islice(_Chooser(group, sight).entries(), limit)
    return Work(group, await _read(connection, held.run, list(_bounded(chosen, sight.still_open, sizes))))


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


async def _read(connection: Connection, run: ReplayId, chosen: Sequence[_Chosen]) -> Sequence[Entry]:
    wanted = [link.letter for link, _ in chosen if link.letter is not None]
    letters = await letters_of_run(connection, run, wanted) if wanted else {}
    numbers = [link.parked for link, _ in chosen if link.parked is not None]
    parked = await parked_records(connection, numbers) if numbers else {}
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
    locked = await lock_letters(connection, held.run, letters) if letters else ()
    is_same = all(list(found.get(key, ()))[: len(links)] == links for key, links in expected.items())
    if not is_same or len(locked) != len(letters):
        raise Transient("the letters, or what is parked behind them, changed meanwhile")


class _Chooser:
    """Which entries may be handled now, in this group."""

    def __init__(self, group: Group, sight: Sight) -> None:
        self._group, self._open, self._links, self._shared = group, sight.still_open, sight.links, sight.shared
        self._taken: set[UUID] = set()

    def entries(self) -> Iterator[_Chosen]:
        for letter in self._group.letters:
            if letter in self._open:
                offset, topic_id, partition, _ = self._open[letter]
                yield Link(letter, None, 0, offset, topic_id, partition), None
        for key, chain in self._links.items():
            yield from self._of_key(key, chain)

    def _of_key(self, key: OrderKey, chain: Sequence[Link]) -> Iterator[_Chosen]:
        last = -1
        for place, link in enumerate(chain):
            is_here = (link.topic_id, link.partition) == (self._group.topic_id, self._group.partition)
            # Not in the order of their offsets: what came later to the sequence is handled in a batch of its own.
            if not is_here or link.is_held_back or link.offset <= last:
                return
            if link.letter is not None and not self._takes(link.letter, place):
                return
            last = link.offset
            yield link, key

    def _takes(self, letter: UUID, place: int) -> bool:
        """Not those that are not the run's, nor one that was met in another key: behind it this key waits for the next
        batch, which finds it gone."""
        if letter not in self._open or letter in self._taken or not self._is_first_everywhere(letter, place):
            return False
        self._taken.add(letter)
        return True

    def _is_first_everywhere(self, letter: UUID, place: int) -> bool:
        """A letter that blocks two keys is handled when nothing is before it in either."""
        keys = self._shared.get(letter, ())
        heads = [self._links[key][0].letter if key in self._links else None for key in keys]
        return not keys or (place == 0 and all(head == letter for head in heads))
