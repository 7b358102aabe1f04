"""What became of an event or a record in one job: decided from what was found, without asking anybody anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID


class Fate(StrEnum):
    """What became of it, in one job."""

    CLAIMED = "claimed"
    """Its event id is taken: its effects are committed, and no other delivery of it acts."""
    SETTLED = "settled"
    """The position has passed it, and there is no claim to show for it."""
    DEAD_LETTER = "dead letter"
    """It could not be handled and is kept; the letter's state tells what happened since."""
    PARKED = "parked"
    """It waits, unhandled, behind a dead letter of its key; its claim is kept."""
    SKIPPED = "skipped"
    """Passed without an effect: a type that the job does not take, or somebody's decision."""
    NOT_REACHED = "not reached"
    UNKNOWN = "unknown"


class Reading(StrEnum):
    """What Kafka has at the coordinates now."""

    READ = "read"
    GONE = "gone"
    """Retention removed it."""
    NOT_WRITTEN = "not written"
    NO_RECORD = "no record"
    """A transaction's marker, an aborted record, or removed by compaction."""
    UNREADABLE = "unreadable"
    MISSING = "missing"
    """There is no such topic or partition."""


class Claim(NamedTuple):
    """An id in the inbox. `bucket` is the day that the event itself fixes, `claimed_on` the day it was taken."""

    id: UUID
    bucket: date
    claimed_on: date


class Letter(NamedTuple):
    """A dead letter without its payload. `is_waiting`: its record for the DLQ topic still stands in the outbox."""

    id: UUID
    topic: str
    partition: int
    offset: int
    event_id: str | None
    tenant: str
    brand: str
    reason: str
    error_class: str
    attempts: int
    occurrences: int
    state: str
    first_failed_at: datetime
    last_failed_at: datetime
    is_waiting: bool = False


class Parked(NamedTuple):
    """An event that waits behind `letter`, the first of its key; None where only parked events are left before it."""

    topic: str
    partition: int
    offset: int
    event_id: str | None
    parked_at: datetime
    letter: UUID | None


class SkippedRange(NamedTuple):
    """Offsets that the job passed without reading them, by whose decision."""

    first_offset: int
    last_offset: int
    cause: str
    actor: str
    reason: str
    skipped_at: datetime


