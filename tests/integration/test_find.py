"""What became of it, on real servers: two jobs on one topic, and records that met every fate there is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition as ClientPartition
from pydantic import SecretStr

from projections.memory import MemorySink
from tests.integration.notes import running, until
from tidegate import (
    App,
    CloudEvents,
    ConsumerJob,
    Context,
    Event,
    Json,
    ProjectionJob,
    Rejected,
    Topic,
    Upsert,
    handle,
    on,
)
from tidegate.assembly import assemble, live_loop
from tidegate.console.claim_ids import EventSought
from tidegate.console.explaining import explain_job
from tidegate.console.fate import Fate, Reading
from tidegate.console.find import Found, JobFinding, KeySought, PlaceSought, Sought, find
from tidegate.console.status import read_status
from tidegate.jobs.declaration import Job
from tidegate.jobs.publishing import cloud_event
from tidegate.resources import Resources
from tidegate.stack.names import StackAddresses
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import create_topics, join_group, open_reader, open_writer
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import KafkaSettings, Settings
from tidegate_kernel.source import Outgoing

UUID_ID = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"


class Noted(msgspec.Struct):
    n: int


@dataclass(frozen=True)
class Note:
    n: int


def to_note(event: Event[Noted]) -> Note:
    return Note(event.data.n)


async def note(command: Note, ctx: Context[None]) -> None:
    if command.n < 0:
        raise Rejected("a note is not negative")
    ctx.publish("elsewhere", Noted(command.n), type="noted.too")


def document(event: Event[Noted]) -> Upsert:
    return Upsert(id=event.id, version=1, document={})


@dataclass
class Bench:
    """A consumer and a projection on one topic of one partition; nothing runs unless a test says so."""

    app: App
    settings: Settings
    pool: Pool
    topic: str

    async def send(self, *records: Outgoing) -> None:
        async with open_writer(self.settings.kafka) as writer:
            assert not any(await writer.write(records))

    def event(self, event_id: str, n: int = 1, *, type: str = "noted") -> Outgoing:
        told = {"id": event_id, "source": "tests", "type": type}
        record = cloud_event(self.topic, {"n": n}, key=f"key-{event_id}", attributes=told)
        return Outgoing(self.topic, record.value, record.key, record.headers, partition=0)

    async def run(self, until_offset: int) -> None:
        """Both jobs run until their positions are there."""
        for job in self.app.jobs:
            async with running(await self._loop(job)):
                await until(partial(self._stands_at, job, until_offset))

    async def _loop(self, job: Job) -> Any:
        resources = Resources(self.settings, self.pool, SystemClock(), Metrics(), ThreadPoolExecutor(1), "tests")
        sink = MemorySink() if isinstance(job, ProjectionJob) else None
        parts = await assemble(self.app, job, resources, sink=sink)
        group, topics = self.app.group(job.job_code), [self.topic]
        return live_loop(
            parts,
            lambda assigned, revoked: join_group(
                self.settings.kafka, group=group, topics=topics, on_assigned=assigned, on_revoked=revoked
            ),
            SystemClock(),
        )

    async def _stands_at(self, job: Job, offset: int) -> bool:
        query = "SELECT next_offset FROM tidegate.position JOIN tidegate.job ON id = job WHERE code = $1"
        return bool(await self.pool.fetchval(query, job.code) == offset)

    async def find(self, sought: Sought) -> Found:
        return await find(self.app, self.settings, sought, self.app.jobs, SystemClock())

    async def at(self, offset: int) -> Found:
        return await self.find(PlaceSought(TopicPartition(self.topic, 0), offset))


def fates(found: Found) -> dict[str, Fate]:
    return {each.job: each.fate for each in found.jobs}


def of(found: Found, job: str) -> JobFinding:
    return next(each for each in found.jobs if each.job == job)


@pytest.fixture
async def bench(pool: Pool, database: str, stack: StackAddresses, unique_name: Callable[[str], str]) -> Bench:
    name = unique_name("find")
    topic = Topic(name, format=Json(), envelope=CloudEvents())
    common: dict[str, Any] = {"topics": [topic], "unlisted": "skip", "runbook": "-"}
    jobs: Sequence[Job] = [
        ConsumerJob(code="notes", events=[on("noted", Noted, to_note)], **common),
        ProjectionJob(
            code="mirror",
            events=[on("noted", Noted, document)],
            sink=MemorySink(),
            freshness_sla=timedelta(seconds=5),
            **common,
        ),
    ]
    settings = Settings(postgres_dsn=SecretStr(database), kafka=KafkaSettings(bootstrap=stack.kafka_bootstrap))
    await create_topics(settings.kafka, {name: 1}, replication=1)
    async with open_reader(settings.kafka) as reader:
        while not await reader.partitions_of(name):
            await asyncio.sleep(0.05)  # a broker tells of a new topic a moment after it made it
    return Bench(App(service=name, owner="tests", jobs=jobs, handlers=[handle(Note, note)]), settings, pool, name)


async def test_applied_event_is_found_by_its_id_and_by_its_place(bench: Bench) -> None:
    """The plain answer, both ways: claimed by each job, when, and for the projection no promise about readers."""
    await bench.send(bench.event(UUID_ID), bench.event("text-1"))
    await bench.run(2)

    for found in (
        await bench.find(EventSought(UUID_ID)),
        await bench.find(EventSought("text-1", source="tests")),
        await bench.at(0),
        await bench.at(1),
    ):
        assert found.is_found
        assert fates(found) == {"notes": Fate.CLAIMED, "mirror": Fate.CLAIMED}
        assert "readers see" in of(found, "mirror").told
    assert (await bench.at(1)).reading is Reading.READ
    assert of(await bench.at(1), "notes").event_id == "text-1"


async def test_text_id_without_its_source_says_what_is_missing(bench: Bench) -> None:
    """An incomplete question is no 'not found', and a wrong source is."""
    await bench.send(bench.event("text-1"))
    await bench.run(1)

    incomplete = await bench.find(EventSought("text-1"))
    wrong = await bench.find(EventSought("text-1", source="others"))

    assert not incomplete.is_found
    assert "--source" in of(incomplete, "notes").told
    assert not wrong.is_found
    assert "neither claimed nor a dead letter" in of(wrong, "notes").told


async def test_claim_is_found_in_whichever_bucket(bench: Bench) -> None:
    """With buckets by event time nobody can tell the day from the id: every bucket is searched."""
    await bench.send(bench.event("text-1"))
    await bench.run(1)
    await bench.pool.execute(
        "UPDATE tidegate.inbox SET bucket = '2019-05-05' WHERE job = (SELECT min(job) FROM tidegate.inbox)"
    )

    found = await bench.find(EventSought("text-1", source="tests"))

    assert {str(each.claims[0].bucket) for each in found.jobs} == {"2019-05-05", "1970-01-01"}


async def test_dead_letter_is_found_by_id_by_key_and_by_place(bench: Bench) -> None:
    """Whichever of the three an operator has at hand; the claim that the letter keeps does not make it applied."""
    await bench.send(bench.event("bad", -1))
    await bench.run(1)

    for found in (
        await bench.find(EventSought("bad")),
        await bench.find(KeySought(b"key-bad")),
        await bench.find(KeySought(b"key-bad", bench.topic)),
        await bench.at(0),
    ):
        notes = of(found, "notes")
        assert found.is_found
        assert notes.fate is Fate.DEAD_LETTER
        [letter] = notes.letters
        assert (letter.reason, letter.state, letter.attempts, letter.is_waiting) == ("rejected", "dead", 1, True)
    assert not (await bench.find(KeySought(b"key-bad", "another topic"))).is_found


async def test_parked_event_is_found_behind_its_dead_letter(bench: Bench) -> None:
    """An event that a customer misses was neither lost nor handled, and the letter to deal with is named."""
    bad, late = bench.event("bad", -1), bench.event("late")
    await bench.send(bad, Outgoing(late.topic, late.value, bad.key, late.headers, partition=0))
    await bench.run(2)
    [letter] = of(await bench.at(0), "notes").letters

    for found in (await bench.find(EventSought("late", source="tests")), await bench.at(1)):
        assert found.is_found
        notes, documents = found.jobs
        assert (notes.fate, documents.fate) == (Fate.PARKED, Fate.CLAIMED)
        assert notes.told.startswith(f"parked behind dead letter {letter.id} since ")
        assert [(each.offset, each.letter) for each in notes.parked] == [(1, letter.id)]
    by_key = of(await bench.find(KeySought(b"key-bad")), "notes")
    assert by_key.fate is Fate.DEAD_LETTER
    assert by_key.told.endswith("; 1 event of the key waiting behind it")
    status = await read_status(bench.app, bench.settings, SystemClock())
    assert [job.parked for job in status.jobs] == [1, 0]
    explained = await explain_job(bench.app, bench.settings, bench.app.job("notes"), SystemClock())
    assert "; 1 event of it is parked behind dead letters of their keys" in explained.partitions[0][1].sentence


async def test_undecodable_record_is_found_by_its_place(bench: Bench) -> None:
    """It has no id that anybody could know; its coordinates stand in every log line."""
    await bench.send(Outgoing(bench.topic, b"{", partition=0))
    await bench.run(1)

    found = await bench.at(0)

    assert fates(found) == {"notes": Fate.DEAD_LETTER, "mirror": Fate.DEAD_LETTER}
    assert (
        of(found, "notes").letters[0].reason == "invalid_envelope"
        or of(found, "notes").letters[0].reason == "undecodable"
    )


async def test_type_that_no_route_takes_and_a_tombstone_are_skipped(bench: Bench) -> None:
    """Passed without a claim: 'settled, not claimed' would look like a loss."""
    await bench.send(bench.event("other", type="something.else"), Outgoing(bench.topic, None, b"k", partition=0))
    await bench.run(2)

    unlisted, tombstone = await bench.at(0), await bench.at(1)

    assert fates(unlisted) == {"notes": Fate.SKIPPED, "mirror": Fate.SKIPPED}
    assert "'something.else'" in of(unlisted, "notes").told
    assert of(tombstone, "notes").fate is Fate.SKIPPED


async def test_skipped_range_tells_who_and_why(bench: Bench) -> None:
    """The decision of a person is not a loss either, but somebody's to answer for."""
    await bench.send(bench.event("a"), bench.event("b"))
    await bench.run(2)
    await bench.pool.execute(
        "INSERT INTO tidegate.skipped_range "
        "(job, topic, topic_id, partition, first_offset, last_offset, cause, actor, reason) "
        "SELECT job, topic, topic_id, partition, 1, 1, 'skip', 'anna', 'import gone wrong' FROM tidegate.position"
    )
    await bench.pool.execute("DELETE FROM tidegate.inbox")

    found = await bench.at(1)

    assert fates(found) == {"notes": Fate.SKIPPED, "mirror": Fate.SKIPPED}
    assert "anna" in of(found, "notes").told
    assert "import gone wrong" in of(found, "notes").told


