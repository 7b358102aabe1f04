"""Kafka's client dies under a worker, as it does on uvloop where a network breaks: the work goes on with a new one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest
from structlog.testing import capture_logs

from consumers.backfill import Backfill
from tests import client_deaths
from tests.integration.live import Service, has_settled, until
from tidegate import backfilling
from tidegate.assembly import backfill_of
from tidegate.backfilling import BackfillOptions, BackfillStart, run_backfill
from tidegate.supervision import supervise
from tidegate.vitals import Vitals
from tidegate_kernel import logs
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import KafkaSource, join_group, open_reader, open_writer
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import Assigned, ClientDied, Outgoing, RecordSource, Revoked

# asyncio's own loop swallows what is written on a closed connection.
ON_UVLOOP = True
# A look a second, a pause before the restart of one to two, a join.
_GOES_ON_WITHIN_SECONDS = 12.0
_CLOSED_WITHIN_SECONDS = 25.0
# A member whose answer to its join was cut off is there until its session ends: the broker lets nobody in before.
_IN_AGAIN_WITHIN_SECONDS = 90.0
_ROUNDS = 15


class Supervised:
    """A job under its supervisor. `sources`: what it read from, one client after the other."""

    def __init__(self, service: Service) -> None:
        self._service, self.sources = service, list[KafkaSource]()
        self.logged: list[Any] = []

    @property
    def client(self) -> Any:
        return self.sources[-1]._consumer

    @property
    def restarts(self) -> list[BaseException]:
        return [line["exc_info"] for line in self.logged if line["event"] == logs.JOB_RESTARTED]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        clock, stop = SystemClock(), asyncio.Event()
        parts = await self._service.parts()
        with capture_logs() as self.logged:
            work = asyncio.create_task(supervise(parts, self._join, clock=clock, vitals=Vitals(clock), stop=stop))
            try:
                yield
            finally:
                stop.set()
                await asyncio.wait_for(work, 30)

    @asynccontextmanager
    async def _join(self, assigned: Assigned, revoked: Revoked) -> AsyncIterator[RecordSource]:
        async with self._service.join(assigned, revoked) as source:
            assert isinstance(source, KafkaSource)
            self.sources.append(source)
            yield source


@pytest.fixture
def supervised(service: Service) -> Supervised:
    return Supervised(service)


async def cut_connections(client: Any) -> None:
    """They are closed, and have not been read to their ends yet: the client takes them for open."""
    for connection in client._conns.values():
        if connection.connected() and not connection._reader._eof:
            connection._read_task.cancel()
            connection._reader.feed_data(b"\0")
            connection._writer.transport.abort()
    for _ in range(3):
        await asyncio.sleep(0)  # the event loop closes them in one of its next turns


async def test_writing_on_a_connection_that_was_closed_is_a_broken_connection(service: Service) -> None:
    """The client waits and tries again after a broken one; after anything else its tasks have ended for good."""
    async with open_reader(service.kafka) as reader:
        client = reader._consumer._client
        node = client.get_random_node()
        assert await client.ready(node)
        await cut_connections(client)

        with pytest.raises(KafkaConnectionError, match="the handler is closed"):
            await client.send(node, MetadataRequest([]))

        assert len(await reader.partitions_of(service.topic)) == 4


async def test_connections_that_break_again_and_again_cost_no_client(service: Service, supervised: Supervised) -> None:
    """A network that resets everything is an ordinary day: the same client goes on, and each event is applied once."""
    async with supervised.running():
        await until(lambda: bool(supervised.sources))
        for number in range(_ROUNDS):
            await service.produce(range(number * 10, number * 10 + 10))
            await cut_connections(supervised.client._client)
            supervised.client._client.force_metadata_update()
            supervised.client._coordinator.request_rejoin()
        await until(lambda: has_settled(service, _ROUNDS * 10), seconds=_IN_AGAIN_WITHIN_SECONDS)

    assert supervised.restarts == []
    assert await service.effects() == list(range(_ROUNDS * 10))


@pytest.mark.parametrize("task", client_deaths.OF_A_MEMBER)
async def test_a_job_survives_its_client(service: Service, supervised: Supervised, task: str) -> None:
    """Case 8: heartbeats may go on and no call may fail, so nobody else would ever take the partitions over."""
    async with supervised.running():
        await service.produce(range(50))
        await until(lambda: has_settled(service, 50))
        client_deaths.OF_A_MEMBER[task](supervised.client)
        await service.produce(range(50, 100))
        await until(lambda: len(supervised.sources) == 2, seconds=_GOES_ON_WITHIN_SECONDS)
        await until(lambda: has_settled(service, 100), seconds=_GOES_ON_WITHIN_SECONDS)

    assert await service.effects() == list(range(100))
    assert len(supervised.restarts) == 1, supervised.restarts
    (restart,) = supervised.restarts
    assert isinstance(restart, ClientDied)
    assert f"its task '{task}' died: Struck" in str(restart)
    assert {line["event"] for line in supervised.logged} & {logs.BREAKER_OPENED, logs.DEAD_LETTER} == set()
    assert await service.pool.fetchval("SELECT count(*) FROM tidegate.dead_letter") == 0


@pytest.mark.parametrize("task", client_deaths.OF_A_MEMBER)
async def test_a_dead_client_is_closed_whole(service: Service, task: str) -> None:
    """The client's own `stop` ends at the first error: what is left beats on for a member that nobody reads for."""
    before = asyncio.all_tasks()

    async def nothing(_: Iterable[TopicPartition]) -> None:
        return None

    joined = join_group(
        service.kafka, group=service.topic, topics=[service.topic], on_assigned=lambda _: None, on_revoked=nothing
    )
    async with asyncio.timeout(_CLOSED_WITHIN_SECONDS), joined as source:
        client_deaths.OF_A_MEMBER[task](source._consumer)
        await client_deaths.until_dead(source)

    assert not any(connection.connected() for connection in source._consumer._client._conns.values())
    await until(lambda: asyncio.all_tasks() == before, seconds=2)


