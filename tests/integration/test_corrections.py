"""Corrections in a real Postgres: kept once, read by their place, obeyed by every road on which records are read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from consumers.batch import Batch, Outcome
from consumers.unread import UnreadRecord
from dlq.corrections import (
    LARGEST_VALUE,
    Correction,
    CorrectionKind,
    corrections_from,
    keep_discards,
    keep_edit,
)
from dlq.states import LetterState
from projections.memory import MemorySink
from tests.integration.notes import running
from tests.integration.offset_bench import Bench, make_topic
from tests.integration.parking_bench import BAD, GARBAGE, GOOD, Note, Noted, note, parking_job
from tests.integration.road import PARTITION, TOPIC_ID, MakeRoad, Road, SentRecord, record
from tidegate import CloudEvents, Event, Json, ProjectionJob, Topic, Upsert, handle, on
from tidegate.backfilling import BackfillOptions, BackfillReport, BackfillStart, run_backfill
from tidegate.console.moves import SetTo
from tidegate.jobs.corrections import Digest, EditPlan, Reading, edit_letter
from tidegate.stack.names import StackAddresses
from tidegate_kernel.errors import AlreadyRunning, Denied, Misconfigured, Poison, Reason
from tidegate_kernel.event import JobId, Record, Scope
from tidegate_kernel.kafka import open_writer
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import Outgoing

FIXED = b'{"n":7}'
DISCARD = Correction(CorrectionKind.DISCARD)
OPERATOR = Actor("olaf", Role.OPERATOR)


def edit_to(value: bytes) -> Correction:
    return Correction(CorrectionKind.EDIT, value)


async def letter_at(pool: Pool, offset: int) -> UUID:
    letter: UUID = await pool.fetchval('SELECT id FROM tidegate.dead_letter WHERE "offset" = $1', offset)
    return letter


async def edit(pool: Pool, offset: int, value: bytes, *, reason: str = "tests") -> None:
    async with pool.acquire() as connection, connection.transaction():
        await keep_edit(connection, await letter_at(pool, offset), value, reason=reason, made_by="anna")


async def discard(pool: Pool, *offsets: int, reason: str = "tests") -> int:
    letters = [await letter_at(pool, offset) for offset in offsets]
    async with pool.acquire() as connection, connection.transaction():
        return await keep_discards(connection, letters, reason=reason, made_by="anna")


async def read_again(road: Road, records: Sequence[Record], *, unreadable: Poison | None = None) -> Outcome:
    """The position is moved back by hand; a new owner takes it and handles `records` as one batch."""
    await road.pool.execute("UPDATE tidegate.position SET next_offset = $1, epoch = epoch + 1", records[0].offset)
    await road.take_over()
    corrections = await road.parts.steward.corrections(PARTITION, road.position)
    fence = road.parts.steward.fence(PARTITION, road.position)
    batch = Batch(fence, TOPIC_ID, records, records[-1].offset + 1, unreadable=unreadable, corrections=corrections)
    outcome = await road.parts.pipeline.handle(batch)
    road.position = replace(road.position, next_offset=batch.next_offset)
    return outcome


@pytest.fixture
async def road(make_road: MakeRoad) -> Road:
    """A consumer that has failed at offsets 1 (no JSON) and 3 (refused by the handler)."""
    made = await make_road(parking_job(order="skip"), [handle(Note, note)])
    await made.handle(RECORDS)
    return made


RECORDS: list[SentRecord] = [record(0), record(1, GARBAGE), record(2), record(3, BAD)]


async def effects(road: Road) -> list[tuple[str, int]]:
    return [tuple(row) for row in await road.pool.fetch("SELECT id, n FROM effect ORDER BY ctid")]


async def test_discarded_record_is_passed_by(road: Road) -> None:
    """Whoever discarded it has decided: no effect, no claim, nor its letter anew, however often it is read."""
    await discard(road.pool, 1)
    claims = await road.pool.fetchval("SELECT count(*) FROM tidegate.inbox")

    outcome = await read_again(road, RECORDS)

    assert (outcome.skipped, outcome.duplicates, len(outcome.failures)) == (1, 3, 0)
    assert await road.pool.fetchval("SELECT count(*) FROM tidegate.inbox") == claims
    assert [row["occurrences"] for row in await road.dead_letters()] == [1, 1]
    assert await road.stored_offset() == 4


async def test_batch_of_discarded_records_alone_moves_the_position(road: Road) -> None:
    """Else the partition would stand there for ever."""
    await discard(road.pool, 1)

    outcome = await read_again(road, RECORDS[1:2])

    assert outcome.skipped == 1
    assert await road.stored_offset() == 2


async def test_edited_record_is_applied_once_from_its_new_value(road: Road) -> None:
    """G1 holds for what was put right, too: the second read is a duplicate."""
    await edit(road.pool, 1, FIXED)

    first = await read_again(road, RECORDS)
    second = await read_again(road, RECORDS)

    assert (first.applied, first.duplicates, first.skipped) == (1, 3, 0)
    assert (second.applied, second.duplicates) == (0, 4)
    assert await effects(road) == [("e0", 1), ("e2", 1), ("e1", 7)]


@pytest.mark.parametrize("value", [b"{}", BAD])
async def test_edited_record_that_fails_again_keeps_the_original(road: Road, value: bytes) -> None:
    """The letter is the evidence of what was produced, in Postgres and in the DLQ topic; also where it had expired."""
    await edit(road.pool, 1, value)
    await road.pool.execute("DELETE FROM tidegate.outbox")

    again = await read_again(road, RECORDS[:2])

    assert len(again.failures) == 1
    assert (await road.dead_letters())[0]["value"] == GARBAGE
    await road.pool.execute("DELETE FROM tidegate.dead_letter")
    await road.pool.execute("DELETE FROM tidegate.inbox")
    await read_again(road, RECORDS[:2])
    [anew] = await road.dead_letters()
    assert anew["value"] == GARBAGE
    assert [row["value"] for row in await road.pool.fetch("SELECT value FROM tidegate.outbox")] == [GARBAGE] * 2


async def test_discarded_place_that_the_client_cannot_read_is_passed_without_a_letter(road: Road) -> None:
    """The decision is about the place: what the client makes of it this time does not matter."""
    await discard(road.pool, 1)
    error = Poison("no", reason=Reason.CLIENT_PARSE)

    outcome = await read_again(road, [UnreadRecord("orders", 0, 1)], unreadable=error)

    assert (outcome.skipped, len(outcome.failures)) == (1, 0)
    assert await road.stored_offset() == 2
    assert (await road.dead_letters())[0]["occurrences"] == 1


async def test_record_that_the_client_cannot_read_is_read_as_edited(road: Road) -> None:
    """Only somebody knows what it says; it was told once and holds for every read."""
    await edit(road.pool, 1, FIXED)
    error = Poison("no", reason=Reason.CLIENT_PARSE)

    outcome = await read_again(road, RECORDS[1:2], unreadable=error)

    assert outcome.applied == 1
    assert (await effects(road))[-1] == ("e1", 7)


async def test_edited_record_that_still_ends_its_processes_is_set_aside_again(road: Road) -> None:
    """An edit must not let it end every worker, one after the other, for ever."""
    await edit(road.pool, 1, FIXED)
    crashed = Poison("three owners ended", reason=Reason.WORKER_CRASHED)

    outcome = await read_again(road, RECORDS[1:2], unreadable=crashed)

    assert len(outcome.failures) == 1
    row = (await road.dead_letters())[0]
    assert (row["occurrences"], row["reason"], row["value"]) == (2, "worker_crashed", GARBAGE)


async def test_projection_goes_by_corrections(make_road: MakeRoad) -> None:
    """A read model is made of what the records should have been, also where they could be read as they are."""
    sink = MemorySink()
    await sink.prepare()

    def document(event: Event[Noted]) -> Upsert:
        if event.data.n < 0:
            raise ValueError("negative")
        return Upsert(event.id, version=1, document={"n": event.data.n})

    topic = Topic("orders", format=Json(), envelope=CloudEvents())
    job = ProjectionJob(
        code="shown", topics=[topic], unlisted="skip", runbook="-", sink=sink, freshness_sla=timedelta(seconds=5),
        events=[on("noted", Noted, document)],
    )  # fmt: skip
    road = await make_road(job, sink=sink)
    await road.handle([record(0, BAD), record(1, BAD), record(2)])
    await edit(road.pool, 0, FIXED)
    await discard(road.pool, 1)

    outcome = await read_again(road, [record(0, BAD), record(1, GOOD), record(2)])

    assert (outcome.skipped, len(outcome.failures)) == (1, 0)
    assert {name: row["n"] for name, row in sink.rows().items()} == {"e0": 7, "e2": 1}


# Keeping them.


async def kept(pool: Pool) -> list[tuple[Any, ...]]:
    query = 'SELECT "offset", kind, value, reason FROM tidegate.correction ORDER BY "offset"'
    return [tuple(row) for row in await pool.fetch(query)]


async def test_later_edit_replaces_an_earlier_one_and_a_discard_replaces_both(road: Road) -> None:
    """What was decided last about a record counts; a discard is final, and the first of two says who it was."""
    await edit(road.pool, 1, b"first", reason="one")
    await edit(road.pool, 1, b"second", reason="two")
    edited = await kept(road.pool)

    discarded = [await discard(road.pool, 1, 3, reason="three"), await discard(road.pool, 1, 3, reason="four")]

    assert edited == [(1, "edit", b"second", "two")]
    assert discarded == [2, 0]
    assert await kept(road.pool) == [(1, "discard", None, "three"), (3, "discard", None, "three")]
    with pytest.raises(Misconfigured, match="has been discarded"):
        await edit(road.pool, 1, FIXED)


@pytest.mark.parametrize("state", list(LetterState))
async def test_only_what_nobody_has_decided_about_is_edited(road: Road, state: LetterState) -> None:
    """A letter that is resolved has had its effect; an edit of it would look as if it could still change that."""
    await road.pool.execute("UPDATE tidegate.dead_letter SET state = $1", state)
    if state in (LetterState.DEAD, LetterState.QUARANTINED):
        await edit(road.pool, 1, FIXED)
        assert len(await kept(road.pool)) == 1
        return

    with pytest.raises(AlreadyRunning if state is LetterState.REPLAYING else Misconfigured, match="letter "):
        await edit(road.pool, 1, FIXED)
    assert await kept(road.pool) == []


async def test_edit_waits_for_whoever_decides_about_the_letter(road: Road) -> None:
    """A replay that takes the letter in the same moment reads the old value or sees the edit refused, never half."""
    letter = await letter_at(road.pool, 1)
    async with road.pool.acquire() as runner, runner.transaction():
        await runner.execute("UPDATE tidegate.dead_letter SET state = 'replaying' WHERE id = $1", letter)
        editing = asyncio.create_task(edit(road.pool, 1, FIXED))
        await _until_somebody_waits(road.pool)
        assert not editing.done()

    with pytest.raises(AlreadyRunning):
        await editing


async def _until_somebody_waits(pool: Pool) -> None:
    async with asyncio.timeout(20):
        while not await pool.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ):
            await asyncio.sleep(0.02)


async def test_too_large_or_unknown_is_refused(road: Road) -> None:
    """A worker keeps the edited values of its partitions in memory."""
    with pytest.raises(Misconfigured, match=str(LARGEST_VALUE)):
        await edit(road.pool, 1, b"x" * (LARGEST_VALUE + 1))
    with pytest.raises(Misconfigured, match="there is no dead letter"):
        async with road.pool.acquire() as connection, connection.transaction():
            await keep_edit(connection, UUID(int=1), FIXED, reason="tests", made_by="anna")


async def test_corrections_are_read_by_place(road: Road) -> None:
    """Whoever reads a partition asks from where it begins; another topic of the name has none."""
    await edit(road.pool, 1, FIXED)
    await discard(road.pool, 3)
    job = JobId(road.parts.id)

    async with road.pool.acquire() as connection:
        by_place = [await corrections_from(connection, job, "orders", TOPIC_ID, 0, offset) for offset in (0, 1, 2, 4)]
        elsewhere = [
            await corrections_from(connection, JobId(job + 1), "orders", TOPIC_ID, 0, 0),
            await corrections_from(connection, job, "orders", UUID(int=8), 0, 0),
            await corrections_from(connection, job, "orders", TOPIC_ID, 1, 0),
        ]

    assert by_place == [{1: edit_to(FIXED), 3: DISCARD}, {1: edit_to(FIXED), 3: DISCARD}, {3: DISCARD}, {}]
    assert elsewhere == [{}, {}, {}]


async def test_next_generation_of_a_job_goes_by_the_corrections_of_the_former(road: Road) -> None:
    """A rebuild is another row of `job` that reads the same records: what was discarded must not come back with it. Of
    two decisions a discard is final, in whatever generation it was made."""
    new = "INSERT INTO tidegate.job (service, code, generation, claim_rule) VALUES ('tests', $1, $2, 'v1') RETURNING id"
    second, other = await road.pool.fetchval(new, "notes", 2), await road.pool.fetchval(new, "other", 1)
    await edit(road.pool, 1, FIXED)
    await discard(road.pool, 3)
    await road.pool.execute(
        """
        INSERT INTO tidegate.correction (
            job, topic, topic_id, partition, "offset", kind, value, letter, reason, made_by
        )
        SELECT $1, c.topic, c.topic_id, c.partition, c."offset", 'edit', 'later', c.letter, 'tests', 'anna'
        FROM tidegate.correction AS c
        """,
        second,
    )

    async with road.pool.acquire() as connection:
        found = [await corrections_from(connection, JobId(job), "orders", TOPIC_ID, 0, 0) for job in (second, other)]

    assert found == [{1: edit_to(b"later"), 3: DISCARD}, {}]


TENANTS_EDIT = EditPlan(
    letter=UUID(int=1),
    job="notes",
    record="orders:0:1",
    state="dead",
    scope=Scope("acme"),
    before=None,
    edited=None,
    after=Digest(len(FIXED), ""),
    reading=Reading("decodes to noted, id e1", is_event=True, scope=Scope("acme")),
    value=FIXED,
)


@pytest.mark.parametrize(
    "scope, reading, is_allowed",
    [
        (Scope("acme"), Scope("acme"), True),
        (Scope("acme"), Scope("zeta"), False),
        (Scope("acme"), Scope("acme", "north"), False),
        (Scope("acme"), None, False),
        (Scope("zeta"), Scope("zeta"), False),
        (Scope(), Scope("acme"), False),
        (Scope(), Scope(), False),
    ],
)
async def test_letter_of_a_tenant_is_not_edited_into_an_event_of_another(
    road: Road, scope: Scope, reading: Scope | None, is_allowed: bool
) -> None:
    """G12 for hands: whoever may act for acme alone could else make any tenant's event of a letter of theirs."""
    actor = Actor("acme-admin", Role.ADMIN, tenants=frozenset({"acme"}))
    letter = await letter_at(road.pool, 1)
    plan = replace(TENANTS_EDIT, letter=letter, scope=scope, reading=Reading("told", scope=reading))

    if is_allowed:
        await edit_letter(road.pool, actor, plan, reason="tests")
    else:
        with pytest.raises(Denied, match="limited to tenants acme"):
            await edit_letter(road.pool, actor, plan, reason="tests")

    assert len(await kept(road.pool)) == is_allowed


