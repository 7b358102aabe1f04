"""Schedules: what happens to one job, step by step. Drawn by hypothesis, or written down as an example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import TypeAlias

from hypothesis import strategies as st

from tests.property.postgres_faults import Breakage, PostgresFault, Statement


class Kind(StrEnum):
    """Which road the job goes."""

    EACH = "each"
    BATCH = "batch"
    PREPARED = "prepared"
    PROJECTION = "projection"
    FOLD = "fold"


class Mood(StrEnum):
    """How an event, or the record that carries it, behaves. `times` of its spec bounds those that pass."""

    GOOD = "good"
    TRANSIENT = "transient"
    UNEXPECTED = "unexpected"
    BROKEN_SQL = "broken sql"
    SWALLOWED_SQL = "swallowed sql"
    NEEDS_PAYMENTS = "needs payments"
    SLOW = "slow"
    HANGING = "hanging"
    # From here on the record can never be handled.
    REJECTED = "rejected"
    ALWAYS_UNEXPECTED = "always unexpected"
    ALWAYS_TRANSIENT = "always transient"
    NUL_TEXT = "nul text"
    UNDECODABLE = "undecodable"
    INVALID = "invalid"
    UNREADABLE = "unreadable"
    # Nothing to handle.
    UNLISTED = "unlisted"
    TOMBSTONE = "tombstone"


@dataclass(frozen=True, slots=True)
class Spec:
    """One event to be produced. Keys have a partition of their own each, but for the last two of three."""

    mood: Mood = Mood.GOOD
    key: int = 0
    version: int = 0
    times: int = 1


@dataclass(frozen=True, slots=True)
class Deliver:
    """New events, in this order."""

    specs: Sequence[Spec]


@dataclass(frozen=True, slots=True)
class Again:
    """The producer repeats a record: the same event at a new offset, or in the second topic."""

    which: int
    is_copy: bool = False


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets that hold no record, as transaction markers and compaction leave them."""

    partition: int = 0
    offsets: int = 1


@dataclass(frozen=True, slots=True)
class Break:
    """One call to Postgres fails."""

    fault: PostgresFault


class Thing(StrEnum):
    POSTGRES = "postgres"
    KAFKA = "kafka"
    SINK = "sink"
    PAYMENTS = "payments"


@dataclass(frozen=True, slots=True)
class Outage:
    """`thing` is away for a while."""

    thing: Thing
    seconds: float = 1.0
    after: int = 0


@dataclass(frozen=True, slots=True)
class SinkBreaks:
    """The next bulk write fails: with nothing, half or all of it applied."""

    applied_share: float = 1.0


@dataclass(frozen=True, slots=True)
class FetchFails:
    """The next fetch fails, and what it had drained of other partitions is lost."""

    partition: int | None = None


class Deed(StrEnum):
    """What befalls a process."""

    JOIN = "join"
    LEAVE = "leave"
    KILL = "kill"
    CANCEL = "cancel"
    EXPEL = "expel"
    """The group goes on without it; it does not know, and works on."""
    FREEZE = "freeze"
    """As EXPEL, and it stands still."""
    THAW = "thaw"
    """It goes on, and hears some time later that it has to join again."""
    REJOIN = "rejoin"
    REVOKE = "revoke"
    """A rebalance: everybody lets go and gets a share again."""
    SLOW_DOWN = "slow down"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True)
class Strike:
    """`deed` happens to the process number `process` (modulo the living) when `after` more points were passed.

    A point lies before and after whatever a process does that others can see: statements, fetches, writes, commits.
    """

    deed: Deed
    process: int = 0
    after: int = 0


@dataclass(frozen=True, slots=True)
class ClockJump:
    seconds: int


class Run(StrEnum):
    """What a run does with its dead letters."""

    REPLAY = "replay"
    DISCARD = "discard"


@dataclass(frozen=True, slots=True)
class Replay:
    """A run over dead letters is begun when `after` more points were passed, by a process of its own.

    `is_mended`: the job can handle everything by now. `half`: of the letters it takes only every other one, from the
    first or from the second. `is_forced`: it takes those in quarantine too. It is asked to stop after `batches`.
    """

    run: Run = Run.REPLAY
    is_mended: bool = True
    half: int | None = None
    is_forced: bool = False
    batches: int | None = None
    after: int = 0