async def test_record_before_which_the_job_still_stands_is_not_reached(bench: Bench) -> None:
    """With how many offsets before it; and a repeat of a claimed id is known as one before it arrives."""
    await bench.send(bench.event("a"))
    await bench.run(1)
    await bench.send(bench.event("b"), bench.event("c"), bench.event("a"))

    ahead, repeat, beyond = await bench.at(2), await bench.at(3), await bench.at(9)

    assert fates(ahead) == {"notes": Fate.NOT_REACHED, "mirror": Fate.NOT_REACHED}
    assert (of(ahead, "notes").position, of(ahead, "notes").records_before) == (1, 1)
    assert "duplicate" in of(repeat, "notes").told
    assert (beyond.reading, beyond.is_found) == (Reading.NOT_WRITTEN, False)


async def test_job_that_never_started_has_reached_nothing(bench: Bench) -> None:
    """And still the record is there: that is found."""
    await bench.send(bench.event("a"))

    found = await bench.at(0)

    assert found.is_found
    assert fates(found) == {"notes": Fate.NOT_REACHED, "mirror": Fate.NOT_REACHED}
    assert "never started" in of(await bench.find(EventSought("a", source="tests")), "notes").told


async def test_record_that_retention_removed_was_settled(bench: Bench) -> None:
    """The log has forgotten it, the position has not."""
    await bench.send(bench.event("a"), bench.event("b"))
    await bench.run(2)
    await _delete_before(bench, 1)

    found = await bench.at(0)

    assert (found.reading, found.is_found) == (Reading.GONE, True)
    assert fates(found) == {"notes": Fate.SETTLED, "mirror": Fate.SETTLED}