# From Kafka, through whoever reads it.


@pytest.fixture
async def bench(pool: Pool, database: str, stack: StackAddresses, unique_name: Callable[[str], str]) -> Bench:
    """Between two good records one that was edited and one that was discarded; all have been read once."""
    kafka = KafkaSettings(
        bootstrap=stack.kafka_bootstrap, session_timeout=timedelta(seconds=6), heartbeat_interval=timedelta(seconds=1)
    )
    # The rows of a parametrized test share the beginning of their names.
    bench = Bench(pool, database, kafka, [unique_name("corrected")])
    await make_topic(kafka, bench.topic)
    values = [b'{"text":"n00"}', b"{", b'{"text":', b'{"text":"n03"}']
    async with open_writer(kafka) as writer:
        assert not any(await writer.write([Outgoing(bench.topic, value, partition=0) for value in values]))
    async with running(await bench.loop()):
        await bench.stands_at(4)
    await edit(pool, 1, b'{"text":"n01"}')
    await discard(pool, 2)
    return bench


async def occurrences(pool: Pool) -> list[int]:
    rows = await pool.fetch('SELECT occurrences FROM tidegate.dead_letter ORDER BY "offset"')
    return [row["occurrences"] for row in rows]


async def _backfill(bench: Bench) -> BackfillReport:
    options = BackfillOptions(BackfillStart(is_beginning=True))
    return await run_backfill(bench.app, bench.settings, "notes", options, actor=OPERATOR, stop=asyncio.Event())


