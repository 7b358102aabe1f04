"""A job's loop on real Kafka and Postgres: joining, leaving, crashing, taking over."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from pydantic import SecretStr

from consumers.loop import ConsumerLoop
from tidegate import App, CloudEvents, ConsumerJob, Context, Event, Json, Topic, handle, on
from tidegate.assembly import Resources, assemble, live_loop
from tidegate.jobs.publishing import cloud_event
from tidegate.stack.names import StackAddresses
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import create_topics, join_group, open_writer
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import KafkaSettings, Settings


class Noted(msgspec.Struct):
    n: int


@dataclass(frozen=True)
class Note:
    id: str
    n: int


def to_note(event: Event[Noted]) -> Note:
    return Note(event.id, event.data.n)


async def note(command: Note, ctx: Context[None]) -> None:
    await ctx.db.execute("INSERT INTO effect (id, n) VALUES ($1, $2)", command.id, command.n)


@dataclass
class Service:
    """An application with one consumer on a topic of its own, run as often and in as many copies as a test wants."""

    pool: Pool
    kafka: KafkaSettings
    dsn: str
    topic: str
    handler: Any = note
    drain_timeout: timedelta = timedelta(seconds=5)
    metrics: list[Metrics] = field(default_factory=list)

    async def loop(self, owner: str = "worker", **job: Any) -> ConsumerLoop:
        topic = Topic(self.topic, format=Json(), envelope=CloudEvents())
        consumer = ConsumerJob(
            code="notes", topics=[topic], unlisted="skip", runbook="-", events=[on("noted", Noted, to_note)], **job
        )
        app = App(service=self.topic, owner="tests", jobs=[consumer], handlers=[handle(Note, self.handler)])
        settings = Settings(postgres_dsn=SecretStr(self.dsn), kafka=self.kafka, drain_timeout=self.drain_timeout)
        self.metrics.append(Metrics())
        resources = Resources(settings, self.pool, SystemClock(), self.metrics[-1], ThreadPoolExecutor(1), owner)
        parts = await assemble(app, consumer, resources, sink=None)
        return live_loop(
            parts,
            lambda assigned, revoked: join_group(
                self.kafka, group=f"{self.topic}.notes", topics=[self.topic], on_assigned=assigned, on_revoked=revoked
            ),
            SystemClock(),
        )

    async def produce(self, numbers: range, *, prefix: str = "e") -> None:
        async with open_writer(self.kafka) as writer:
            records = [
                cloud_event(
                    self.topic,
                    {"n": n},
                    key=str(n),
                    attributes={"id": f"{prefix}{n}", "source": "tests", "type": "noted"},
                )
                for n in numbers
            ]
            assert not any(await writer.write(records))

    async def effects(self) -> list[int]:
        return [row["n"] for row in await self.pool.fetch("SELECT n FROM effect ORDER BY n")]

    async def settled(self) -> int:
        return await self.pool.fetchval("SELECT coalesce(sum(next_offset), 0)::bigint FROM tidegate.position") or 0

    async def committed(self) -> int:
        """What Kafka's group says, summed over the partitions."""
        from aiokafka.admin import AIOKafkaAdminClient

        admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka.bootstrap)
        await admin.start()
        try:
            offsets = await admin.list_consumer_group_offsets(f"{self.topic}.notes")
        finally:
            await admin.close()
        return sum(max(0, told.offset) for told in offsets.values())


@pytest.fixture
async def service(pool: Pool, database: str, stack: StackAddresses, unique_name: Callable[[str], str]) -> Service:
    kafka = KafkaSettings(
        bootstrap=stack.kafka_bootstrap, session_timeout=timedelta(seconds=6), heartbeat_interval=timedelta(seconds=1)
    )
    topic = unique_name("notes")
    await create_topics(kafka, {topic: 4}, replication=1)
    return Service(pool, kafka, database, topic)


