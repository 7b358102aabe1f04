"""Notices, under a running consumer, that a topic was deleted and made anew under its old name.

A client that was cut off at that moment goes on at its old offsets without a word: the new topic's first records would
be passed over. So the broker is asked for the ids now and then, beside the comparison at each takeover.
"""

from __future__ import annotations

from collections.abc import Callable

from consumers.obstacle import NO_TOPIC_ID, is_same_topic, recreated
from consumers.ownership import Holdings
from consumers.steward import topic_ids
from tidegate_kernel.cancellation import raise_if_cancelled
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import JobCode
from tidegate_kernel.source import RecordSource

# Bounds what is read of a new topic from the wrong place before its partitions stop.
LOOK_EVERY_SECONDS = 10.0


async def watch_topics(
    source: RecordSource,
    holdings: Holdings,
    clock: Clock,
    on_trouble: Callable[[Transient], None],
    *,
    job: JobCode | None = None,
) -> None:
    """Looks until cancelled; a partition whose position counts the offsets of another topic is blocked.

    `on_trouble` is told when Kafka does not answer.
    """
    while True:
        await clock.sleep(LOOK_EVERY_SECONDS)
        held = [one for one in holdings.all() if one.blocked is None]
        try:
            ids = await topic_ids(source, (one.partition.topic for one in held))
        except Transient as error:
            raise_if_cancelled(error)
            on_trouble(error)  # the client's own fetches are silent while it finds no broker
            continue
        for one in held:
            # Without an id: it is deleted and not there again, or the broker is too old to have ids.
            topic_id = ids[one.partition.topic]
            is_other = topic_id != NO_TOPIC_ID and not is_same_topic(one.position.topic_id, topic_id)
            if is_other and holdings.is_current(one):
                one.block(recreated(one.partition, one.position).told(job), source)