async def test_offset_of_a_marker_holds_no_record(bench: Bench) -> None:
    """Transactions end in an offset that nobody ever receives; it must not look like a lost record."""
    producer = AIOKafkaProducer(bootstrap_servers=bench.settings.kafka.bootstrap, transactional_id=bench.topic)
    await producer.start()
    try:
        async with producer.transaction():
            sent = bench.event("a")
            await producer.send_and_wait(bench.topic, sent.value, sent.key, headers=list(sent.headers))
    finally:
        await producer.stop()
    await bench.send(bench.event("b"))
    await bench.run(3)

    found = await bench.at(1)

    assert found.reading is Reading.NO_RECORD
    assert "no record stands there" in of(found, "notes").told


async def test_position_in_another_topic_of_the_name_says_nothing(bench: Bench) -> None:
    """Case 65: the offset is below the position, and still nobody has seen this record."""
    await bench.send(bench.event("a"))
    await bench.run(1)
    await bench.pool.execute("UPDATE tidegate.position SET topic_id = $1", uuid4())

    found = await bench.at(0)

    assert "re-created" in of(found, "notes").told
    assert of(found, "notes").fate is Fate.UNKNOWN


async def test_published_event_that_is_not_in_kafka_yet_is_found_in_the_outbox(bench: Bench) -> None:
    """Its consumers wait for it: it was decided, and no relay has published it."""
    await bench.send(bench.event("a"))
    await bench.run(1)
    row = await bench.pool.fetchrow("SELECT header_names, header_values FROM tidegate.outbox WHERE kind = 'event'")
    assert row is not None
    published = dict(zip(*row.values(), strict=True))[b"ce_id"].decode()

    found = await bench.find(EventSought(published))

    assert found.is_found
    [waiting] = found.outbox
    assert (waiting.topic, waiting.kind, waiting.is_set_aside) == ("elsewhere", "event", False)


async def test_topic_that_no_job_reads_is_a_misuse(bench: Bench) -> None:
    """A typing error must not look like an answer."""
    with pytest.raises(Misconfigured, match=bench.topic):
        await bench.find(PlaceSought(TopicPartition("nowhere", 0), 0))


async def _delete_before(bench: Bench, offset: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bench.settings.kafka.bootstrap)
    await admin.start()
    try:
        await admin.delete_records({ClientPartition(bench.topic, 0): RecordsToDelete(before_offset=offset)})
    finally:
        await admin.close()