@asynccontextmanager
async def running(loop: ConsumerLoop) -> AsyncIterator[asyncio.Task[None]]:
    """The loop runs inside; it is stopped gracefully afterwards unless it has ended."""
    task = asyncio.create_task(loop.run())
    try:
        yield task
    finally:
        loop.stop()
        if not task.done():
            await task


async def until(condition: Callable[[], Any], *, seconds: float = 30) -> None:
    """Returns once `condition` (awaited if need be) is true."""
    async with asyncio.timeout(seconds):
        while True:
            result = condition()
            if await result if asyncio.iscoroutine(result) else result:
                return
            await asyncio.sleep(0.02)


async def has_settled(service: Service, offsets: int) -> bool:
    return await service.settled() >= offsets


async def test_every_event_is_applied_and_the_group_is_told(service: Service) -> None:
    """The plain road: all events of all partitions, once, and the group's offsets follow the positions."""
    await service.produce(range(500))

    async with running(await service.loop()):
        await until(lambda: has_settled(service, 500))

    assert await service.effects() == list(range(500))
    assert await service.committed() == 500


async def test_crash_and_restart_apply_nothing_twice(service: Service) -> None:
    """Cases 19 and 21: a worker that vanishes in the middle leaves whole batches only; its successor takes the rest."""
    await service.produce(range(2000))
    first = await service.loop(batch_size=50)
    task = asyncio.create_task(first.run())
    await until(lambda: has_settled(service, 300))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    left_at = await service.settled()
    assert left_at < 2000, "the crash has to hit unfinished work"
    assert await service.committed() <= left_at

    async with running(await service.loop("successor")):
        await until(lambda: has_settled(service, 2000))

    assert await service.effects() == list(range(2000))


async def test_events_produced_again_at_new_offsets_are_dropped(service: Service) -> None:
    """G2: a producer that repeats itself makes duplicates at new offsets; their ids are known."""
    await service.produce(range(100))
    await service.produce(range(100))

    loop = await service.loop()
    async with running(loop):
        await until(lambda: has_settled(service, 200))

    assert await service.effects() == list(range(100))
    assert loop.meter.tally.duplicates == 100


async def test_stop_finishes_what_is_in_hand_and_commits_no_more(service: Service) -> None:
    """Case 22: SIGTERM while a handler runs; the batch settles, and the committed offset is exactly what settled."""
    at_work = asyncio.Event()

    async def slow(command: Note, ctx: Context[None]) -> None:
        at_work.set()
        await asyncio.sleep(0.3)
        await note(command, ctx)

    service.handler = slow
    await service.produce(range(40))
    async with running(await service.loop(batch_size=1)):
        await at_work.wait()

    applied = await service.effects()
    assert 0 < len(applied) < 40
    assert await service.settled() == len(applied)
    assert await service.committed() == len(applied)


async def test_unfinished_message_is_not_committed_on_stop(service: Service) -> None:
    """Case 22: a handler that outlives the drain time-out is cut off; its message stays uncommitted and comes again."""
    at_work = asyncio.Event()

    async def hang(command: Note, ctx: Context[None]) -> None:
        await note(command, ctx)
        at_work.set()
        await asyncio.sleep(60)

    service.handler, service.drain_timeout = hang, timedelta(seconds=0.3)
    await service.produce(range(1))
    async with running(await service.loop(handler_timeout=timedelta(seconds=50))):
        await at_work.wait()
    assert await service.settled() == 0
    assert await service.committed() == 0
    assert await service.effects() == []

    service.handler = note
    async with running(await service.loop("successor")):
        await until(lambda: has_settled(service, 1))
    assert await service.effects() == [0]


async def test_second_member_shares_the_work_and_nothing_is_doubled(service: Service) -> None:
    """A rebalance in the middle of the work: both members apply events, each event once."""
    await service.produce(range(1000))
    first = await service.loop("first", batch_size=20)
    async with running(first):
        await until(lambda: has_settled(service, 60))
        second = await service.loop("second", batch_size=20)
        async with running(second):
            await until(lambda: len(second.holdings.owned) == 2)
            await service.produce(range(1000, 2000))
            await until(lambda: has_settled(service, 2000))

    assert await service.effects() == list(range(2000))
    assert second.meter.tally.applied > 0