class Standing(NamedTuple):
    """Where the job is in the record's partition. `is_other_topic`: it counts the offsets of another topic."""

    next_offset: int
    is_other_topic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """What was found of it in one job's tables. Claims made before `claims_since` may have been removed by upkeep.

    `visible`: up to where readers see its partition, if its `offset` in one is known.
    """

    is_projection: bool = False
    has_started: bool = True
    claims_since: date | None = None
    claims: Sequence[Claim] = ()
    letters: Sequence[Letter] = ()
    parked: Sequence[Parked] = ()
    skipped: SkippedRange | None = None
    visible: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What the job's own decoder makes of the record. `refusal` is why it makes no event of it."""

    event_id: str | None = None
    event_type: str | None = None
    is_unlisted: bool = False
    is_tombstone: bool = False
    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The coordinates and what stands there; `standing` is None where the job has no position."""

    offset: int
    reading: Reading
    log_start: int = 0
    standing: Standing | None = None
    content: Content = field(default_factory=Content)


class Verdict(NamedTuple):
    """`told` says it in a sentence; `records_before` counts the offsets before one that is not reached yet."""

    fate: Fate
    told: str
    records_before: int | None = None


def fate_of_event(traces: Traces, *, lacking: str | None) -> Verdict:
    """The verdict on an event id. `lacking` says what its claim could not be looked up without."""
    if traces.letters:
        return Verdict(Fate.DEAD_LETTER, _told_letters(traces))
    if traces.parked:
        return Verdict(Fate.PARKED, _told_parked(traces))
    if traces.claims:
        return Verdict(Fate.CLAIMED, _told_claim(traces))
    if lacking is not None:
        return Verdict(Fate.UNKNOWN, lacking)
    if not traces.has_started:
        return Verdict(Fate.UNKNOWN, "the job was never started")
    return Verdict(
        Fate.UNKNOWN,
        "neither claimed nor a dead letter: not reached yet, of a type the job skips, never produced"
        f"{_forgotten(traces)}; its place (TOPIC:PARTITION:OFFSET) would tell which",
    )


def fate_of_key(traces: Traces) -> Verdict:
    """The verdict on a record key: only its dead letters, and what waits behind them, are known by key."""
    if traces.letters:
        waiting = f"; {_many(traces)} of the key waiting behind it" if traces.parked else ""
        return Verdict(Fate.DEAD_LETTER, _told_letters(traces) + waiting)
    if traces.parked:
        return Verdict(Fate.PARKED, f"{_many(traces)} of the key, the first {_told_parked(traces)}")
    return Verdict(Fate.UNKNOWN, "no dead letter of this key")


def fate_of_place(traces: Traces, place: Place) -> Verdict:
    """The verdict on what stands, or stood, at coordinates."""
    if traces.letters:
        return Verdict(Fate.DEAD_LETTER, _told_letters(traces))
    if traces.parked:
        return Verdict(Fate.PARKED, _told_parked(traces))
    if place.standing is None:
        before = max(0, place.offset - place.log_start)
        return Verdict(Fate.NOT_REACHED, "the job has no position here yet; it will begin at the log's start", before)
    if place.standing.is_other_topic:
        return Verdict(Fate.UNKNOWN, "re-created: the job's position counts the offsets of another topic of this name")
    if place.offset >= place.standing.next_offset:
        return _not_reached(traces, place, place.standing.next_offset)
    if traces.skipped is not None:
        return Verdict(Fate.SKIPPED, _told_skipped(traces.skipped))
    return _passed(traces, place)


def _not_reached(traces: Traces, place: Place, position: int) -> Verdict:
    before = place.offset - position
    told = f"not reached yet: position {position}, {before} offsets before it"
    if place.reading is Reading.NOT_WRITTEN:
        told = f"nothing is written there yet; position {position}"
    if traces.claims:
        told += f"; its event id was {_told_claim(traces)}: this delivery will be dropped as a duplicate"
    return Verdict(Fate.NOT_REACHED, told, before)


def _passed(traces: Traces, place: Place) -> Verdict:
    content = place.content
    if traces.claims:
        return Verdict(Fate.CLAIMED, _told_claim(traces))
    if place.reading is not Reading.READ:
        return Verdict(Fate.SETTLED, f"the position has passed it; {_ABSENT[place.reading]}")
    if content.is_unlisted:
        return Verdict(Fate.SKIPPED, f"the job does not take type {content.event_type!r}, or not this version of it")
    if content.is_tombstone:
        if traces.is_projection:
            return Verdict(
                Fate.SETTLED, f"a record without a value, projected as the topic's tombstone; {_visibility(traces)}"
            )
        return Verdict(Fate.SKIPPED, "a record without a value: only projections take those")
    if content.refusal is not None:
        return Verdict(Fate.SETTLED, f"passed, and no dead letter; today it would become one: {content.refusal}")
    return Verdict(Fate.SETTLED, f"the position has passed it, but its id is not claimed{_forgotten(traces)}")


_MOST_TOLD = 50
"""So many the queries return."""

_ABSENT = {
    Reading.GONE: "retention has removed the record, so its event id is not known",
    Reading.NO_RECORD: "no record stands there (a transaction's marker, an aborted or a compacted record)",
    Reading.UNREADABLE: "the record cannot be read, so its event id is not known",
    Reading.NOT_WRITTEN: "nothing is written there now",
    Reading.MISSING: "there is no such partition now",
}


def _forgotten(traces: Traces) -> str:
    since = traces.claims_since
    return "" if since is None else f", or claimed before {since}, of which not all claims are kept"


def _told_claim(traces: Traces) -> str:
    claim = traces.claims[0]
    told = f"claimed on {claim.claimed_on} (bucket {claim.bucket})"
    return f"{told}: applied; {_visibility(traces)}" if traces.is_projection else told


def _visibility(traces: Traces) -> str:
    """Applied is not visible: what readers see is known by the place alone."""
    if traces.offset is None:
        return "'tidegate wait-for' and its place tell whether readers see it"
    if traces.visible is None:
        return "up to where readers see is not known yet"
    if traces.visible > traces.offset:
        return "readers see it"
    return f"readers do not see it yet, but up to {traces.visible}"


def _told_letters(traces: Traces) -> str:
    letter = traces.letters[0]
    more = "" if len(traces.letters) == 1 else f", the newest of {len(traces.letters)}"
    waiting = "; on its way to the DLQ topic" if letter.is_waiting else ""
    attempts = "1 attempt" if letter.attempts == 1 else f"{letter.attempts} attempts"
    return f"dead letter {letter.id}{more}: {letter.state}, {letter.reason} after {attempts}{waiting}"


def _told_parked(traces: Traces) -> str:
    parked = traces.parked[0]
    since = f"since {parked.parked_at:%Y-%m-%d %H:%M}Z, not handled yet; its claim is kept"
    if parked.letter is None:
        return f"parked behind other parked events of its key {since}; the job's next replay goes on with them"
    return f"parked behind dead letter {parked.letter} {since}: 'tidegate dlq replay --letter {parked.letter}'"


def _many(traces: Traces) -> str:
    count = len(traces.parked)
    if count == 1:
        return "1 event"
    return f"{count} events" if count < _MOST_TOLD else f"{count} events or more"


def _told_skipped(skipped: SkippedRange) -> str:
    return (
        f"within {skipped.first_offset} to {skipped.last_offset}, passed unread by {skipped.actor} on "
        f"{skipped.skipped_at:%Y-%m-%d %H:%M}Z ({skipped.cause}: {skipped.reason})"
    )
