"""Backfill on real Kafka and Postgres: a fixed range, resumable, beside the live group."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition as ClientPartition
from pydantic import SecretStr

from projections.memory import MemorySink
from tidegate import App, CloudEvents, ConsumerJob, Context, Event, Json, ProjectionJob, Topic, Upsert, handle, on
from tidegate.backfilling import BackfillOptions, BackfillReport, BackfillStart, run_backfill
from tidegate.jobs.checkpoints import create_checkpoint
from tidegate.jobs.publishing import cloud_event
from tidegate.stack.names import StackAddresses
from tidegate_kernel.errors import AlreadyRunning, Misconfigured
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import create_topics, join_group, open_reader, open_writer
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import KafkaSettings, Settings
from tidegate_kernel.source import Outgoing

OPERATOR = Actor("tests", Role.OPERATOR)


class Noted(msgspec.Struct):
    n: int


@dataclass(frozen=True)
class Note:
    n: int


def to_note(event: Event[Noted]) -> Note:
    return Note(event.data.n)


async def note(command: Note, ctx: Context[None]) -> None:
    await ctx.db.execute("INSERT INTO effect (n) VALUES ($1)", command.n)


def document(event: Event[Noted]) -> Upsert:
    return Upsert(str(event.data.n), version=1, document={"n": event.data.n})


@dataclass
class Service:
    """One topic, a consumer and a projection of it."""

    pool: Pool
    settings: Settings
    topic: str
    sink: MemorySink = field(default_factory=MemorySink)
    document: Callable[[Event[Noted]], Upsert] = document

    def app(self) -> App:
        topic = Topic(self.topic, format=Json(), envelope=CloudEvents())
        common: dict[str, Any] = {"topics": [topic], "unlisted": "skip", "runbook": "-"}
        notes = ConsumerJob(code="notes", events=[on("noted", Noted, to_note)], **common)
        shown = ProjectionJob(
            code="shown",
            events=[on("noted", Noted, self.document)],
            sink=self.sink,
            freshness_sla=timedelta(seconds=5),
            batch_size=50,
            **common,
        )
        return App(service=self.topic, owner="tests", jobs=[notes, shown], handlers=[handle(Note, note)])

    async def produce(self, numbers: range) -> None:
        async with open_writer(self.settings.kafka) as writer:
            assert not any(await writer.write([self._event(n) for n in numbers]))

    async def repeat(self, n: int, *, partition: int) -> None:
        """The event `n` once more, in a partition of the test's choice: as producers do that lost an answer."""
        event = self._event(n)
        again = Outgoing(event.topic, event.value, event.key, event.headers, partition=partition)
        async with open_writer(self.settings.kafka) as writer:
            assert not any(await writer.write([again]))

    def _event(self, n: int) -> Outgoing:
        return cloud_event(
            self.topic, {"n": n}, key=str(n), attributes={"id": f"e{n}", "source": "tests", "type": "noted"}
        )

    async def backfill(
        self, code: str = "shown", *, stop: asyncio.Event | None = None, **options: Any
    ) -> BackfillReport:
        start = options.pop("start", BackfillStart(is_beginning=True))
        chosen = BackfillOptions(start, **options)
        return await run_backfill(self.app(), self.settings, code, chosen, actor=OPERATOR, stop=stop or asyncio.Event())

    async def ends(self) -> Mapping[TopicPartition, int]:
        async with open_reader(self.settings.kafka) as reader:
            ranges = await reader.ranges(await reader.partitions_of(self.topic))
        return {partition: held.end for partition, held in ranges.items()}


@pytest.fixture
async def service(pool: Pool, database: str, stack: StackAddresses, unique_name: Callable[[str], str]) -> Service:
    settings = Settings(
        postgres_dsn=SecretStr(database), kafka=KafkaSettings(bootstrap=stack.kafka_bootstrap), http_port=0
    )
    topic = unique_name("notes")
    await create_topics(settings.kafka, {topic: 4}, replication=1)
    sink = MemorySink()
    await sink.prepare()
    return Service(pool, settings, topic, sink)


async def test_backfill_fills_a_projection_that_lost_everything(service: Service) -> None:
    """Every record up to the end is projected, also where another group has long passed it."""
    await service.produce(range(300))

    report = await service.backfill()

    assert report.is_done
    assert report.progress == (300, 300)
    assert len(service.sink.rows()) == 300


