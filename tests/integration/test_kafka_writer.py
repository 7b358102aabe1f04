"""The writer on a real Kafka: what it refuses, what it cannot reach, and that every call ends."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.stack.names import StackAddresses
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import Record
from tidegate_kernel.kafka import KafkaWriter, create_topics, open_reader, open_writer
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import MessageTooLarge, NotAcknowledged, Outgoing

TOO_LARGE = os.urandom(1024 * 1024)


class Silent:
    """A client whose broker never answers."""

    def __init__(self) -> None:
        self.sent: list[asyncio.Future[Any]] = []
        self.has_sent = asyncio.Event()
        cluster = SimpleNamespace(partitions_for_topic=lambda _: {0}, unauthorized_topics=set())
        self.client = SimpleNamespace(cluster=cluster, _conns={})
        self._sender = SimpleNamespace(_sender_task=asyncio.create_task(asyncio.Event().wait()))
        self._message_accumulator = SimpleNamespace(close=asyncio.Event().wait)
        self._closed = False

    async def send(self, topic: str, **fields: object) -> asyncio.Future[Any]:
        self.sent.append(asyncio.get_running_loop().create_future())
        self.has_sent.set()
        return self.sent[-1]

    @property
    def was_closed(self) -> bool:
        return self._closed and self._sender._sender_task.done()


@pytest.fixture
def settings(stack: StackAddresses) -> KafkaSettings:
    return KafkaSettings(bootstrap=stack.kafka_bootstrap)


@pytest.fixture
async def topic(settings: KafkaSettings, unique_name: Callable[[str], str]) -> str:
    name = unique_name("written")
    await create_topics(settings, {name: 1})
    return name


async def read(settings: KafkaSettings, topic: str) -> list[Record]:
    async with open_reader(settings) as asking:
        (partition,) = await asking.partitions_of(topic)
    records: list[Record] = []
    async with open_reader(settings, [partition]) as reader:
        end = (await reader.ranges([partition]))[partition].end
        reader.seek(partition, 0)
        while len(records) < end:
            records += (await reader.fetch([partition], max_records=5000, timeout=5)).get(partition, ())
    return records


async def test_what_the_broker_refuses_as_too_large_is_told_apart(settings: KafkaSettings, topic: str) -> None:
    """Case 42: the relay can make a letter smaller; it can do nothing about a broker that is away."""
    async with open_writer(settings) as writer:
        answers = await writer.write([Outgoing(topic, TOO_LARGE, b"k")])

    assert isinstance(answers[0], MessageTooLarge)


async def test_what_the_client_refuses_as_too_large_is_told_the_same_way(settings: KafkaSettings, topic: str) -> None:
    """Case 42: whoever refuses it, the remedy is the same."""
    async with open_writer(settings) as writer:
        answers = await writer.write([Outgoing(topic, b"x" * (65 * 1024 * 1024), b"k"), Outgoing(topic, b"1", b"k")])

    assert isinstance(answers[0], MessageTooLarge)
    assert answers[1] is None


async def test_a_refused_record_does_not_spoil_the_next_call(settings: KafkaSettings, topic: str) -> None:
    """An idempotent client would fail the partition from there on: the refused batch is a hole in its sequence."""
    async with open_writer(settings) as writer:
        assert await writer.write([Outgoing(topic, b"1", b"k")]) == [None]
        await writer.write([Outgoing(topic, TOO_LARGE, b"k")])

        assert await writer.write([Outgoing(topic, b"2", b"k")]) == [None]

    assert [record.value for record in await read(settings, topic)] == [b"1", b"2"]


async def test_a_missing_topic_is_told_soon_and_the_others_are_written(
    settings: KafkaSettings, topic: str, unique_name: Callable[[str], str]
) -> None:
    """Case 45: the client alone asks for half a minute per record, and everything behind it waits."""
    missing = unique_name("missing")
    batch = [Outgoing(missing, b"x"), *(Outgoing(topic, b"%d" % n) for n in range(50)), Outgoing(missing, b"y")]

    async with open_writer(settings) as writer:
        began = time.monotonic()
        answers = await writer.write(batch)
        took = time.monotonic() - began

    assert took < 20
    assert isinstance(answers[0], NotAcknowledged)
    assert missing in str(answers[0])
    assert answers[1:-1] == [None] * 50
    assert isinstance(answers[-1], NotAcknowledged)


async def test_a_record_arrives_byte_for_byte_whatever_it_lacks(settings: KafkaSettings, topic: str) -> None:
    """Case 29: a record without key and value, and headers without a value, are valid in Kafka."""
    headers = (("h", b"1"), ("h", None), ("bin", b"\xff\x00"), ("h", b""))
    records = [Outgoing(topic, None, None, headers), Outgoing(topic, b"", b"", headers), Outgoing(topic, None, b"k")]

    async with open_writer(settings) as writer:
        assert await writer.write(records) == [None] * 3

    found = await read(settings, topic)
    assert [(r.key, r.value) for r in found] == [(None, None), (b"", b""), (b"k", None)]
    assert tuple(found[0].headers) == tuple(found[1].headers) == headers


async def test_a_silent_broker_does_not_hold_a_call(settings: KafkaSettings, topic: str) -> None:
    """An idempotent client repeats for ever; the relay holds a transaction meanwhile."""
    silent = Silent()
    writer = KafkaWriter(settings, silent, timeout=0.05)

    answers = await asyncio.wait_for(writer.write([Outgoing(topic, b"1", b"k"), Outgoing(topic, b"2", b"k")]), 5)

    assert [type(answer) for answer in answers] == [NotAcknowledged] * 2
    assert silent.was_closed  # or what was given up would be sent later, behind its own repetition
    assert all(future.cancelled() for future in silent.sent)


async def test_after_a_silent_broker_the_next_call_starts_afresh(settings: KafkaSettings, topic: str) -> None:
    """Recovery needs no restart of the process."""
    writer = KafkaWriter(settings, Silent(), timeout=5)
    writer._timeout = 0.05
    await writer.write([Outgoing(topic, b"1", b"k")])
    writer._timeout = 10

    assert await writer.write([Outgoing(topic, b"2", b"k")]) == [None]
    await writer.close()
    assert [record.value for record in await read(settings, topic)] == [b"2"]


async def test_closing_does_not_wait_for_a_silent_broker() -> None:
    """G10: stopping is bounded."""
    silent = Silent()
    writer = KafkaWriter(KafkaSettings(), silent, timeout=0.05)

    await asyncio.wait_for(writer.close(), 5)
    await writer.close()

    assert silent.was_closed


async def test_a_cancelled_call_leaves_nothing_behind(settings: KafkaSettings, topic: str) -> None:
    """What a stopped relay had handed over must not be sent behind the back of the next one."""
    silent = Silent()
    call = asyncio.create_task(KafkaWriter(settings, silent).write([Outgoing(topic, b"1", b"k")]))
    await asyncio.wait_for(silent.has_sent.wait(), 10)
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    assert silent.was_closed


async def test_an_unreachable_broker_is_told_and_not_raised() -> None:
    """The relay must go on with its back-off, whatever the client raises."""
    writer = KafkaWriter(KafkaSettings(bootstrap="127.0.0.1:1"), None, timeout=5)

    (answer,) = await writer.write([Outgoing("t", b"1")])

    assert isinstance(answer, NotAcknowledged)
    assert "127.0.0.1:1" in str(answer)


async def test_starting_without_a_broker_names_it() -> None:
    """A wrong address is the operator's to repair, at the start."""
    with pytest.raises(Misconfigured, match=r"127\.0\.0\.1:1"):
        async with open_writer(KafkaSettings(bootstrap="127.0.0.1:1")):
            pass
