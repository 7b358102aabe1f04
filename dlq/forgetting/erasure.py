"""Erasure: what a job's letters, corrections, parked events and outbox hold of one subject is taken out of them.

A letter keeps its place and what has become of it, so that no offset is unaccounted for (G1); its claim stays, so that
no repeat acts (G2). Copies in Kafka's topics are not within reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from uuid import UUID

from dlq.forgetting.items import HeldItem, erase_items, items_of_key, items_of_letter, letters_of_items
from dlq.letters import Origin, letter_id, text_for_postgres
from dlq.outcomes import Decided, tell_outcomes
from dlq.parking import OrderKey, blocked_among
from dlq.sequences import first_links, keys_of, take_out
from dlq.states import UNRESOLVED, LetterState
from dlq.stored import StoredRecord, stored_record
from tidegate_kernel.event import JobId
from tidegate_kernel.outbox import hold_relays
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)


@dataclass(frozen=True, slots=True)
class Held:
    """What of one job is about the subject: dead letters of records by id, parked events by number, failed items."""

    letters: Sequence[UUID] = ()
    parked: Sequence[int] = ()
    items: Sequence[HeldItem] = ()

    def __len__(self) -> int:
        return len(self.letters) + len(self.parked) + len(self.items)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much that is. `waiting`: events parked in the same sequences, whoever they are about."""

    letters: Mapping[LetterState, int]
    parked: int
    edits: int
    copies: int
    waiting: int
    items: int = 0

    @property
    def undecided(self) -> int:
        return sum(count for state, count in self.letters.items() if state in UNRESOLVED)


@dataclass(frozen=True, slots=True)
class Erased:
    """What was done: letters by the state that they were in, parked events, edits, copies in the outbox.

    `busy` letters are just being replayed and were left alone. `sequences` are those that something was taken out of.
    """

    letters: Mapping[LetterState, int]
    parked: int
    edits: int
    copies: int
    items: int = 0
    busy: Sequence[UUID] = ()
    sequences: frozenset[OrderKey] = frozenset()

    def __add__(self, other: Erased) -> Erased:
        return Erased(
            letters=Counter(self.letters) + Counter(other.letters),
            parked=self.parked + other.parked,
            edits=self.edits + other.edits,
            copies=self.copies + other.copies,
            items=self.items + other.items,
            busy=[*self.busy, *other.busy],
            sequences=self.sequences | other.sequences,
        )


class Kept(NamedTuple):
    """What is kept of one record. `records`: as it came, and as somebody edited it."""

    id: Any
    records: Sequence[StoredRecord]


class _Event(NamedTuple):
    id: int
    letter: UUID


async def held_of_key(connection: Connection, job: JobId, key: bytes) -> Held:
    """Returns what of a job has the record key, or an item's."""
    letters = await connection.fetch(_QUERIES["letters_of_key"], job, key)
    parked = await connection.fetch(_QUERIES["parked_of_key"], job, key)
    items = await items_of_key(connection, job, key)
    return Held([row["id"] for row in letters], [row["id"] for row in parked], items)


async def held_as_letter(connection: Connection, job: JobId, letter: UUID) -> Held:
    """Returns the letter, of a record or of an item, if it is the job's."""
    letters = await connection.fetch(_QUERIES["letter_of_id"], job, letter)
    return Held([row["id"] for row in letters], items=await items_of_letter(connection, job, letter))


async def letters_to_read(connection: Connection, job: JobId, after: UUID, limit: int) -> Sequence[Kept]:
    """Returns the next letters of a job by their ids, with what is in them; none where all were read."""
    rows = await connection.fetch(_QUERIES["letters_to_read"], job, after, limit)
    return [Kept(row["id"], _versions(row)) for row in rows]


async def parked_to_read(connection: Connection, job: JobId, after: int, limit: int) -> Sequence[Kept]:
    """Returns the next parked events of a job by their numbers, with what is in them."""
    rows = await connection.fetch(_QUERIES["parked_to_read"], job, after, limit)
    return [Kept(row["id"], [stored_record(row)]) for row in rows]


def _versions(row: Any) -> Sequence[StoredRecord]:
    record = stored_record(row)
    return [record] if row["edited"] is None else [record, replace(record, value=row["edited"])]


