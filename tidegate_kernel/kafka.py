"""Kafka through its client, made safe: dangerous defaults are stated and errors become ours.

Only this module and its neighbours `kafka_…` know the client.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    CommitFailedError,
    CorruptRecordException,
    IllegalGenerationError,
    IllegalOperation,
    IllegalStateError,
    KafkaError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    RecordListTooLargeError,
    RecordTooLargeError,
    TopicAlreadyExistsError,
    UnknownMemberIdError,
    UnsupportedCodecError,
)
from aiokafka.structs import OffsetAndMetadata
from aiokafka.structs import TopicPartition as ClientPartition

from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.event import Record, TopicPartition
from tidegate_kernel.kafka_metadata import TopicIds
from tidegate_kernel.kafka_reach import require_reachable, unusable
from tidegate_kernel.kafka_salvage import has_readable_names, refetch
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import (
    Assigned,
    CorruptBatch,
    LogRange,
    MessageTooLarge,
    NotAcknowledged,
    NotAssigned,
    OffsetOutOfRange,
    Outgoing,
    Revoked,
    SourceFailure,
    UnreadableRecord,
)

# The client leaves the group when nobody polled for this long. Whether we are alive is our own watchdog's question
# (handlers are cut off, outages pause partitions), so its idle timer must never fire.
_NEVER_IDLE_MS = 24 * 3600 * 1000
# The client repeats a commit for as long as no coordinator answers. A commit is a hint: no stop, no revoke and no lane
# that gives a partition up may wait for Kafka to come back.
_COMMIT_SECONDS = 5.0


class _TokenFile(AbstractTokenProvider):  # type: ignore[misc]  # the client ships no types
    """OAUTHBEARER token read from a file at each login, as a sidecar renews it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def token(self) -> str:
        return await asyncio.to_thread(lambda: self._path.read_text(encoding="utf-8").strip())


def connection_options(settings: KafkaSettings) -> dict[str, Any]:
    """Options that consumer, producer and admin client share. Raises Misconfigured for files that cannot be used."""
    options: dict[str, Any] = {
        "bootstrap_servers": settings.bootstrap,
        "client_id": settings.client_id,
        "request_timeout_ms": int(settings.request_timeout.total_seconds() * 1000),
        "security_protocol": settings.security_protocol,
        # Outlives a laptop's lid: a new partition or leader is seen within half a minute.
        "metadata_max_age_ms": 30_000,
    }
    if settings.security_protocol.endswith("SSL"):
        options["ssl_context"] = _ssl_context(settings)
    if settings.security_protocol.startswith("SASL"):
        options["sasl_mechanism"] = settings.sasl_mechanism
        if settings.sasl_mechanism == "OAUTHBEARER":
            if settings.sasl_token_file is None:
                raise Misconfigured("TIDEGATE_KAFKA_SASL_TOKEN_FILE is needed with OAUTHBEARER")
            options["sasl_oauth_token_provider"] = _TokenFile(settings.sasl_token_file)
        else:
            options["sasl_plain_username"] = settings.sasl_username
            options["sasl_plain_password"] = settings.sasl_password.get_secret_value()
    return options


def consumer_options(settings: KafkaSettings, *, group: str | None) -> dict[str, Any]:
    """The complete, explicit consumer configuration. Nothing is decoded in the client and nothing commits by itself."""
    return {
        **connection_options(settings),
        "group_id": group,
        "group_instance_id": settings.instance_id if group else None,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "isolation_level": "read_committed",
        "check_crcs": True,
        "key_deserializer": None,
        "value_deserializer": None,
        "max_poll_records": None,
        # A broker answers a connection's requests in turn: what we ask about offsets waits this long for a fetch.
        "fetch_max_wait_ms": 200,
        "fetch_max_bytes": settings.fetch_max_bytes,
        "max_partition_fetch_bytes": settings.max_partition_fetch_bytes,
        "session_timeout_ms": int(settings.session_timeout.total_seconds() * 1000),
        "heartbeat_interval_ms": int(settings.heartbeat_interval.total_seconds() * 1000),
        "rebalance_timeout_ms": int(settings.rebalance_timeout.total_seconds() * 1000),
        "max_poll_interval_ms": _NEVER_IDLE_MS,
    }


