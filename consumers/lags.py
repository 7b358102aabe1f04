"""How far a job's owned partitions are behind, for its metrics."""

from __future__ import annotations

from datetime import datetime

from consumers.ownership import Hold, Holding, Holdings
from projections.freshness import Lag, PartitionLag, age_seconds, lag
from projections.visibility import Point
from projections.visibility_unseen import Unseen
from tidegate_kernel.source import RecordSource


def lags_of(
    holdings: Holdings, source: RecordSource, now: datetime, unseen: Unseen | None = None
) -> list[PartitionLag]:
    """Returns how far each owned partition is behind, as of the newest fetch answers; with `unseen`, readers too."""
    return [_of_partition(held, _lag(held, source, now), now, unseen) for held in holdings.all()]


def _of_partition(held: Holding, lag: Lag | None, now: datetime, unseen: Unseen | None) -> PartitionLag:
    position = Point(held.position.topic_id, held.position.next_offset)
    return PartitionLag(
        *held.partition,
        lag=lag,
        last_event_age=age_seconds(held.newest_settled, now),
        is_blocked=held.blocked is not None,
        is_stalled=held.stalled_since is not None,
        is_paused=Hold.PAUSED in held.holds,
        is_full=Hold.PARKING in held.holds,
        visible_offset=None if unseen is None else unseen.visible(held.partition, position.topic_id),
        reader_seconds=None if unseen is None else unseen.seconds_behind(held.partition, position, lag, now),
        next_offset=position.next_offset,
    )


def _lag(held: Holding, source: RecordSource, now: datetime) -> Lag | None:
    is_working = held.oldest_in_hand is not None
    drained = None if is_working else source.drained_to(held.partition)
    ends = [end for end in (source.known_end(held.partition), held.end_seen) if end is not None]
    return lag(
        next_offset=max(held.position.next_offset, drained or 0),
        end=max(ends, default=None),
        oldest_in_hand=held.oldest_in_hand,
        newest_settled=held.newest_settled,
        caught_up_at=held.caught_up_at,
        now=now,
    )