@dataclass(frozen=True, slots=True)
class Resume:
    """The newest run that is not done is taken up by another process, though its runner may be alive: it was not heard
    of for too long."""

    is_mended: bool = True
    after: int = 0


@dataclass(frozen=True, slots=True)
class Pass:
    """Time goes by, unless as many points are passed before."""

    seconds: float = 1.0
    points: int = 1_000_000


Step: TypeAlias = (
    Deliver | Again | Hole | Break | Outage | SinkBreaks | FetchFails | Strike | ClockJump | Pass | Replay | Resume
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The life of one job. `processes` are there from the start.

    `is_made_good`: at the end the job is mended, and everything that can be replayed is.
    """

    kind: Kind
    steps: Sequence[Step]
    processes: int = 1
    is_made_good: bool = False


_POINTS = st.integers(0, 24)
_PROCESS = st.integers(0, 2)

_ALWAYS_GOOD = st.just(Mood.GOOD)
_SPECS = st.builds(
    Spec,
    mood=st.one_of(_ALWAYS_GOOD, _ALWAYS_GOOD, st.sampled_from(Mood)),
    key=st.integers(0, 2),
    version=st.integers(0, 5),
    times=st.integers(1, 2),
)
_DELIVERS = st.builds(Deliver, st.lists(_SPECS, min_size=1, max_size=5).map(tuple))
_AGAIN = st.builds(Again, which=st.integers(0, 9), is_copy=st.booleans())
_STRIKES = st.builds(Strike, st.sampled_from(Deed), process=_PROCESS, after=_POINTS)
_BREAKS = st.builds(
    PostgresFault,
    at=st.sampled_from((Statement.ANY, Statement.ANY, Statement.QUERY, Statement.COMMIT, Statement.BEGIN)),
    skip=st.integers(0, 9),
    how=st.sampled_from((*Breakage, Breakage.CLOSED, Breakage.LOST_ANSWER, Breakage.LOST_ANSWER)),
).map(Break)
_SECONDS = st.sampled_from((0.05, 0.5, 2.0, 8.0))
_TROUBLE = st.one_of(
    st.builds(Outage, st.sampled_from(Thing), seconds=_SECONDS, after=_POINTS),
    st.builds(SinkBreaks, st.sampled_from((0.0, 0.5, 1.0))),
    st.builds(FetchFails, st.one_of(st.none(), st.integers(0, 2))),
    st.builds(ClockJump, st.sampled_from((-400_000_000, -43_200, -5, 5, 3_600, 400_000_000))),
    st.builds(Hole, partition=st.integers(0, 2), offsets=st.integers(1, 3)),
)
_PASSES = st.builds(Pass, seconds=_SECONDS, points=st.integers(1, 60))


_REPLAYS = st.builds(
    Replay,
    run=st.sampled_from((Run.REPLAY, Run.REPLAY, Run.DISCARD)),
    is_mended=st.booleans(),
    half=st.sampled_from((None, None, 0, 1)),
    is_forced=st.booleans(),
    batches=st.sampled_from((None, None, 1, 2)),
    after=_POINTS,
)
_RESUMES = st.builds(Resume, is_mended=st.booleans(), after=_POINTS)


def _one_after_the_other(*steps: st.SearchStrategy[Step] | Step) -> st.SearchStrategy[tuple[Step, ...]]:
    return st.tuples(*(step if isinstance(step, st.SearchStrategy) else st.just(step) for step in steps))


def _zombie(deed: Deed, process: int, after: int) -> tuple[Step, ...]:
    """Expelled in the middle of a batch, it goes on when another has taken over and done the work."""
    more = Deliver((Spec(), Spec(key=1), Spec(key=2)))
    return (
        Strike(deed, process=process, after=after),
        Strike(Deed.JOIN),
        # Longer than a takeover is patient with an open transaction.
        Pass(6.0),
        more,
        Pass(0.5),
        Strike(Deed.THAW, process=process),
        Pass(1.0),
    )


_SOON = st.integers(1, 24)
_BAD_SPECS = st.builds(
    Spec,
    mood=st.sampled_from(
        (
            Mood.REJECTED,
            Mood.REJECTED,
            Mood.ALWAYS_UNEXPECTED,
            Mood.ALWAYS_TRANSIENT,
            Mood.NUL_TEXT,
            Mood.UNDECODABLE,
            Mood.INVALID,
        )
    ),
    key=st.integers(0, 2),
    version=st.integers(0, 5),
)
_BAD_DELIVERS = st.builds(
    lambda bad, others: Deliver((bad, *others)), _BAD_SPECS, st.lists(_SPECS, min_size=1, max_size=4)
)
# Long enough for what is bad to be dead.
_A_WHILE = Pass(2.5)
# It has its run after some twenty points.
_AT_WORK = st.integers(15, 60)
_THE_RUNNER = st.just(-1)
"""The process that came last."""
_SCENES_OF_REPLAY = (
    _one_after_the_other(_BAD_DELIVERS, _A_WHILE, _REPLAYS),
    _one_after_the_other(_BAD_DELIVERS, _A_WHILE, _REPLAYS, _DELIVERS),
    _one_after_the_other(_BAD_DELIVERS, _A_WHILE, _REPLAYS, _REPLAYS),
    _one_after_the_other(
        _BAD_DELIVERS,
        _A_WHILE,
        _REPLAYS,
        st.builds(
            Strike,
            st.sampled_from((Deed.KILL, Deed.KILL, Deed.FREEZE, Deed.CANCEL)),
            process=_THE_RUNNER,
            after=_AT_WORK,
        ),
        _RESUMES,
    ),
    _one_after_the_other(_BAD_DELIVERS, _A_WHILE, _REPLAYS, _RESUMES),
    _one_after_the_other(_BAD_DELIVERS, _A_WHILE, _BREAKS, _REPLAYS),
    # The producer repeats what is bad: of an event that nobody could decode both records are dead.
    _one_after_the_other(
        st.builds(lambda bad: Deliver((bad,)), _BAD_SPECS),
        st.builds(Again, st.just(-1), st.booleans()),
        _A_WHILE,
        _REPLAYS,
    ),
    _one_after_the_other(_REPLAYS),
    _one_after_the_other(_RESUMES),
)
# Drawn from, and not one of: that would count each of them as often as any other chunk.
_REPLAYED = st.sampled_from(_SCENES_OF_REPLAY).flatmap(lambda scene: scene)
_CHUNKS = st.one_of(
    _one_after_the_other(_DELIVERS),
    _one_after_the_other(_AGAIN),
    _one_after_the_other(_PASSES),
    _one_after_the_other(_TROUBLE),
    _one_after_the_other(_STRIKES),
    # What strikes soon after a delivery strikes in the middle of its batch.
    _one_after_the_other(_DELIVERS, _STRIKES),
    _one_after_the_other(_DELIVERS, st.builds(Outage, st.sampled_from(Thing), seconds=_SECONDS, after=_SOON)),
    _one_after_the_other(_DELIVERS, st.builds(Strike, st.just(Deed.KILL), process=_PROCESS, after=_SOON)),
    _one_after_the_other(_BREAKS, _DELIVERS),
    _one_after_the_other(st.builds(SinkBreaks, st.sampled_from((0.0, 0.5, 1.0))), _DELIVERS),
    st.tuples(
        _DELIVERS, st.builds(_zombie, st.sampled_from((Deed.EXPEL, Deed.FREEZE)), process=_PROCESS, after=_SOON)
    ).map(lambda drawn: (drawn[0], *drawn[1])),
    _REPLAYED,
    _REPLAYED,
    _REPLAYED,
    _REPLAYED,
)


def schedules(kind: Kind) -> st.SearchStrategy[Schedule]:
    """Any life of a job of that kind: a few deliveries first, then everything at once."""
    return st.builds(
        lambda first, chunks, processes, is_made_good: Schedule(
            kind, (first, *chain.from_iterable(chunks)), processes, is_made_good
        ),
        _DELIVERS,
        st.lists(_CHUNKS, min_size=2, max_size=8),
        st.integers(1, 2),
        st.booleans(),
    )
