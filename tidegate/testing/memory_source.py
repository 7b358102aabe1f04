"""Reading from the in-memory Kafka, as a member of a group or of assigned partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import structlog

from tidegate.testing.groups import Group
from tidegate.testing.log import Log
from tidegate.testing.memory_topics import MemoryTopics
from tidegate_kernel import logs
from tidegate_kernel.event import Record, TopicPartition
from tidegate_kernel.source import Assigned, ClientDied, LogRange, NotAssigned, Revoked, SourceFailure

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Standing:
    """What a client knows of one assigned partition; a new assignment starts it anew."""

    position: int | None = None
    is_paused: bool = False
    end: int | None = None


async def _nothing(_: frozenset[TopicPartition]) -> None:
    return None


class MemorySource:
    """`RecordSource` on a MemoryBroker; made by `MemoryBroker.join` and `MemoryBroker.reader`."""

    def __init__(
        self,
        broker: MemoryTopics,
        group: Group | None,
        topics: Sequence[str],
        *,
        on_assigned: Assigned = lambda _: None,
        on_revoked: Revoked = _nothing,
    ) -> None:
        self._broker, self._group, self.topics = broker, group, frozenset(topics)
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._standings: dict[TopicPartition, _Standing] = {}
        self._is_rebalancing = self._is_closed = self._is_dead = False

    def die(self) -> None:
        """As a client one of whose tasks was ended by an error: the group believes in it, and nothing is fetched."""
        self._is_dead = True

    def require_alive(self) -> None:
        if self._is_dead and not self._is_closed:
            raise ClientDied("client in memory: it was told to die")

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._standings)

    async def fetch(
        self, partitions: Iterable[TopicPartition], *, max_records: int, timeout: float
    ) -> Mapping[TopicPartition, Sequence[Record]]:
        wanted, clock = list(partitions), self._broker.clock
        until = clock.monotonic() + timeout
        while True:
            changed = self._broker.changed()
            if found := self._collect(wanted, max_records):
                return found
            left = until - clock.monotonic()
            if left <= 0:
                return {}
            await self._wait(changed, left)

    async def _wait(self, changed: asyncio.Future[None], seconds: float) -> None:
        slept = asyncio.create_task(self._broker.clock.sleep(seconds), name="fetch-wait")
        try:
            await asyncio.wait([changed, slept], return_when=asyncio.FIRST_COMPLETED)
        finally:
            slept.cancel()

    def _collect(self, wanted: Sequence[TopicPartition], room: int) -> dict[TopicPartition, Sequence[Record]]:
        found: dict[TopicPartition, Sequence[Record]] = {}
        if self._is_closed:
            raise SourceFailure("fetch: the source is closed")
        if self._is_rebalancing or self._is_dead:
            return found
        self._raise_if_down()
        if (failure := self._broker.take_failure(None)) is not None:
            raise failure
        for partition in wanted:
            standing, log = self._standings.get(partition), self._broker.log(partition)
            if standing is None or standing.is_paused or log is None or room <= 0:
                continue
            if (failure := self._broker.take_failure(partition)) is not None:
                raise failure
            records = self._read(partition, standing, log, room)
            if records:
                found[partition] = records
                room -= len(records)
        return found

    def _read(self, partition: TopicPartition, standing: _Standing, log: Log, room: int) -> Sequence[Record]:
        if standing.position is None:
            committed = None if self._group is None else self._group.committed.get(partition)
            if committed is None:
                raise SourceFailure(f"fetch: {partition} has no offset; seek it first")
            standing.position = committed
        standing.end = log.stable_end
        # A failure of a later partition leaves this position moved and its records lost, as the real client does.
        records, standing.position = log.read(standing.position, room)
        return records

    def seek(self, partition: TopicPartition, offset: int) -> None:
        standing = self._standings.get(partition)
        if standing is None:
            raise NotAssigned(f"{partition} is not assigned")
        standing.position = offset
        self._broker.notify()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._set_paused(partitions, is_paused=True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._set_paused(partitions, is_paused=False)
        self._broker.notify()

    def _set_paused(self, partitions: Iterable[TopicPartition], *, is_paused: bool) -> None:
        for partition in partitions:
            if partition in self._standings:
                self._standings[partition].is_paused = is_paused

    def drained_to(self, partition: TopicPartition) -> int | None:
        standing = self._standings.get(partition)
        return None if standing is None else standing.position

    def known_end(self, partition: TopicPartition) -> int | None:
        standing = self._standings.get(partition)
        return None if standing is None else standing.end

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        if not offsets:
            return
        told = ", ".join(f"{p}@{offset}" for p, offset in sorted(offsets.items()))
        if self._group is None:
            raise NotAssigned(f"commit of {told}: this reader is in no group")
        if self not in self._group.members or not self._standings.keys() >= offsets.keys():
            raise NotAssigned(f"commit of {told}: not assigned to this member any more")
        self._raise_if_down()
        self._group.committed.update(offsets)

    async def ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        return {partition: self._require_log(partition).range() for partition in partitions}

    async def offsets_at(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> Mapping[TopicPartition, int]:
        return {partition: self._require_log(partition).first_at(timestamp_ms) for partition in partitions}

    async def topic_id(self, topic: str) -> UUID:
        self._raise_if_down()
        return self._broker.topic_id(topic)

    async def partitions_of(self, topic: str) -> frozenset[TopicPartition]:
        self._raise_if_down()
        return frozenset(self._broker.partitions(topic))

    async def close(self) -> None:
        self._is_closed = True
        self._standings = {}
        self._broker.notify()
        if self._group is not None and self._group.leave(self):
            self._broker.rebalance_later(self._group)

    # What broker and group call.

    async def revoke(self) -> None:
        """Nothing is fetched until `assign`; the listener may still commit what it had finished."""
        self._is_rebalancing = True
        try:
            await self._on_revoked(self.assignment())
        except Exception as error:
            # As the real client: what a listener raises goes nowhere.
            _log.error(logs.LISTENER_FAILED, exc_info=error)

    def assign(self, partitions: frozenset[TopicPartition]) -> None:
        """The partitions are new to the client, also those it had before: no position, not paused."""
        self._standings = {partition: _Standing() for partition in sorted(partitions)}
        self._is_rebalancing = False
        self._on_assigned(partitions)
        self._broker.notify()

    def _require_log(self, partition: TopicPartition) -> Log:
        self._raise_if_down()
        log = self._broker.log(partition)
        if log is None:
            raise SourceFailure(f"offsets: {partition} does not exist")
        return log

    def _raise_if_down(self) -> None:
        self.require_alive()
        if self._broker.is_down:
            raise SourceFailure("the broker is down")
