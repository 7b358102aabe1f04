"""Notices, under a running consumer, that a topic was deleted and made anew under its old name.

A client that was cut off at that moment goes on at its old offsets without a word: the new topic's first records would
be passed over. So the broker is asked for the ids now and then, beside the comparison at each takeover.
"""

from __future__ import annotations

from uuid import UUID

import structlog

from consumers.ownership import Hold, Holding, Holdings
from consumers.steward import topic_ids
from tidegate_kernel import logs
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Transient
from tidegate_kernel.source import RecordSource

_log = structlog.get_logger(__name__)

# Bounds what is read of a new topic from the wrong place before its partitions stop.
LOOK_EVERY_SECONDS = 10.0
_UNKNOWN = UUID(int=0)


async def watch_topics(source: RecordSource, holdings: Holdings, clock: Clock) -> None:
    """Looks until cancelled; a partition whose position counts the offsets of another topic is blocked."""
    while True:
        await clock.sleep(LOOK_EVERY_SECONDS)
        held = [one for one in holdings.all() if one.blocked is None]
        try:
            ids = await topic_ids(source, (one.partition.topic for one in held))
        except Transient:
            continue  # Kafka does not answer now: fetching tells that already
        for one in held:
            # Without an id: it is deleted and not there again, or the broker is too old to have ids.
            if ids[one.partition.topic] not in (_UNKNOWN, one.position.topic_id) and holdings.is_current(one):
                _block(source, one)


def _block(source: RecordSource, held: Holding) -> None:
    topic, partition = held.partition
    why = (
        f"re-created: topic {topic!r} has another id since it was taken over; position {held.position.next_offset} "
        "counts the offsets of the old one, and the new one's first records were not read"
    )
    held.hold(Hold.BLOCKED, why, source)
    _log.error(logs.PARTITION_BLOCKED, topic=topic, partition=partition, why=why)
