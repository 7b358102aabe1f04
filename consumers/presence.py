"""What a worker says of its partitions, so that `explain` can tell why one does not move without asking the worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from consumers.ownership import Hold, Holding
from tidegate_kernel.event import JobId, TopicPartition
from tidegate_kernel.postgres import Pool, translated_errors
from tidegate_kernel.queries import load_queries
from tidegate_kernel.source import RecordSource

_QUERIES = load_queries(__package__)

SLOW_SECONDS = 5.0
"""A batch takes milliseconds to a second; one in hand for longer is told, with what is at work on it."""

AtWork = Callable[[TopicPartition], str | None]
"""The handler that runs for a partition now, if the job has handlers."""


class State(StrEnum):
    """What is true of a partition, in the words that `explain` and the table share."""

    TAKING_OVER = "taking_over"
    MOVING = "moving"
    CAUGHT_UP = "caught_up"
    SLOW = "slow"
    WAITING = "waiting"
    STALLED = "stalled"
    PAUSED = "paused"
    FLOOD = "flood"
    OUTAGE = "outage"
    BACKLOG = "backlog"
    PARKING = "parking"
    BLOCKED = "blocked"
    RELEASED = "released"


# What a person has to resolve comes first: with it in the way the others would change nothing.
_OF_HOLDS = (
    (Hold.BLOCKED, State.BLOCKED),
    (Hold.FLOOD, State.FLOOD),
    (Hold.PARKING, State.PARKING),
    (Hold.PAUSED, State.PAUSED),
    (Hold.OUTAGE, State.OUTAGE),
    (Hold.BACKLOG, State.BACKLOG),
)


# These know by themselves since when they are so.
_TIMED = frozenset({State.SLOW, State.WAITING, State.STALLED})


@dataclass(frozen=True, slots=True)
class Told:
    """What an owner says of a partition. `since` is monotonic; `epoch` None while it is only taking over."""

    state: State
    detail: str
    since: float
    epoch: int | None

    def begun_with(self, last: Told | None) -> Told:
        """The same, with the beginning of `last` where that was the same state and nothing else tells the time."""
        goes_on = last is not None and last.state is self.state and self.state not in _TIMED
        return replace(self, since=last.since) if last is not None and goes_on else self

    def says_the_same(self, other: Told | None) -> bool:
        return other is not None and (self.state, self.detail, self.epoch) == (other.state, other.detail, other.epoch)


def told_of(held: Holding, source: RecordSource, at_work: AtWork, now: float) -> Told:
    """What is true of an owned partition at `now`. Where nothing tells since when, it is since now."""
    epoch = held.position.epoch
    for hold, state in _OF_HOLDS:
        if hold in held.holds:
            return Told(state, held.holds[hold], now, epoch)
    begun = held.in_hand_since
    if begun is not None and now - begun > SLOW_SECONDS:
        worker = at_work(held.partition)
        subject = "a batch" if worker is None else f"{worker}, in a batch"
        return Told(State.SLOW, f"{subject} from offset {held.position.next_offset}", begun, epoch)
    if held.waiting is not None:
        tries = f"try {held.waiting.attempts.tries} failed at offset {held.position.next_offset}"
        return Told(State.WAITING, f"{tries}: {held.trouble}", held.waiting_since, epoch)
    if held.stalled_since is not None:
        return Told(State.STALLED, f"not fetched from offset {held.resume_offset}", held.stalled_since, epoch)
    is_idle = begun is None and held.is_drained(source)
    return Told(State.CAUGHT_UP if is_idle else State.MOVING, "", now, epoch)


class Presence:
    """The rows of one process and job in `tidegate.presence`."""

    def __init__(self, pool: Pool, *, job: JobId, owner: str) -> None:
        self._pool, self._job, self._owner = pool, job, owner

    async def tell(self, told: Mapping[TopicPartition, Told], now: float) -> None:
        """The rows say so, seen just now, except where a newer owner has spoken. Raises Transient."""
        if not told:
            return
        with translated_errors("tell presence"):
            async with self._pool.acquire(timeout=10) as connection:
                await connection.execute(
                    _QUERIES["tell_presence"], self._job, self._owner, *_columns(told.items(), now)
                )


def _columns(told: Iterable[tuple[TopicPartition, Told]], now: float) -> tuple[list[object], ...]:
    # Sorted: two owners that tell of the same partitions must not lock their rows crosswise.
    rows = sorted(told)
    return (
        [partition.topic for partition, _ in rows],
        [partition.partition for partition, _ in rows],
        [each.epoch for _, each in rows],
        [each.state.value for _, each in rows],
        [each.detail for _, each in rows],
        [max(0.0, now - each.since) for _, each in rows],
    )