def _ssl_context(settings: KafkaSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ssl_ca_file)
        context.check_hostname = settings.ssl_check_hostname
        if settings.ssl_cert_file is not None:
            context.load_cert_chain(settings.ssl_cert_file, settings.ssl_key_file)
    except (OSError, ssl.SSLError) as error:
        raise Misconfigured(f"TIDEGATE_KAFKA_SSL_…: the files cannot be used ({error})") from error
    return context


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # the client ships no types
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

    def assignment(self) -> frozenset[TopicPartition]:
        return _ours(self._consumer.assignment())

    async def fetch(
        self, partitions: Iterable[TopicPartition], *, max_records: int, timeout: float
    ) -> Mapping[TopicPartition, Sequence[Record]]:
        wanted = [_theirs(p) for p in partitions]
        try:
            fetched: Mapping[TopicPartition, Sequence[Record]] = await self._consumer.getmany(
                *wanted, timeout_ms=int(timeout * 1000), max_records=max_records
            )
        except RecordTooLargeError as error:
            raise UnreadableRecord("record above the fetch limit", offset=_offset_in(error)) from error
        except (CorruptRecordException, UnsupportedCodecError) as error:
            raise CorruptBatch(f"{type(error).__name__}: {error}") from error
        except OffsetOutOfRangeError as error:
            raise OffsetOutOfRange(f"the log does not hold {_spell_client(error)}") from error
        except (KafkaError, OSError) as error:
            raise SourceFailure(f"fetch: {type(error).__name__}: {error}") from error
        except Exception as error:
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
            raise SourceFailure(f"fetch: {partition.topic}:{partition.partition} was revoked meanwhile")
        records: list[Record] = []
        limit = self._consumer._fetcher._max_partition_fetch_bytes
        try:
            for record in await refetch(self._consumer._client, partition, position, max_bytes=limit):
                if not has_readable_names(record):
                    if records:
                        break
                    raise UnreadableRecord("the name of a header is not UTF-8", offset=record.offset)
                records.append(record)
                if len(records) == max_records:
                    break
        except CorruptRecordException as error:
            if not records:
                raise CorruptBatch(f"{type(error).__name__}: {error}") from error
        if records:
            self.seek(ours, records[-1].offset + 1)
        return records

    def seek(self, partition: TopicPartition, offset: int) -> None:
        try:
            self._consumer.seek(_theirs(partition), offset)
        except (IllegalStateError, AssertionError) as error:
            raise NotAssigned(f"{partition.topic}:{partition.partition} is not assigned") from error

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
                await self._consumer.commit({_theirs(p): OffsetAndMetadata(o, "") for p, o in offsets.items()})
        except TimeoutError as error:
            raise Transient(f"commit of {_spell(offsets)}: no answer within {_COMMIT_SECONDS:g} s") from error
        except (CommitFailedError, IllegalStateError, IllegalGenerationError, UnknownMemberIdError) as error:
            raise NotAssigned(f"commit of {_spell(offsets)}: {type(error).__name__}: {error}") from error
        except IllegalOperation as error:
            raise NotAssigned(f"commit of {_spell(offsets)}: this reader is in no group") from error
        except KafkaError as error:
            raise Transient(f"commit of {_spell(offsets)}: {type(error).__name__}: {error}") from error

    async def ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        wanted = [_theirs(p) for p in partitions]
        if not wanted:
            return {}
        try:
            # Together: each waits for the fetch that is under way on the same connection.
            starts, ends = await asyncio.gather(
                self._consumer.beginning_offsets(wanted), self._consumer.end_offsets(wanted)
            )
        except (KafkaError, OSError) as error:
            raise SourceFailure(f"offsets: {type(error).__name__}: {error}") from error
        return {TopicPartition(*p): LogRange(starts[p], ends[p]) for p in wanted}

    async def offsets_at(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> Mapping[TopicPartition, int]:
        wanted = [_theirs(p) for p in partitions]
        try:
            found = await self._consumer.offsets_for_times(dict.fromkeys(wanted, timestamp_ms))
            ends = await self._consumer.end_offsets(wanted)
        except (KafkaError, OSError) as error:
            raise SourceFailure(f"offsets by time: {type(error).__name__}: {error}") from error
        return {TopicPartition(*p): found[p].offset if found.get(p) else ends[p] for p in wanted}

    async def topic_id(self, topic: str) -> UUID:
        return (await self._topic_ids.describe([topic]))[topic].id

    async def partitions_of(self, topic: str) -> frozenset[TopicPartition]:
        described = await self._topic_ids.describe([topic])
        return frozenset(TopicPartition(topic, p) for p in described[topic].partitions)

    async def close(self) -> None:
        await self._consumer.stop()

    def _state(self, partition: TopicPartition) -> Any | None:
        subscription = self._consumer._subscription.subscription
        assignment = None if subscription is None else subscription.assignment
        if assignment is None or _theirs(partition) not in assignment.tps:
            return None
        return assignment.state_value(_theirs(partition))

    def _still_assigned(self, partitions: Iterable[TopicPartition]) -> list[ClientPartition]:
        assigned = self._consumer.assignment()
        return [_theirs(p) for p in partitions if _theirs(p) in assigned]


@asynccontextmanager
async def join_group(
    settings: KafkaSettings, *, group: str, topics: Sequence[str], on_assigned: Assigned, on_revoked: Revoked
) -> AsyncIterator[KafkaSource]:
    """Yields a member of `group`; leaves the group afterwards. Raises Misconfigured if Kafka cannot be reached."""
    consumer = AIOKafkaConsumer(**consumer_options(settings, group=group))
    consumer.subscribe(topics=list(topics), listener=_Listener(on_assigned, on_revoked))
    async with _started(consumer, settings):
        yield KafkaSource(consumer, TopicIds(consumer._client))


@asynccontextmanager
async def open_reader(settings: KafkaSettings, partitions: Iterable[TopicPartition] = ()) -> AsyncIterator[KafkaSource]:
    """Yields a reader of `partitions` outside any group, for backfills and for asking about offsets."""
    consumer = AIOKafkaConsumer(**consumer_options(settings, group=None))
    async with _started(consumer, settings):
        wanted = [_theirs(p) for p in partitions]
        if wanted:
            consumer.assign(wanted)
        yield KafkaSource(consumer, TopicIds(consumer._client))


class KafkaWriter:
    """`RecordWriter` on the real client: idempotent, acknowledged by all in-sync replicas, every call bounded.

    An idempotent client repeats a batch for ever, and a batch that the broker refuses leaves a hole in the sequence
    numbers that fails the partition's later ones. So after a failure the client is dropped with all it still holds, and
    the next call starts another: what a call reports as not acknowledged is not sent after the call has returned
    (but for what is on the wire at that moment).
    """

    def __init__(self, settings: KafkaSettings, producer: Any, *, timeout: float = 10) -> None:
        self._settings = settings
        self._producer: Any | None = producer
        self._timeout = timeout

    async def write(self, records: Sequence[Outgoing]) -> Sequence[NotAcknowledged | None]:
        outcomes: list[_Sent] = []
        late = NotAcknowledged(f"kafka at {self._settings.bootstrap} did not confirm within {self._timeout:g} s")
        try:
            async with asyncio.timeout(self._timeout):
                await self._write(records, outcomes)
        except TimeoutError:
            pass
        except (KafkaError, OSError) as error:
            late = NotAcknowledged(f"kafka at {self._settings.bootstrap}: {type(error).__name__}: {error}")
        finally:
            if any(isinstance(o, asyncio.Future) and not _is_written(o) for o in outcomes) or len(outcomes) < len(
                records
            ):
                await self._drop()
        return [_told(outcome, late) for outcome in [*outcomes, *[late] * (len(records) - len(outcomes))]]

    async def _write(self, records: Sequence[Outgoing], outcomes: list[_Sent]) -> None:
        if self._producer is None:
            self._producer = await _start_producer(self._settings)
        producer = self._producer
        names = list(dict.fromkeys(record.topic for record in records))
        topics = dict(zip(names, await asyncio.gather(*(_partitions(producer, name) for name in names)), strict=True))
        for record in records:
            outcomes.append(await _send(producer, record, topics[record.topic]))  # noqa: PERF401  # kept when cut off
        futures = [outcome for outcome in outcomes if isinstance(outcome, asyncio.Future)]
        if futures:
            await asyncio.wait(futures)

    async def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await _drop_producer(producer)

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            await asyncio.wait_for(producer.stop(), timeout=self._timeout)
        except TimeoutError:
            await _drop_producer(producer)


_Sent = NotAcknowledged | asyncio.Future[Any]

# A topic that exists is known after one round trip; one that was just created, a little later. The client's own wait
# asks ten times a second for half a minute, and logs an error each time.
_ASK_FOR_TOPIC_AFTER_SECONDS = (0.0, 0.1, 0.3, 0.6)


async def _partitions(producer: Any, topic: str) -> frozenset[int] | NotAcknowledged:
    client = producer.client
    known = client.cluster.partitions_for_topic(topic)
    for pause in _ASK_FOR_TOPIC_AFTER_SECONDS if known is None else ():
        await asyncio.sleep(pause)
        await client.add_topic(topic)
        await client.force_metadata_update()
        known = client.cluster.partitions_for_topic(topic)
        if known is not None or topic in client.cluster.unauthorized_topics:
            break
    if known is not None:
        return frozenset(known)
    client._topics.discard(topic)  # else every later refresh asks for it again
    if topic in client.cluster.unauthorized_topics:
        return NotAcknowledged(f"topic {topic!r}: these credentials may not write it; grant WRITE and DESCRIBE")
    return NotAcknowledged(f"topic {topic!r}: the broker does not know it; create it")


async def _send(producer: Any, record: Outgoing, partitions: frozenset[int] | NotAcknowledged) -> _Sent:
    """Hands `record` to the client, in order; the future ends with the broker's answer."""
    if isinstance(partitions, NotAcknowledged):
        return partitions
    try:
        sent: asyncio.Future[Any] = (
            await _send_empty(producer, record, partitions)
            if record.key is None and record.value is None
            else await producer.send(
                record.topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                timestamp_ms=record.timestamp,
                partition=record.partition,
            )
        )
    except MessageSizeTooLargeError as error:
        return MessageTooLarge(str(error))
    return sent


async def _send_empty(producer: Any, record: Outgoing, partitions: frozenset[int]) -> Any:
    # Kafka takes a record without key and value; the client's `send` asserts against it, its batch call does not.
    batch = producer.create_batch()
    batch.append(timestamp=record.timestamp, key=None, value=None, headers=list(record.headers))
    partition = random.choice(sorted(partitions)) if record.partition is None else record.partition
    return await producer.send_batch(batch, record.topic, partition=partition)


def _is_written(sent: asyncio.Future[Any]) -> bool:
    return sent.done() and not sent.cancelled() and sent.exception() is None


def _told(outcome: _Sent, late: NotAcknowledged) -> NotAcknowledged | None:
    if isinstance(outcome, NotAcknowledged):
        return outcome
    if not outcome.done():
        outcome.cancel()
        return late
    error = outcome.exception()
    if isinstance(error, MessageSizeTooLargeError | RecordListTooLargeError):
        return MessageTooLarge(f"the broker refuses it ({type(error).__name__})")
    return None if error is None else NotAcknowledged(f"{type(error).__name__}: {error}")


async def _start_producer(settings: KafkaSettings) -> Any:
    producer = AIOKafkaProducer(
        **connection_options(settings),
        acks="all",
        enable_idempotence=True,
        linger_ms=5,
        # The broker's own limit is the one that counts; the client's must not be smaller.
        max_request_size=64 * 1024 * 1024,
        compression_type="lz4",
    )
    async with AsyncExitStack() as unless_started:
        unless_started.push_async_callback(_drop_producer, producer)
        await producer.start()
        unless_started.pop_all()
    return producer


async def _drop_producer(producer: Any) -> None:
    """Closes connections and forgets what was not sent. `stop` would first wait, without bound, for all of it."""
    producer._closed = True
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.gather(producer._sender.close(), producer.client.close()), timeout=5)


