"""Partitions that were added to a topic: they begin behind what the older ones held when they were found.

With more partitions a key's later records go to another one. Read at once, they would overtake the earlier records,
which may still wait in the partition where the key was before. What was produced with the old number after that moment,
by a producer that had not heard of the new one, has no order that anybody could keep.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

from consumers.positions import Position, Positions
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.source import RecordSource


class Newcomers:
    """Begins the positions of one job that keeps the order of its keys."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions

    async def waiting(
        self, source: RecordSource, partitions: Collection[TopicPartition], topic_ids: Mapping[str, UUID]
    ) -> Mapping[TopicPartition, str]:
        """Each of `partitions` has a position. Returns those that must not be read yet, and why. Raises Transient.

        Of a topic that is new to the job all partitions begin together: none of them was added later.
        """
        known = await self._positions.all()
        for topic in sorted({partition.topic for partition in partitions if partition not in known}):
            older = {p for p, position in known.items() if p.topic == topic and position.topic_id == topic_ids[topic]}
            # Those that we were given are there, whatever the client has heard of the topic.
            there = await source.partitions_of(topic) | {p for p in partitions if p.topic == topic}
            await self._begin(source, there - known.keys(), topic_ids[topic], older=older)
        return await self._positions.waiting_newcomers()

    async def _begin(
        self,
        source: RecordSource,
        new: Collection[TopicPartition],
        topic_id: UUID,
        *,
        older: Collection[TopicPartition],
    ) -> None:
        # Asked for after `new` were there: what is older than they are stands below the ends.
        ranges = await source.ranges([*new, *older])
        starts = {partition: Position(0, ranges[partition].start, topic_id) for partition in new}
        if older:
            await self._positions.begin_newcomers(starts, behind={p: ranges[p].end for p in older})
        else:
            await self._positions.begin(starts)
