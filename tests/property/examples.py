"""Schedules worth keeping: what failed once, in the product, in a sabotaged copy or in this test itself, and the
scenes that a reader would ask for.

The sentence says what the schedule shows. A new failure comes in as hypothesis prints it, with its sentence; it never
goes out again.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.property.postgres_faults import Breakage, PostgresFault, Statement
from tests.property.schedule import (
    Again,
    Break,
    ClockJump,
    Deed,
    Deliver,
    Kind,
    Mood,
    Outage,
    Pass,
    Replay,
    Resume,
    Run,
    Schedule,
    SinkBreaks,
    Spec,
    Strike,
    Thing,
)


class Example(NamedTuple):
    name: str
    sentence: str
    schedule: Schedule


_GOOD = Spec()
_REJECTED = Spec(Mood.REJECTED)
_LOST_COMMIT = Break(PostgresFault(Statement.COMMIT, 0, Breakage.LOST_ANSWER))

EXAMPLES = (
    Example(
        "duplicate-at-a-new-offset",
        "The producer repeats an event: its second record is dropped.",
        Schedule(Kind.EACH, (Deliver((_GOOD,)), Pass(1.0), Again(0), Again(0, is_copy=True))),
    ),
    Example(
        "duplicate-of-a-dead-letter",
        "The repeat of an event that became a dead letter is no second letter, and does not act.",
        Schedule(Kind.EACH, (Deliver((Spec(Mood.REJECTED),)), Pass(1.0), Again(0), Again(0, is_copy=True))),
    ),
    Example(
        "same-event-in-two-topics-at-once",
        "Two lanes meet the same event in two topics while its handler is slow: one waits for the other's claim.",
        Schedule(Kind.EACH, (Deliver((Spec(Mood.SLOW),)), Again(0, is_copy=True), Pass(1.0))),
    ),
    Example(
        "lost-answer-to-a-commit",
        "The commit happened and its answer was lost: the row tells, and nothing is done again.",
        Schedule(Kind.EACH, (Pass(1.0), _LOST_COMMIT, Deliver((_GOOD, _GOOD)), Pass(2.0), Deliver((_GOOD,)))),
    ),
    Example(
        "killed-between-effects-and-commit",
        "A process dies at each of many points of a batch: what it had not committed is done by the next one, once.",
        Schedule(
            Kind.BATCH,
            tuple(
                step
                for points in range(1, 16, 2)
                for step in (
                    Deliver((_GOOD, Spec(key=1), Spec(key=2))),
                    Strike(Deed.KILL, after=points),
                    Strike(Deed.JOIN),
                    Pass(8.0),
                )
            ),
        ),
    ),
    Example(
        "zombie-works-on-after-a-takeover",
        "The group goes on without a process in the middle of a batch; it wakes up when another has done the work.",
        Schedule(
            Kind.EACH,
            (
                Pass(2.0),
                Deliver((_GOOD, _GOOD, Spec(key=1))),
                Strike(Deed.FREEZE, after=6),
                Strike(Deed.JOIN),
                Pass(8.0),
                Deliver((_GOOD, Spec(key=1))),
                Pass(8.0),
                Strike(Deed.THAW),
                Pass(2.0),
                Strike(Deed.REJOIN),
            ),
        ),
    ),
    Example(
        "two-owners-at-once",
        "A process that the group expelled does not know, and works beside its successor.",
        Schedule(
            Kind.EACH,
            (
                Pass(2.0),
                Deliver((Spec(Mood.SLOW), _GOOD)),
                Strike(Deed.EXPEL, after=6),
                Strike(Deed.JOIN),
                Deliver((_GOOD, Spec(key=1))),
                Pass(8.0),
                Deliver((_GOOD, Spec(key=1))),
            ),
        ),
    ),
    Example(
        "delivered-right-after-a-rebalance",
        "A fetch that was under way before the rebalance gets the first records after it: they are not passed over.",
        Schedule(Kind.EACH, (Pass(2.0), Strike(Deed.REVOKE), Deliver((_GOOD, Spec(key=1))), Pass(2.0))),
    ),
    Example(
        "revoked-while-a-handler-hangs",
        "A rebalance gives up on a hanging handler; the next owner ends its transaction and does the work.",
        Schedule(
            Kind.EACH,
            (
                Pass(2.0),
                Deliver((Spec(Mood.HANGING), _GOOD)),
                Strike(Deed.REVOKE, after=6),
                Pass(8.0),
                Deliver((_GOOD,)),
            ),
            processes=2,
        ),
    ),
    Example(
        "outage-burns-no-attempt",
        "Postgres goes away in the middle of a batch, for longer than all attempts would take: nothing is dead.",
        Schedule(
            Kind.EACH,
            (Pass(2.0), Deliver((_GOOD, _GOOD)), Outage(Thing.POSTGRES, seconds=8.0, after=5), Deliver((_GOOD,))),
        ),
    ),
    Example(
        "bad-neighbours",
        "Bad events of every kind in one batch cost only themselves, also where handlers take lists.",
        Schedule(
            Kind.BATCH,
            (
                Deliver((_GOOD, Spec(Mood.REJECTED), Spec(Mood.NUL_TEXT), _GOOD)),
                Deliver((_GOOD, Spec(Mood.ALWAYS_UNEXPECTED), Spec(Mood.INVALID), _GOOD)),
                Deliver((_GOOD, Spec(Mood.ALWAYS_TRANSIENT), Spec(Mood.UNDECODABLE), Spec(Mood.UNREADABLE), _GOOD)),
                Deliver((_GOOD, Spec(Mood.SWALLOWED_SQL), Spec(Mood.BROKEN_SQL), _GOOD)),
            ),
        ),
    ),
    Example(
        "older-version-arrives-last",
        "An older version comes after a newer one, and after its deletion: readers see neither it nor a resurrection.",
        Schedule(
            Kind.PROJECTION,
            (
                Deliver((Spec(version=3), Spec(version=1))),
                Deliver((Spec(key=1, version=1), Spec(Mood.TOMBSTONE, key=1, version=5), Spec(key=1, version=2))),
                Again(1, is_copy=True),
                Again(2, is_copy=True),
                Strike(Deed.BACKFILL),
            ),
        ),
    ),
    Example(
        "sink-applied-half",
        "A bulk write fails with half of it applied, and the process dies: the next one applies it all.",
        Schedule(
            Kind.PROJECTION,
            (
                SinkBreaks(0.5),
                Deliver((_GOOD, Spec(key=2), Spec(version=2), Spec(key=2, version=1))),
                Strike(Deed.KILL, after=24),
                Strike(Deed.JOIN),
            ),
        ),
    ),
    Example(
        "backfill-beside-live",
        "A backfill that is killed and resumed beside the live process: every event still acts once.",
        Schedule(
            Kind.EACH,
            (
                Deliver((_GOOD, Spec(Mood.REJECTED), Spec(key=1), Spec(Mood.TRANSIENT))),
                Strike(Deed.BACKFILL),
                Strike(Deed.KILL, process=1, after=24),
                Deliver((_GOOD,)),
                Pass(2.0),
            ),
        ),
    ),
    Example(
        "left-at-once",
        "A process is asked to leave before it owns anything: whoever comes next does the work.",
        Schedule(Kind.EACH, (Deliver((_GOOD, _GOOD)), Strike(Deed.LEAVE))),
    ),
    Example(
        "connection-lost-under-a-cancelled-takeover",
        "A process that leaves stands still in a takeover, and its connection is ended: it leaves all the same.",
        Schedule(
            Kind.EACH, (Strike(Deed.LEAVE, after=22), Strike(Deed.FREEZE, process=2, after=19), Pass(6.0)), processes=2
        ),
    ),
    Example(
        "cancelled-statement-beside-a-bad-event",
        "A statement is cancelled (57014) while an event fails for ever: only that event is dead.",
        Schedule(
            Kind.EACH,
            (
                Break(PostgresFault(Statement.QUERY, 0, Breakage.CANCELLED)),
                Deliver((Spec(Mood.ALWAYS_TRANSIENT), _GOOD)),
            ),
        ),
    ),
    Example(
        "replayed-by-a-mended-job",
        "What failed acts once it can be handled, and what waited behind it acts after it.",
        Schedule(
            Kind.EACH,
            (Deliver((_REJECTED, _GOOD, Spec(Mood.UNDECODABLE), _GOOD)), Pass(4.0), Replay(), Deliver((_GOOD,))),
        ),
    ),
    Example(
        "replayed-while-nothing-is-mended",
        "What fails in every replay comes to quarantine and is left alone; whoever forces it finds it mended.",
        Schedule(
            Kind.BATCH,
            (
                Deliver((_REJECTED, _GOOD)),
                Pass(4.0),
                *(Replay(is_mended=False), Pass(2.0)) * 3,
                Replay(),
                Pass(2.0),
                Replay(is_forced=True),
            ),
        ),
    ),
    Example(
        "undecodable-event-told-twice",
        "Neither record of an event could be decoded, so that both are dead: replayed, one acts and the other is done.",
        Schedule(
            Kind.EACH,
            (Deliver((Spec(Mood.UNDECODABLE), _GOOD)), Again(0), Again(0, is_copy=True), Pass(4.0), Replay()),
            is_made_good=True,
        ),
    ),
    Example(
        "discarded-with-events-behind-it",
        "A discarded event never acts, also where it is told again; what waited behind it does.",
        Schedule(
            Kind.EACH,
            (
                Deliver((_REJECTED, _GOOD, _GOOD)),
                Pass(4.0),
                Replay(Run.DISCARD),
                Pass(2.0),
                Again(0),
                Strike(Deed.BACKFILL),
                Pass(4.0),
            ),
            is_made_good=True,
        ),
    ),
    Example(
        "runner-killed-at-every-point",
        "A runner dies at each of many points of its run, and the next one takes the run up: everything acts once.",
        Schedule(
            Kind.EACH,
            tuple(
                step
                for points in range(20, 68, 6)
                for step in (
                    Deliver((_REJECTED, _GOOD, Spec(Mood.REJECTED, key=1), Spec(key=1))),
                    Pass(4.0),
                    Replay(),
                    Strike(Deed.KILL, process=-1, after=points),
                    Strike(Deed.JOIN),
                    Resume(),
                    Pass(2.0),
                )
            ),
            is_made_good=True,
        ),
    ),
    Example(
        "runner-overtaken-while-it-stands-still",
        "A runner is frozen in the middle of its run, another takes the run up, and the first one decides nothing.",
        Schedule(
            Kind.EACH,
            (
                Deliver((_REJECTED, _GOOD, Spec(Mood.REJECTED, key=1), Spec(key=1))),
                Pass(4.0),
                Replay(),
                Strike(Deed.FREEZE, process=-1, after=22),
                Resume(),
                Strike(Deed.FREEZE, process=-1, after=22),
                Strike(Deed.THAW, process=1),
                Pass(4.0),
            ),
        ),
    ),
    Example(
        "two-replays-at-once",
        "Two runs take every other letter each, and a third finds none: what lies between them is handled once.",
        Schedule(
            Kind.EACH,
            (
                Deliver((_REJECTED, _GOOD, _REJECTED, _GOOD)),
                Deliver((_REJECTED, Spec(Mood.REJECTED, key=1), Spec(key=1), Spec(Mood.REJECTED, key=2))),
                Pass(4.0),
                Replay(half=0),
                Replay(half=1),
                Replay(),
            ),
            is_made_good=True,
        ),
    ),
    Example(
        "older-document-replayed-last",
        "A letter that newer events have overtaken changes no document: it ends as superseded.",
        Schedule(
            Kind.PROJECTION,
            (
                Deliver((Spec(Mood.REJECTED, version=1), Spec(version=3), Spec(Mood.REJECTED, version=5))),
                Pass(4.0),
                Replay(),
            ),
        ),
    ),
    Example(
        "connection-lost-under-a-failed-group",
        "One event of a call fails, and the connection breaks as that is undone: the first of the call is not dead.",
        Schedule(
            Kind.BATCH,
            (
                Pass(2.0),
                Break(PostgresFault(Statement.ROLLBACK, 1, Breakage.CLOSED)),
                Deliver((_GOOD, _GOOD, _REJECTED)),
            ),
        ),
    ),
    Example(
        "unprepared-behind-a-failure",
        "What cannot be prepared comes behind what fails only in its transaction: it waits, and is not dead too.",
        Schedule(
            Kind.PREPARED,
            (Deliver((Spec(Mood.NUL_TEXT), _REJECTED)), Pass(2.5), Replay(is_mended=False)),
            is_made_good=True,
        ),
    ),
    Example(
        "letter-of-a-host-whose-clock-is-years-behind",
        "A worker with a clock of long ago keeps a letter: its replay acts, as the claim is known to be its own.",
        Schedule(
            Kind.EACH,
            (ClockJump(-400_000_000), Deliver((_REJECTED,)), Pass(2.0), ClockJump(400_000_000), Replay()),
            is_made_good=True,
        ),
    ),
)
