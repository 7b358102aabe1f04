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
            await self._begin(source, topic, topic_ids[topic], known=known.keys(), older=older)
        return await self._positions.waiting_newcomers()

    async def _begin(
        self,
        source: RecordSource,
        topic: str,
        topic_id: UUID,
        *,
        known: Collection[TopicPartition],
        older: Collection[TopicPartition],
    ) -> None:
        found = await source.partitions_of(topic)
        ranges = await source.ranges(found)
        starts = {p: Position(0, ranges[p].start, topic_id) for p in found if p not in known}
        if not starts:
            return  # the client does not know yet of what it was given
        if older:
            # The ends are asked for after the partition was there: what is older than it stands below them.
            behind = {p: ranges[p].end for p in older if p in ranges}
            await self._positions.begin_newcomers(starts, behind=behind)
        else:
            await self._positions.begin(starts)