@pytest.mark.parametrize("part", ["metadata", "sender"])
async def test_a_writer_survives_its_client(service: Service, part: str) -> None:
    """The relay holds a transaction while it writes, and nobody restarts it."""
    async with open_writer(service.kafka) as writer:
        assert await writer.write([Outgoing(service.topic, b"1", partition=0)]) == [None]
        producer: Any = writer._producer
        if part == "metadata":
            client_deaths.strike(producer.client, "_metadata_update")
            producer.client.force_metadata_update()
            died = producer.client._sync_task
        else:
            client_deaths.strike(producer._message_accumulator, "drain_by_nodes")
            if not (waiting := producer._message_accumulator.waiter()).done():
                waiting.set_result(None)
            died = producer._sender._sender_task
        await asyncio.wait([died], timeout=5)

        assert await writer.write([Outgoing(service.topic, b"2", partition=0)]) == [None]

    async with open_reader(service.kafka) as reader:
        partition = TopicPartition(service.topic, 0)
        assert (await reader.ranges([partition]))[partition].end == 2


@pytest.mark.parametrize("task", client_deaths.OF_A_READER)
async def test_a_backfill_survives_its_client(service: Service, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease is renewed all the while: nobody else would resume it either."""
    readers: list[KafkaSource] = []
    has_begun, may_go = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def opened(
        settings: KafkaSettings, partitions: Mapping[TopicPartition, object]
    ) -> AsyncIterator[RecordSource]:
        async with open_reader(settings, partitions) as reader:
            readers.append(reader)
            yield reader

    backfills: list[Backfill] = []

    def made(*args: Any) -> Backfill:
        backfills.append(backfill_of(*args))
        return backfills[-1]

    async def wait_once(command: Any, ctx: Any) -> None:
        has_begun.set()
        await may_go.wait()
        await ctx.db.execute("INSERT INTO effect (id, n) VALUES ($1, $2)", command.id, command.n)

    monkeypatch.setattr(backfilling, "open_reader", opened)
    monkeypatch.setattr(backfilling, "backfill_of", made)
    service.handler = wait_once
    await service.produce(range(200))
    app, settings = service.application(batch_size=20)
    options = BackfillOptions(BackfillStart(is_beginning=True))
    actor = Actor("tests", Role.OPERATOR)
    running = asyncio.create_task(run_backfill(app, settings, "notes", options, actor=actor, stop=asyncio.Event()))
    await asyncio.wait_for(has_begun.wait(), 30)

    client_deaths.OF_A_READER[task](readers[0]._consumer)
    await until(backfills[0].is_stopping, seconds=10)
    may_go.set()
    report = await asyncio.wait_for(running, 30)

    assert report.is_done
    assert report.progress == (200, 200)
    assert len(readers) == 2
    assert await service.effects() == list(range(200))