async def test_revoked_partition_has_no_lag_series(service: Service) -> None:
    """Case 103: what another member owns now is that member's to report; here its series is gone, not 0 or -1."""
    await service.produce(range(10))
    first = await service.loop("first")
    async with running(first):
        await until(lambda: len(first.holdings.owned) == 4)
        await until(lambda: len(_lag_partitions(service.metrics[0])) == 4)
        second = await service.loop("second")
        async with running(second):
            await until(lambda: [len(loop.holdings.owned) for loop in (first, second)] == [2, 2])
            await until(lambda: [len(_lag_partitions(metrics)) for metrics in service.metrics] == [2, 2])

            mine, theirs = map(_lag_partitions, service.metrics)

            assert mine == {str(partition) for _, partition in first.holdings.owned}
            assert mine | theirs == {"0", "1", "2", "3"}


async def test_idle_partition_is_not_behind(service: Service) -> None:
    """Case 104: caught up means 0 seconds behind, however old the last record is."""
    await service.produce(range(10))
    async with running(await service.loop()):
        await until(lambda: has_settled(service, 10))
        await until(lambda: _seconds_behind(service.metrics[0]) == [0.0] * 4)


async def test_removed_records_block_the_partition_instead_of_a_jump(service: Service) -> None:
    """A gap is named and waits for a person: the position stays, nothing is skipped silently."""
    await service.produce(range(20))
    async with running(await service.loop()):
        await until(lambda: has_settled(service, 20))
    await service.pool.execute("UPDATE tidegate.position SET next_offset = 1000 WHERE partition = 0")

    loop = await service.loop()
    async with running(loop):
        await until(lambda: len(loop.holdings.owned) == 4)
        blocked = loop.holdings.get(TopicPartition(service.topic, 0))

        assert blocked is not None
        assert "beyond the log's end" in (blocked.blocked or "")
    assert await service.pool.fetchval("SELECT next_offset FROM tidegate.position WHERE partition = 0") == 1000


async def test_zombie_gives_way_and_the_work_is_done_once(service: Service) -> None:
    """G9: a position taken by somebody else under our feet costs us the batch, not the events."""
    await service.produce(range(50))
    loop = await service.loop()
    async with running(loop):
        await until(lambda: has_settled(service, 50))
        await service.pool.execute("UPDATE tidegate.position SET epoch = epoch + 1")
        await service.produce(range(50, 100))
        await until(lambda: has_settled(service, 100))

    assert await service.effects() == list(range(100))


async def test_position_wins_over_the_groups_offsets(service: Service) -> None:
    """Case 25's heart: with the group's offsets gone the job resumes from its own row."""
    await service.produce(range(30))
    async with running(await service.loop()):
        await until(lambda: has_settled(service, 30))
    await _forget_group(service)
    await service.produce(range(30, 40))

    loop = await service.loop()
    async with running(loop):
        await until(lambda: has_settled(service, 40))

    assert loop.meter.tally.records == 10
    assert await service.effects() == list(range(40))


def _lag_partitions(metrics: Metrics) -> set[str]:
    return {
        sample.labels["partition"]
        for family in metrics.registry.collect()
        if family.name == "tidegate_seconds_behind"
        for sample in family.samples
    }


def _seconds_behind(metrics: Metrics) -> list[float]:
    return [
        sample.value
        for family in metrics.registry.collect()
        if family.name == "tidegate_seconds_behind"
        for sample in family.samples
    ]


async def _forget_group(service: Service) -> None:
    """The group's offsets go back to the start, as good as expired."""
    async with join_group(
        service.kafka,
        group=f"{service.topic}.notes",
        topics=[service.topic],
        on_assigned=lambda _: None,
        on_revoked=_noop,
    ) as member:
        await member.commit(dict.fromkeys(member.assignment(), 0))


async def _noop(_: object) -> None:
    return None