async def test_records_after_the_start_are_left_to_the_live_consumer(service: Service) -> None:
    """Case 69: the end is captured once; a producer that goes on cannot keep the backfill running for ever."""
    await service.produce(range(100))
    produced_more = False

    def project_slowly(event: Event[Noted]) -> Upsert:
        nonlocal produced_more
        produced_more = True
        return document(event)

    service.document = project_slowly
    stop = asyncio.Event()
    task = asyncio.create_task(service.backfill(stop=stop))
    await _until(lambda: produced_more or task.done())
    await service.produce(range(100, 200))

    report = await task

    assert report.progress.total == 100
    assert {row["n"] for row in service.sink.rows().values()} == set(range(100))


async def test_interrupted_backfill_resumes_where_it_stopped(service: Service) -> None:
    """Case 71: stopped in the middle, the same command goes on from the last settled batch; nothing is missing."""
    await service.produce(range(1000))
    stop = asyncio.Event()

    def project_and_stop(event: Event[Noted]) -> Upsert:
        if event.data.n >= 100:
            stop.set()
        return document(event)

    service.document = project_and_stop
    first = await service.backfill(stop=stop)
    assert not first.is_done
    service.document = document

    second = await service.backfill()

    assert second.was_resumed
    assert second.is_done
    assert second.tally.records < 1000, "what had settled is not read again"
    assert {row["n"] for row in service.sink.rows().values()} == set(range(1000))


async def test_second_backfill_of_a_job_is_refused(service: Service) -> None:
    """Case 72: while one runs under its lease, another start of the same job is refused; the same start waits."""
    await service.produce(range(100))
    await service.pool.execute(
        "INSERT INTO tidegate.job (service, code, claim_rule) "
        "VALUES ($1, 'shown', 'v1 ids=per-source bucket=constant')",
        service.topic,
    )
    await service.pool.execute(
        "INSERT INTO tidegate.backfill (job, source, holder, lease_until) "
        "SELECT id, 'checkpoint nightly', 'elsewhere', now() + interval '1 hour' FROM tidegate.job"
    )

    with pytest.raises(AlreadyRunning, match="checkpoint nightly"):
        await service.backfill()

    waits: list[str] = []
    stop = asyncio.Event()

    def on_wait(reason: str) -> None:
        waits.append(reason)
        stop.set()

    with pytest.raises(AlreadyRunning, match="stopped while waiting"):
        await service.backfill(start=BackfillStart(checkpoint="nightly"), on_wait=on_wait, stop=stop)
    assert "elsewhere" in waits[0]


async def test_backfill_leaves_the_live_group_alone(service: Service) -> None:
    """Case 72: the group keeps its generation: no member is asked to give its partitions back."""
    await service.produce(range(100))
    revoked: list[frozenset[TopicPartition]] = []

    async def on_revoked(partitions: frozenset[TopicPartition]) -> None:
        revoked.append(partitions)

    group = service.app().group(service.app().jobs[1].job_code)
    async with join_group(
        service.settings.kafka, group=group, topics=[service.topic], on_assigned=lambda _: None, on_revoked=on_revoked
    ) as member:
        assert len(member.assignment()) == 4
        revoked.clear()

        await service.backfill()

        assert revoked == []
        assert len(member.assignment()) == 4


async def test_consumer_backfill_runs_only_unclaimed_events(service: Service) -> None:
    """A consumer's backfill repairs: what its inbox knows is dropped, what it missed is applied once."""
    await service.produce(range(100))
    await service.backfill("notes")
    await service.pool.execute("DELETE FROM tidegate.inbox WHERE id IN (SELECT id FROM tidegate.inbox LIMIT 10)")

    report = await service.backfill("notes")

    assert (report.tally.applied, report.tally.duplicates) == (10, 90)
    assert await service.pool.fetchval("SELECT count(*) FROM effect") == 110


@pytest.mark.parametrize("forgotten_until, refused", [("-2 days", False), ("2 days", True)])
async def test_repair_beyond_the_horizon_needs_a_word(service: Service, forgotten_until: str, refused: bool) -> None:
    """Case 69: where claims are forgotten, a repair would do again what was done; a projection has no such fear."""
    await service.produce(range(20))
    assert (await service.backfill("notes")).tally.applied == 20
    await service.pool.execute(f"UPDATE tidegate.job SET claims_since = current_date + interval '{forgotten_until}'")

    if refused:
        with pytest.raises(Misconfigured, match=r"'notes': .* begins with records from before .*--beyond-horizon"):
            await service.backfill("notes")
    else:
        assert (await service.backfill("notes")).tally.applied == 0
    assert (await service.backfill("notes", beyond_horizon=True)).tally.applied == 0, "their claims are there still"
    assert (await service.backfill("shown")).is_done


