"""How far behind a job is: records, and seconds since the oldest unhandled record was written."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple


class Lag(NamedTuple):
    """0 and 0.0 when caught up, never negative, never NaN."""

    records: int
    seconds: float


class PartitionLag(NamedTuple):
    """The lag of one partition; None while the end of the log is not known yet.

    `last_event_age` (seconds) grows while nothing is produced; that alone is no lag. A blocked partition waits for a
    person, a stalled one is behind and not fetched, a paused one rests because an operator wants it so, a full one
    because its next event has to be parked and there is no room. `visible_offset` is up to where readers see a
    projection, `reader_seconds` how far behind that is; both None while it is not told, and for other jobs.
    `next_offset` is the job's checkpoint in it.
    """

    topic: str
    partition: int
    lag: Lag | None
    last_event_age: float | None = None
    is_blocked: bool = False
    is_stalled: bool = False
    is_paused: bool = False
    is_full: bool = False
    visible_offset: int | None = None
    reader_seconds: float | None = None
    next_offset: int | None = None


STALLED_SECONDS = 60.0
"""A refresh takes a second and a batch a few; what is behind and has not moved for so long does not move."""


class Freshness(StrEnum):
    """What to make of what readers of a partition see. Idle, caught up and visible is OK, however old that is."""

    OK = "ok"
    LATE = "late"
    """Further behind than `freshness_sla`, and on its way."""
    STALLED = "stalled"
    """Behind, and neither the consumer nor what readers see has moved for a minute."""
    REWOUND = "rewound"
    """Moved back by hand: it is on its way to where it was, and readers see newer things late until then."""
    PAUSED = "paused"
    """An operator makes it rest, so how far it is behind is no news."""


def freshness_of(
    seconds_behind: float | None, *, sla: float, still_seconds: float, is_paused: bool, is_rewound: bool
) -> Freshness:
    """The state of a partition whose readers are `seconds_behind` (None: unknown, which counts as late).

    `still_seconds`: since when nothing of it has moved, by the clock of whoever noted that.
    """
    if is_paused:
        return Freshness.PAUSED
    if seconds_behind is not None and seconds_behind <= 0:
        return Freshness.OK
    # Both: after an idle hour a new record is behind for a moment, and nothing has moved for an hour.
    if still_seconds > STALLED_SECONDS and (seconds_behind is None or seconds_behind > STALLED_SECONDS):
        return Freshness.STALLED
    if is_rewound:
        return Freshness.REWOUND
    return Freshness.LATE if seconds_behind is None or seconds_behind > sla else Freshness.OK


def lag(
    *,
    next_offset: int,
    end: int | None,
    oldest_in_hand: int | None,
    newest_settled: int | None,
    caught_up_at: datetime | None,
    now: datetime,
) -> Lag | None:
    """Returns the lag of a partition whose unhandled records start at `next_offset` and stop before `end`.

    `oldest_in_hand` and `newest_settled` are record timestamps in milliseconds: of the first record being worked on,
    and of the last one settled. A record not fetched yet was written after `newest_settled`, and after the moment we
    were last caught up; the later of the two bounds its age. Without the second, one new record after an idle hour
    would show as an hour of lag. A timestamp of 0 says nothing, and one of the future nothing of what comes after it.
    """
    if end is None:
        return None
    now_ms = now.timestamp() * 1000
    if oldest_in_hand is None and next_offset >= end:
        return Lag(0, 0.0)
    records = max(1, end - next_offset)
    if oldest_in_hand:
        return Lag(records, _seconds(now_ms, oldest_in_hand))
    bounds = [newest_settled or 0.0, caught_up_at.timestamp() * 1000 if caught_up_at is not None else 0.0]
    return Lag(records, _seconds(now_ms, max((bound for bound in bounds if 0 < bound <= now_ms), default=now_ms)))


def age_seconds(newest_settled: int | None, now: datetime) -> float | None:
    """Seconds since the newest settled record was written; None before the first, and where it does not say."""
    return _seconds(now.timestamp() * 1000, newest_settled) if newest_settled else None


def _seconds(now_ms: float, since_ms: float) -> float:
    # A producer's clock ahead of ours makes no negative lag.
    return max(0.0, (now_ms - since_ms) / 1000)
