"""What a worker has settled and readers do not see yet: since when, and how long each event has taken to be seen."""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from projections.freshness import Lag
from projections.visibility import Point, Shown
from tidegate_kernel.event import Fence, TopicPartition

# 8 bytes each. A job that settles 20,000 events a second has ten seconds of them in here; a refresh takes one.
_MOST_TIMES = 200_000


@dataclass(slots=True)
class _Settled:
    """A batch: its end, since when its first record is due at the latest (ms), and the times of all (ms)."""

    end: Point
    due_since: float
    times: array[int]


class Seen(NamedTuple):
    """Seconds from the events' times to their being seen, sorted and not negative; some were not `measured`."""

    seconds: list[float]
    unmeasured: int


class _Begun(NamedTuple):
    """The ownership of a partition by this process, and where it began to settle."""

    epoch: int
    at: Point


class Unseen:
    """Of one job in one process. Batches come in once they are settled; a partition's in the order of its offsets."""

    def __init__(self, most_times: int = _MOST_TIMES) -> None:
        self._settled: defaultdict[TopicPartition, deque[_Settled]] = defaultdict(deque)
        self._begun: dict[TopicPartition, _Begun] = {}
        self._shown: Mapping[TopicPartition, Shown] = {}
        self._noticed: dict[TopicPartition, tuple[Point, datetime]] = {}
        self._room, self._unmeasured = most_times, 0

    def add(self, fence: Fence, end: Point, times: array[int], now: datetime) -> None:
        """A batch was settled by `fence` up to `end`; `times` are those of its records in milliseconds, in order."""
        partition, now_ms = TopicPartition(fence.topic, fence.partition), now.timestamp() * 1000
        waiting, begun = self._settled[partition], self._begun.get(partition)
        if begun is None or begun.epoch != fence.epoch:
            begun = _Begun(fence.epoch, Point(end.topic_id, fence.next_offset))
            self._begun[partition] = begun
            self._forget_from(waiting, begun.at)
        # What is dated in the future is due now. What has no date is so, too.
        due_since = min(times[0], now_ms) if times and times[0] > 0 else now_ms
        if len(times) > self._room:
            self._unmeasured += len(times)
            times = array("q")
            if waiting and not waiting[-1].times:
                waiting[-1].end = end
                return
        self._room -= len(times)
        waiting.append(_Settled(end, due_since, times))

    def pass_to(self, shown: Mapping[TopicPartition, Shown], now: datetime) -> Seen:
        """Readers see this by now; returns how long the events took that they did not see when it was last told."""
        self._shown = shown
        seconds: list[float] = []
        for partition, each in shown.items():
            waiting, point = self._settled[partition], each.point
            seen_at_ms = (now.timestamp() - each.seen_seconds) * 1000
            while (
                waiting
                and waiting[0].end.topic_id == point.topic_id
                and waiting[0].end.next_offset <= point.next_offset
            ):
                times = waiting.popleft().times
                self._room += len(times)
                # Skew was counted when they were settled; they have not become younger since.
                seconds += [max(0.0, seen_at_ms - time) / 1000 for time in times if time > 0]
        self._notice(now)
        unmeasured, self._unmeasured = self._unmeasured, 0
        return Seen(sorted(seconds), unmeasured)

    def visible(self, partition: TopicPartition, topic_id: UUID) -> int | None:
        """Up to where readers see it; None while it was not told."""
        shown = self._shown.get(partition)
        return None if shown is None else shown.sees(topic_id)

    def seconds_behind(
        self, partition: TopicPartition, position: Point, lag: Lag | None, now: datetime
    ) -> float | None:
        """Age of the oldest record that readers do not see; 0 when there is none, None while it cannot be told.

        `lag` is that of the settled `position`.
        """
        visible = self.visible(partition, position.topic_id)
        if visible is None:
            return None
        settled = None if lag is None else lag.seconds
        if visible >= position.next_offset:
            return settled
        return max(settled or 0.0, self._unseen_seconds(partition, visible, position, now))

    def _unseen_seconds(self, partition: TopicPartition, visible: int, position: Point, now: datetime) -> float:
        waiting = self._settled.get(partition)
        begun = self._begun.get(partition)
        own = next((each for each in waiting or () if each.end.next_offset > visible), None)
        seconds = 0.0 if own is None else now.timestamp() - own.due_since / 1000
        if begun is None or begun.at.topic_id != position.topic_id or visible < begun.at.next_offset:
            # Another process settled what comes next, so its time is not known: it is unseen at least since then.
            _, since = self._noticed.get(partition, (position, now))
            seconds = max(seconds, (now - since).total_seconds(), self._shown[partition].trouble_seconds)
        return max(0.0, seconds)

    def _notice(self, now: datetime) -> None:
        """Since when each partition has been visible up to where it is."""
        last = self._noticed
        self._noticed = {
            place: last[place] if place in last and last[place][0] == each.point else (each.point, now)
            for place, each in self._shown.items()
        }

    def _forget_from(self, waiting: deque[_Settled], point: Point) -> None:
        """The partition is taken at `point`: what was settled beyond it is read again, or was of another topic."""
        while waiting and (
            waiting[-1].end.topic_id != point.topic_id or waiting[-1].end.next_offset > point.next_offset
        ):
            self._room += len(waiting.pop().times)