@asynccontextmanager
async def open_writer(settings: KafkaSettings, *, timeout: float = 10) -> AsyncIterator[KafkaWriter]:
    """Yields a writer whose calls last `timeout` seconds at most. Raises Misconfigured as `join_group`."""
    await require_reachable(settings, connection_options(settings))
    try:
        producer = await asyncio.wait_for(_start_producer(settings), timeout=15)
    except (KafkaError, OSError, TimeoutError) as error:
        raise unusable(settings, f"{type(error).__name__}: {error}") from error
    writer = KafkaWriter(settings, producer, timeout=timeout)
    try:
        yield writer
    finally:
        await writer.close()


async def create_topics(
    settings: KafkaSettings,
    topics: Mapping[str, int],
    *,
    replication: int = -1,
    configs: Mapping[str, str] | None = None,
) -> list[str]:
    """Creates the missing ones of `topics` (name → partitions); returns the names that were created."""
    admin = AIOKafkaAdminClient(**connection_options(settings))
    async with _started(admin, settings, stop="close"):
        created = []
        for name, partitions in topics.items():
            new = NewTopic(name, partitions, 1, topic_configs=dict(configs or {}))
            # The broker knows -1 as its own default; the client's constructor refuses it.
            new.replication_factor = replication
            try:
                answer = await admin.create_topics([new])
                _raise_refused(name, answer)
            except TopicAlreadyExistsError:
                continue
            except KafkaError as error:
                raise Misconfigured(f"topic {name!r} cannot be created ({type(error).__name__}: {error})") from error
            created.append(name)
        return created


def _raise_refused(name: str, answer: Any) -> None:
    from aiokafka.errors import for_code

    for topic, code, *_ in answer.topic_errors:
        if topic == name and code:
            raise for_code(code)(f"topic {name!r}")


@asynccontextmanager
async def _started(client: Any, settings: KafkaSettings, *, stop: str = "stop") -> AsyncIterator[None]:
    try:
        await require_reachable(settings, connection_options(settings))
        await asyncio.wait_for(client.start(), timeout=15)
    except Misconfigured:
        await getattr(client, stop)()
        raise
    except (KafkaError, OSError, TimeoutError) as error:
        await getattr(client, stop)()
        raise unusable(settings, f"{type(error).__name__}: {error}") from error
    try:
        yield
    finally:
        await getattr(client, stop)()


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


def _theirs(partition: TopicPartition) -> ClientPartition:
    return ClientPartition(partition.topic, partition.partition)


def _spell(offsets: Mapping[TopicPartition, int]) -> str:
    return ", ".join(f"{p.topic}:{p.partition}@{o}" for p, o in sorted(offsets.items()))
