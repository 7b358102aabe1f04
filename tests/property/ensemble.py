"""Several stages beside each other, each in a process and on a database of its own: what schedules cost is CPU."""

from __future__ import annotations

import gc
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.property.schedule import Kind, Schedule, schedules
from tests.property.stage import Stage, opened_stage
from tests.property.watchdog import ended_if_it_hangs

# Most of what a schedule leaves behind is freed without the collector; the rest may wait for a while.
_OBJECTS_BEFORE_COLLECTING = 50_000


@dataclass(frozen=True, slots=True)
class Share:
    """Schedules that are drawn together: the same ones wherever and with whatever others it is played."""

    kind: Kind
    seed: int
    number: int
    count: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """`failure` is the report of what went wrong, with the smallest schedule that shows it; empty if all went well."""

    share: Share
    played: int
    seconds: float
    struck: Counter[str]
    failure: str


class Ensemble:
    """Hands shares out to its processes."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes

    def play(self, shares: Sequence[Share]) -> list[Outcome]:
        """What came of each share that was begun: none is begun after a failure.

        Raises AssertionError if a process ended: why is on its stderr.
        """
        left, outcomes = list(reversed(shares)), list[Outcome]()
        idle, busy = list(self._pipes), list[Connection]()
        while left or busy:
            while left and idle:
                busy.append(idle.pop())
                busy[-1].send(left.pop())
            for pipe in wait(busy):
                assert isinstance(pipe, Connection)
                outcomes.append(_heard(pipe))
                busy.remove(pipe)
                idle.append(pipe)
            if any(outcome.failure for outcome in outcomes):
                left.clear()
        return outcomes


def _heard(pipe: Connection) -> Outcome:
    try:
        outcome: Outcome = pipe.recv()
    except EOFError:
        raise AssertionError("a process that played schedules has ended: its stderr says at which one") from None
    return outcome


@contextmanager
def opened_ensemble(dsns: Sequence[str]) -> Iterator[Ensemble]:
    """Yields an ensemble with a process for each of these (migrated, otherwise empty) databases."""
    context = get_context("spawn")
    pipes = [context.Pipe() for _ in dsns]
    processes = [
        context.Process(target=_play_what_is_asked_for, args=(dsn, theirs), daemon=True)
        for dsn, (_, theirs) in zip(dsns, pipes, strict=True)
    ]
    for process, (_, theirs) in zip(processes, pipes, strict=True):
        process.start()
        theirs.close()
    try:
        yield Ensemble([ours for ours, _ in pipes])
    finally:
        for process, (ours, _) in zip(processes, pipes, strict=True):
            ours.close()
            process.join(30)
            process.kill()


def _play_what_is_asked_for(dsn: str, pipe: Connection) -> None:
    """Ends when nobody asks any more, also because the asking process was killed."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    gc.freeze()
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTING)
    with opened_stage(dsn) as stage:
        while True:
            try:
                share = pipe.recv()
            except EOFError:
                return
            pipe.send(play_share(stage, share))


def play_share(stage: Stage, share: Share) -> Outcome:
    """Draws and plays; a failure is made as small as it gets."""

    @seed(f"{share.seed} {share.kind} {share.number}")
    @settings(
        max_examples=share.count,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(schedule=schedules(share.kind))
    def play(schedule: Schedule) -> None:
        with ended_if_it_hangs(stage.loop, schedule):
            stage.play(schedule)

    began, played_before, failure = time.monotonic(), stage.played, ""
    stage.struck.clear()
    try:
        play()
    except Exception as error:
        failure = "".join(traceback.format_exception(error))
    return Outcome(share, stage.played - played_before, time.monotonic() - began, Counter(stage.struck), failure)
