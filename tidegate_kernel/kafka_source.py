"""Records out of Kafka: the client's errors become ours, and what it drops or passes over in silence is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from aiokafka import ConsumerRebalanceListener
from aiokafka.errors import (
    CommitFailedError,
    CorruptRecordException,
    IllegalGenerationError,
    IllegalOperation,
    IllegalStateError,
    KafkaError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    UnknownMemberIdError,
    UnsupportedCodecError,
)
from aiokafka.structs import OffsetAndMetadata
from aiokafka.structs import TopicPartition as ClientPartition

from tidegate_kernel.errors import Transient
from tidegate_kernel.event import Record, TopicPartition
from tidegate_kernel.kafka_close import close_consumer
from tidegate_kernel.kafka_life import require_alive
from tidegate_kernel.kafka_metadata import TopicDescription, TopicIds
from tidegate_kernel.kafka_salvage import has_readable_names, refetch
from tidegate_kernel.source import (
    Assigned,
    CorruptBatch,
    LogRange,
    NotAssigned,
    OffsetOutOfRange,
    Revoked,
    SourceFailure,
    UnreadableRecord,
)

# The client repeats a commit for as long as no coordinator answers. A commit is a hint: no stop, no revoke and no lane
# that gives a partition up may wait for Kafka to come back.
_COMMIT_SECONDS = 5.0


class RebalanceListener(ConsumerRebalanceListener):  # type: ignore[misc]  # the client ships no types
    """Tells of assignments and revokes in our own words; the client calls it from within a poll."""

    def __init__(self, on_assigned: Assigned, on_revoked: Revoked) -> None:
        self._on_assigned, self._on_revoked = on_assigned, on_revoked

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        await self._on_revoked(_ours(revoked))

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._on_assigned(_ours(assigned))


class KafkaSource:
    """`RecordSource` on the real client."""

    def __init__(self, consumer: Any, topic_ids: TopicIds) -> None:
        self._consumer = consumer
        self._topic_ids = topic_ids

    def require_alive(self) -> None:
        require_alive(self._consumer)

    def assignment(self) -> frozenset[TopicPartition]:
        return _ours(self._consumer.assignment())

    async def fetch(
        self, partitions: Iterable[TopicPartition], *, max_records: int, timeout: float
    ) -> Mapping[TopicPartition, Sequence[Record]]:
        wanted = [client_partition(p) for p in partitions]
        try:
            fetched: Mapping[TopicPartition, Sequence[Record]] = await self._consumer.getmany(
                *wanted, timeout_ms=int(timeout * 1000), max_records=max_records
            )
        except RecordTooLargeError as error:
            raise UnreadableRecord("record above the fetch limit", offset=_offset_in(error)) from error
        except (CorruptRecordException, UnsupportedCodecError) as error:
            raise _corrupt(error) from error
        except OffsetOutOfRangeError as error:
            raise OffsetOutOfRange(f"the log does not hold {_spell_client(error)}") from error
        except (KafkaError, OSError) as error:
            self.require_alive()
            raise SourceFailure(f"fetch: {type(error).__name__}: {error}") from error
        except Exception as error:
            self.require_alive()
            # Out of the client's parser: UnicodeDecodeError for a header name, and whatever else odd bytes can raise.
            if len(wanted) != 1:
                message = f"the client cannot parse a record of some partition: {type(error).__name__}"
                raise UnreadableRecord(message) from error
            records = await self._salvage(wanted[0], max_records)
            return {TopicPartition(*wanted[0]): records} if records else {}
        return fetched

    async def _salvage(self, partition: ClientPartition, max_records: int) -> Sequence[Record]:
        """The records before the one that the client cannot parse. Raises UnreadableRecord where there are none."""
        ours = TopicPartition(*partition)
        position = self.drained_to(ours)
        if position is None:
            raise SourceFailure(f"fetch: {ours} was revoked meanwhile")
        records: list[Record] = []
        limit = self._consumer._fetcher._max_partition_fetch_bytes
        try:
            for record in await refetch(self._consumer._client, partition, position, max_bytes=limit):
                if not has_readable_names(record):
                    if records:
                        break
                    raise UnreadableRecord("the name of a header is not UTF-8", offset=record.offset, record=record)
                records.append(record)
                if len(records) == max_records:
                    break
        except CorruptRecordException as error:
            if not records:
                raise _corrupt(error) from error
        if records:
            self.seek(ours, records[-1].offset + 1)
        return records

    def seek(self, partition: TopicPartition, offset: int) -> None:
        try:
            self._consumer.seek(client_partition(partition), offset)
        except (IllegalStateError, AssertionError) as error:
            raise NotAssigned(f"{partition} is not assigned") from error

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._consumer.pause(*self._still_assigned(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._consumer.resume(*self._still_assigned(partitions))

    def drained_to(self, partition: TopicPartition) -> int | None:
        state = self._state(partition)
        return state.position if state is not None and state.has_valid_position else None

    def known_end(self, partition: TopicPartition) -> int | None:
        state = self._state(partition)
        end = None if state is None else state.lso
        return end if end is not None and end >= 0 else None

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        if not offsets:
            return
        try:
            async with asyncio.timeout(_COMMIT_SECONDS):
                await self._consumer.commit({client_partition(p): OffsetAndMetadata(o, "") for p, o in offsets.items()})
        except TimeoutError as error:
            self.require_alive()
            raise Transient(f"commit of {_spell(offsets)}: no answer within {_COMMIT_SECONDS:g} s") from error
        except (CommitFailedError, IllegalStateError, IllegalGenerationError, UnknownMemberIdError) as error:
            generation = self._consumer._coordinator.generation
            told = f"{type(error).__name__} in generation {generation}: {error}"
            raise NotAssigned(f"commit of {_spell(offsets)}: {told}") from error
        except IllegalOperation as error:
            raise NotAssigned(f"commit of {_spell(offsets)}: this reader is in no group") from error
        except KafkaError as error:
            self.require_alive()
            raise Transient(f"commit of {_spell(offsets)}: {type(error).__name__}: {error}") from error

    async def ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        wanted = [client_partition(p) for p in partitions]
        if not wanted:
            return {}
        try:
            # Together: each waits for the fetch that is under way on the same connection.
            starts, ends = await asyncio.gather(
                self._consumer.beginning_offsets(wanted), self._consumer.end_offsets(wanted)
            )
        except (KafkaError, OSError) as error:
            self.require_alive()
            raise SourceFailure(f"offsets: {type(error).__name__}: {error}") from error
        return {TopicPartition(*p): LogRange(starts[p], ends[p]) for p in wanted}

    async def offsets_at(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> Mapping[TopicPartition, int]:
        wanted = [client_partition(p) for p in partitions]
        if timestamp_ms <= 0:
            # The client refuses what is negative, and Kafka passes over records without a time (-1).
            return {p: held.start for p, held in (await self.ranges(partitions)).items()}
        try:
            found = await self._consumer.offsets_for_times(dict.fromkeys(wanted, timestamp_ms))
            ends = await self._consumer.end_offsets(wanted)
        except (KafkaError, OSError) as error:
            self.require_alive()
            raise SourceFailure(f"offsets by time: {type(error).__name__}: {error}") from error
        return {TopicPartition(*p): found[p].offset if found.get(p) else ends[p] for p in wanted}

    async def topic_id(self, topic: str) -> UUID:
        return (await self._describe(topic)).id

    async def partitions_of(self, topic: str) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(topic, p) for p in (await self._describe(topic)).partitions)

    async def close(self) -> None:
        await close_consumer(self._consumer)

    async def _describe(self, topic: str) -> TopicDescription:
        try:
            return (await self._topic_ids.describe([topic]))[topic]
        except SourceFailure:
            self.require_alive()
            raise

    def _state(self, partition: TopicPartition) -> Any | None:
        subscription = self._consumer._subscription.subscription
        assignment = None if subscription is None else subscription.assignment
        if assignment is None or client_partition(partition) not in assignment.tps:
            return None
        return assignment.state_value(client_partition(partition))

    def _still_assigned(self, partitions: Iterable[TopicPartition]) -> list[ClientPartition]:
        assigned = self._consumer.assignment()
        return [client_partition(p) for p in partitions if client_partition(p) in assigned]


def _corrupt(error: CorruptRecordException | UnsupportedCodecError) -> CorruptBatch:
    """The client's text of a failed checksum is its own class and the partition, in its own spelling."""
    is_checksum = isinstance(error, CorruptRecordException)
    return CorruptBatch("corrupt: a batch fails its checksum" if is_checksum else f"{type(error).__name__}: {error}")


def _offset_in(error: RecordTooLargeError) -> int | None:
    """The client puts (text, partition, offset, limit) into the exception's arguments."""
    offset = error.args[2] if len(error.args) > 2 else None
    return offset if isinstance(offset, int) else None


def _spell_client(error: OffsetOutOfRangeError) -> str:
    """The client puts {partition: offset} into the exception's arguments."""
    offsets = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
    return ", ".join(f"{p.topic}:{p.partition}@{o}" for p, o in offsets.items())


def _ours(partitions: Iterable[Any]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(p.topic, p.partition) for p in partitions)


def client_partition(partition: TopicPartition) -> ClientPartition:
    """`partition` in the client's own class."""
    return ClientPartition(partition.topic, partition.partition)


def _spell(offsets: Mapping[TopicPartition, int]) -> str:
    return ", ".join(f"{p}@{o}" for p, o in sorted(offsets.items()))