async def test_checkpoint_behind_retention_is_a_gap(service: Service) -> None:
    """Case 63: records after the checkpoint are gone; the backfill refuses, and with the flag says what is missing."""
    await service.produce(range(400))
    await _create_checkpoint_at_zero(service)
    ends = await service.ends()
    await _delete_records(service, {partition: end // 2 for partition, end in ends.items()})
    start = BackfillStart(checkpoint="nightly")

    with pytest.raises(Misconfigured, match=r"gap: .*--accept-gap"):
        await service.backfill(start=start)
    report = await service.backfill(start=start, accept_gap=True)

    removed = sum(end // 2 for end in ends.values())
    assert sum(report.gaps.values()) == removed
    assert len(service.sink.rows()) == 400 - removed


async def test_checkpoint_of_another_topic_of_that_name_is_refused(service: Service) -> None:
    """Case 64: offsets of a topic that was deleted and made again mean other records."""
    await service.produce(range(10))
    await _create_checkpoint_at_zero(service)
    await service.pool.execute("UPDATE tidegate.checkpoint SET topic_id = gen_random_uuid()")

    with pytest.raises(Misconfigured, match="re-created"):
        await service.backfill(start=BackfillStart(checkpoint="nightly"))


async def test_dead_letters_of_a_backfill_are_marked_and_not_doubled(service: Service) -> None:
    """A record that fails again in a second backfill is the same letter with one more occurrence."""

    def fussy(event: Event[Noted]) -> Upsert:
        if event.data.n == 7:
            raise ValueError("seven")
        return document(event)

    service.document = fussy
    await service.produce(range(20))
    await service.backfill()
    await service.backfill()

    (letter,) = await service.pool.fetch("SELECT backfill, occurrences, reason FROM tidegate.dead_letter")
    assert (letter["backfill"], letter["occurrences"], letter["reason"]) == (True, 2, "projection_failed")
    assert len(service.sink.rows()) == 19


async def test_duplicates_of_a_failing_event_are_occurrences_of_one_letter(service: Service) -> None:
    """Case 51: an event that a producer sent four times is one thing to look at, not a letter a copy; live its claim
    sees to that, and a backfill, which passes claims by, has to see to it itself. Also in another partition at once."""
    await service.produce(range(20))
    await service.backfill()

    def fussy(event: Event[Noted]) -> Upsert:
        if event.data.n == 7:
            raise ValueError("seven")
        return document(event)

    service.document = fussy
    for partition in (0, 1, 2):
        await service.produce(range(100, 160))
        await service.repeat(7, partition=partition)
    report = await service.backfill()

    (letter,) = await service.pool.fetch("SELECT occurrences, claimed_id FROM tidegate.dead_letter")
    assert report.tally.dead_letters == letter["occurrences"]
    assert letter["occurrences"] >= 3
    told = await service.pool.fetch(
        "SELECT header_names, header_values FROM tidegate.outbox WHERE kind = 'dead_letter'"
    )
    places = {
        tuple(dict(zip(row["header_names"], row["header_values"], strict=True))[name] for name in _OF_A_PLACE)
        for row in told
    }
    assert len(places) == 1, "the copies of one letter say one place"


_OF_A_PLACE = (b"tg-dlq-id", b"tg-dlq-topic", b"tg-dlq-partition", b"tg-dlq-offset")


async def _create_checkpoint_at_zero(service: Service) -> None:
    async with open_reader(service.settings.kafka) as reader, service.pool.acquire() as connection:
        topic_id = await reader.topic_id(service.topic)
        partitions = await reader.partitions_of(service.topic)
        await create_checkpoint(connection, OPERATOR, "nightly", dict.fromkeys(partitions, (0, topic_id)))


async def _delete_records(service: Service, before: Mapping[TopicPartition, int]) -> None:
    """What retention does, at once."""
    admin = AIOKafkaAdminClient(bootstrap_servers=service.settings.kafka.bootstrap)
    await admin.start()
    try:
        await admin.delete_records({ClientPartition(*p): RecordsToDelete(offset) for p, offset in before.items()})
    finally:
        await admin.close()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)