@pytest.mark.timeout(150)
async def test_backfill_goes_by_corrections(bench: Bench) -> None:
    """Years of records are read again with newer code, but what somebody decided about one of them stands."""
    report = await _backfill(bench)

    assert (report.tally.applied, report.tally.duplicates, report.tally.skipped) == (1, 2, 1)
    assert report.tally.dead_letters == 0
    assert await bench.effects() == ["n00", "n01", "n03"]
    assert await occurrences(bench.pool) == [1, 1]


async def _worker_that_is_moved(bench: Bench) -> None:
    async with running(await bench.loop()):
        await bench.stands_at(4)
        await bench.resolve(SetTo(0))
        await _settled_again(bench)


async def _new_worker(bench: Bench) -> None:
    await bench.resolve(SetTo(0))
    async with running(await bench.loop()):
        await _settled_again(bench)


async def _settled_again(bench: Bench) -> None:
    async with asyncio.timeout(30):
        while await bench.position() != 4 or len(await bench.effects()) < 3:
            await asyncio.sleep(0.02)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("read", [_worker_that_is_moved, _new_worker])
async def test_live_consumer_goes_by_corrections_once_its_position_was_moved_back(
    bench: Bench, read: Callable[[Bench], Awaitable[None]]
) -> None:
    """A worker that ran all the while has to learn of them too: it takes its partition anew when that is moved."""
    await read(bench)

    assert await bench.effects() == ["n00", "n01", "n03"]
    assert await occurrences(bench.pool) == [1, 1]