async def extent_of(connection: Connection, origin: Origin, held: Held) -> Extent:
    """Returns how much of a job an erasure of `held` would reach."""
    rows = await connection.fetch(_QUERIES["letters_by_state"], list(held.letters))
    told = [*held.letters, *await letters_of_items(connection, origin.job, held.items)]
    return Extent(
        letters={LetterState(row["state"]): row["letters"] for row in rows},
        parked=len(held.parked),
        edits=sum(row["edits"] for row in rows),
        copies=await connection.fetchval(_QUERIES["copies_in_outbox"], origin.dlq_topic, _spelled(told)),
        waiting=await connection.fetchval(_QUERIES["parked_in_keys_of"], list(held.letters)),
        items=len(held.items),
    )


async def events_in_outbox(connection: Connection, key: bytes) -> int:
    """Returns how many events of that key handlers have published that are not in Kafka yet: they are not erased."""
    count: int = await connection.fetchval(_QUERIES["events_in_outbox"], key)
    return count


async def erase(connection: Connection, origin: Origin, held: Held, *, reason: str, made_by: str) -> Erased:
    """In the caller's transaction: of `held` only places, states and claims are left, and no later read handles it.

    Letters that nobody had decided about are discarded and leave the sequences of their keys; parked events are gone;
    no run does an item any more.
    Waits for whoever is at one of their sequences, as long as the caller's lock_timeout says.
    """
    why = text_for_postgres(reason), text_for_postgres(made_by)
    sequences = await _lock_sequences(connection, origin.job, held)
    states = await _lock_letters(connection, held.letters)
    letters = [letter for letter, state in states.items() if state is not LetterState.REPLAYING]
    events = await _lock_events(connection, origin, held.parked)
    edits: int = await connection.fetchval(_QUERIES["pass_letters_by"], letters, *why)
    await connection.execute(
        _QUERIES["pass_parked_by"], origin.job, [e.id for e in events], [e.letter for e in events], *why
    )
    left = {*sequences, *(key for keys in (await keys_of(connection, letters)).values() for key in keys)}
    await take_out(connection, origin.job, letters=letters, events=[e.id for e in events], keys=list(left))
    items = await erase_items(connection, origin, held.items, made_by=why[1])
    ended = [*await _blank(connection, letters, why[1]), *items.letters]
    # What a relay had in hand would be published after it was erased.
    await hold_relays(connection)
    told = [*letters, *(each.letter for each in items.letters)]
    copies = await connection.fetch(_QUERIES["drop_copies"], origin.dlq_topic, _spelled(told))
    await tell_outcomes(connection, origin, ended)
    return Erased(
        letters=Counter(states[letter] for letter in letters),
        parked=len(events),
        edits=edits,
        copies=len(copies),
        items=items.items,
        busy=[letter for letter, state in states.items() if state is LetterState.REPLAYING],
        sequences=frozenset(sequences),
    )


async def loose_events(connection: Connection, job: JobId, sequences: Collection[OrderKey]) -> int:
    """Returns how many events wait in those of the sequences that have no letter before them any more.

    Any run over the job's letters lets them go on.
    """
    left = await blocked_among(connection, job, sequences)
    heads = await first_links(connection, job, list(left)) if left else {}
    return sum(left[key] for key, head in heads.items() if head.letter is None)


async def _lock_sequences(connection: Connection, job: JobId, held: Held) -> Sequence[OrderKey]:
    """Whoever adds to a sequence, or takes from it, is waited for, and waits."""
    rows = await connection.fetch(_QUERIES["sequences_of"], job, list(held.letters), list(held.parked))
    keys = [OrderKey(row["topic"], row["key"]) for row in rows]
    await blocked_among(connection, job, keys)
    return keys


async def _lock_letters(connection: Connection, letters: Sequence[UUID]) -> dict[UUID, LetterState]:
    rows = await connection.fetch(_QUERIES["lock_letters_to_erase"], list(letters))
    return {row["id"]: LetterState(row["state"]) for row in rows}


async def _lock_events(connection: Connection, origin: Origin, parked: Sequence[int]) -> Sequence[_Event]:
    rows = await connection.fetch(_QUERIES["lock_parked_to_erase"], origin.job, list(parked))
    events = []
    for row in rows:
        record = StoredRecord(row["topic"], row["partition"], row["offset"], -1, None, None, ())
        events.append(_Event(row["id"], letter_id(origin, row["topic_id"], record)))
    return events


async def _blank(connection: Connection, letters: Sequence[UUID], made_by: str) -> Sequence[Decided]:
    rows = await connection.fetch(_QUERIES["erase_letters"], letters, made_by, list(UNRESOLVED))
    return [
        Decided(row["id"], None, LetterState(row["state"]), row["decided_at"], row["last_failed_at"]) for row in rows
    ]


def _spelled(letters: Sequence[UUID]) -> list[bytes]:
    """The ids as the header of a letter's record has them."""
    return [str(letter).encode() for letter in letters]
