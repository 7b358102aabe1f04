"""When a job by the clock is due: pure functions of its declaration and of two instants.

Times of the clock on the wall exist twice or not at all when a zone changes its offset. The rules, for a `Cron`:

- One that names hours (`30 2 * * *`, `0 */6 * * *`, `*/15 9-17 * * *`) keeps to its times of the day. A time that is
  left out in spring (the gap) comes at the first instant after the gap; several of them, or one that is due then
  anyway, come once. A time that comes twice in autumn counts the first time only.
- One that runs in every hour (`15 * * * *`, `*/10 * * * *`) is a beat. It goes by what the clock shows: nothing is made
  up for what the gap leaves out, and both rounds of the repeated time count, so that it is never silent for an hour.

An `Every` counts from a fixed instant and knows no zone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from hashlib import sha256
from typing import NamedTuple, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidegate.jobs.clockwork.cron import CronTimes, parse_cron
from tidegate_kernel.errors import Misconfigured

MOST_COUNTED = 10_000
"""Occurrences that are counted one by one after a downtime: more are told as so many."""

LONGEST = timedelta(days=36_500)
"""A hundred years: what is longer is a mistake, or `timedelta.max`, from which no date can be reckoned."""

_MINUTE = timedelta(minutes=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Ever longer looks back for the newest occurrence; the last is beyond the rarest, a 29th of February around 2100.
_LOOKS_BACK = tuple(timedelta(days=days) for days in (1 / 24, 1, 32, 366, 10 * 366))


@dataclass(frozen=True)
class Cron:
    """At the times of an expression of five fields, by the clock on the wall in `zone` ("Europe/Berlin", "UTC").

    Raises Misconfigured for an expression or a zone that says nothing.
    """

    expression: str
    zone: str
    _times: CronTimes = field(init=False, repr=False, compare=False)
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_times", parse_cron(self.expression))
        object.__setattr__(self, "_zone", _zone(self.zone))

    def __str__(self) -> str:
        return f"{self.expression} ({self.zone})"

    def next_after(self, instant: datetime) -> datetime:
        """Returns the first instant later than `instant` (aware) at which it is due, in UTC."""
        return self._next_beat(instant) if self._times.is_beat else self._next_time_of_day(instant)

    def _next_beat(self, instant: datetime) -> datetime:
        now = instant.astimezone(UTC).replace(second=0, microsecond=0) + _MINUTE
        while True:
            shown = now.astimezone(self._zone)
            if not self._times.is_on(shown.date()):
                tomorrow = datetime.combine(shown.date() + timedelta(days=1), time())
                now = max(now + _MINUTE, _instant(tomorrow, self._zone))
            elif shown.minute not in self._times.minutes:
                now += _MINUTE
            else:
                return now

    def _next_time_of_day(self, instant: datetime) -> datetime:
        # What the wall shows earlier than this cannot come later: times keep their order, and gaps end before it.
        since = instant.astimezone(self._zone).replace(tzinfo=None, second=0, microsecond=0)
        day = since.date()
        while True:
            if self._times.is_on(day):
                for shown in self._times_on(day):
                    if shown >= since and (due := _instant(shown, self._zone)) > instant:
                        return due
            day += timedelta(days=1)

    def _times_on(self, day: date) -> Iterator[datetime]:
        for hour in self._times.hours:
            for minute in self._times.minutes:
                yield datetime.combine(day, time(hour, minute))


@dataclass(frozen=True)
class Every:
    """Again and again after `interval`, counted from 1970 and `offset`: the same instants in every process."""

    interval: timedelta
    offset: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        if not timedelta(seconds=1) <= self.interval <= LONGEST or abs(self.offset) > LONGEST:
            raise Misconfigured(
                f"every={self.interval}, offset={self.offset}: it must be at least a second, and both "
                f"{LONGEST.days} days at most"
            )

    def __str__(self) -> str:
        return f"every {self.interval}"

    def next_after(self, instant: datetime) -> datetime:
        """Returns the first instant later than `instant` (aware) at which it is due, in UTC."""
        first = _EPOCH + self.offset
        return first + ((instant - first) // self.interval + 1) * self.interval


Schedule: TypeAlias = Cron | Every


class Occurrence(NamedTuple):
    """A time at which a run is due; `missed`: how many before it have passed without one, and get none any more."""

    scheduled_at: datetime
    missed: int = 0


def newest_occurrence(schedule: Schedule, *, after: datetime, now: datetime) -> Occurrence | None:
    """Of what came due in (after, now] only the last gets a run, which tells how many it stands for. None: nothing."""
    newest, count = _newest(schedule, after, now)
    return None if newest is None else Occurrence(newest, count - 1)


def each_occurrence(schedule: Schedule, *, after: datetime, now: datetime, most: int) -> Sequence[Occurrence]:
    """All that came due in (after, now] get their runs, in order: the last `most` of them.

    The first of those tells how many before it get none.
    """
    newest, count = _newest(schedule, after, now)
    if newest is None:
        return []
    kept = list(_last(schedule, after=after, newest=newest, most=most))
    return [Occurrence(kept[0], max(0, count - len(kept))), *(Occurrence(due) for due in kept[1:])]


def jitter(key: str, scheduled_at: datetime, most: timedelta) -> timedelta:
    """A delay below `most` that every process computes alike from `key` and time, so that crowds spread out."""
    digest = sha256(f"{key}@{scheduled_at.astimezone(UTC).isoformat()}".encode()).digest()
    return most * (int.from_bytes(digest[:8]) / 2**64)


def _newest(schedule: Schedule, after: datetime, now: datetime) -> tuple[datetime | None, int]:
    """The last occurrence in (after, now], and how many there are: counting ends at MOST_COUNTED."""
    newest, count, due = None, 0, schedule.next_after(after)
    while due <= now:
        newest, count = due, count + 1
        if count == MOST_COUNTED:
            return _look_back(schedule, newest, now), count
        due = schedule.next_after(due)
    return newest, count


def _look_back(schedule: Schedule, known: datetime, now: datetime) -> datetime:
    """The last occurrence in [known, now], without a walk from `known`."""
    for look in _LOOKS_BACK:
        start = max(known, now - look)
        if start == known or schedule.next_after(start) <= now:
            break
    else:
        start = known
    newest = start if start == known else schedule.next_after(start)
    while (due := schedule.next_after(newest)) <= now:
        newest = due
    return newest


def _last(schedule: Schedule, *, after: datetime, newest: datetime, most: int) -> Sequence[datetime]:
    """The last `most` occurrences in (after, newest]."""
    kept: list[datetime] = []
    for look in (timedelta(0), *_LOOKS_BACK, newest - after):
        start = max(after, newest - look - timedelta(microseconds=1))
        kept = list(_walk(schedule, start, newest))
        if len(kept) >= most or start == after:
            break
    return kept[-most:]


def _walk(schedule: Schedule, after: datetime, until: datetime) -> Iterator[datetime]:
    due = schedule.next_after(after)
    while due <= until:
        yield due
        due = schedule.next_after(due)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Misconfigured(f"time zone {name!r} is not known; it takes names such as 'Europe/Berlin'") from error


def _instant(shown: datetime, zone: ZoneInfo) -> datetime:
    """The instant at which the wall first shows `shown`, or the end of the gap that leaves it out, in UTC."""
    before = shown.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if before.astimezone(zone).replace(tzinfo=None) == shown:
        return before
    # In a gap: the offset before it leads behind its end, the one after it before that.
    early, late = shown.replace(tzinfo=zone, fold=1).astimezone(UTC), before
    offset = late.astimezone(zone).utcoffset()
    while late - early > timedelta(seconds=1):
        middle = early + (late - early) // 2
        if middle.astimezone(zone).utcoffset() == offset:
            late = middle
        else:
            early = middle
    return late.replace(microsecond=0)
