"""Erasing one subject: nothing of it is left in any table, and everything else is as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from consumers.batch import Attempts, Batch, Outcome
from dlq.corrections import corrections_from, keep_edit
from dlq.parking import record_key
from dlq.sequences import lock_keys
from tests.everywhere import columns_with
from tests.integration.parking_bench import BAD, GARBAGE, Bench, Note, Noted, note, of_key, parking_job
from tests.integration.replay_bench import ReplayBench
from tests.integration.road import TOPIC_ID, MakeRoad, SentRecord
from tidegate import App, ConsumerJob, Event, handle
from tidegate.console.erasing import ErasurePlan, JobErased, Subject, erase_subject, plan_erasure
from tidegate.jobs.declaration import Job
from tidegate_kernel.errors import Denied, Misconfigured, Transient
from tidegate_kernel.event import JobId, TopicPartition
from tidegate_kernel.permissions import Actor, Role

ADMIN = Actor("anna", Role.ADMIN)
JANE, JANE_KEY = "jane@example.org", b"customer-of-jane@example.org"
OTHER_KEY = b"customer-of-john@example.org"
REASON = "ticket 4711"


def customer_of(event: Event[Noted]) -> str | None:
    return event.data.customer or None


def of_jane(offset: int, *, n: int, key: bytes | None = JANE_KEY, value: bytes | None = None) -> SentRecord:
    """An event that names her wherever a record can: key, value, event id, correlation id and a header's name, too."""
    told = b'{"n":%d,"customer":"%s"}' % (n, JANE.encode()) if value is None else value
    record = of_key(offset, key, told, id=f"{JANE}/{offset}")
    more = [("ce_correlationid", JANE.encode()), (f"x-{JANE}", b"1"), ("agent", JANE.encode()), ("agent", None)]
    return replace(record, headers=[*record.headers, *more])


@pytest.fixture
def job() -> ConsumerJob:
    return parking_job(subjects={"customer": customer_of})


@pytest.fixture
async def bench(make_road: MakeRoad, job: ConsumerJob) -> Bench:
    road = await make_road(job, [handle(Note, note)])
    bench = Bench(road.parts, road.pool)
    bench.places[TopicPartition("orders", 0)] = road.position
    return bench


@pytest.fixture
def replays(bench: Bench, database: str, job: ConsumerJob) -> ReplayBench:
    return ReplayBench(bench.pool, database, job)


def app_of(*jobs: Job) -> App:
    return App(service="tests", owner="tests", jobs=jobs, handlers=[handle(Note, note)])


async def plan(bench: Bench, job: Job, subject: Subject, codes: Sequence[str] | None = None) -> ErasurePlan:
    async with bench.pool.acquire() as connection:
        return await plan_erasure(connection, app_of(job), codes, subject)


async def erase(bench: Bench, job: Job, subject: Subject, *, actor: Actor = ADMIN, reason: str = REASON) -> JobErased:
    async with bench.pool.acquire() as connection:
        planned = await plan_erasure(connection, app_of(job), None, subject)
        [done] = await erase_subject(connection, actor, app_of(job), planned, reason=reason)
    return done


async def everywhere(bench: Bench, text: str) -> list[str]:
    return await columns_with(bench.pool, text)


async def fill(bench: Bench) -> UUID:
    """She is in two letters, in a parked event, in an edit, in an error's text and in the outbox. Returns a letter."""
    await bench.settle([of_jane(0, n=-1), of_jane(1, n=1), of_key(2, OTHER_KEY)])
    await bench.settle([of_jane(3, n=0, key=b"no-name", value=GARBAGE + JANE.encode())])
    await bench.pool.execute("UPDATE tidegate.dead_letter SET error_message = $1, stack = $1", f"KeyError: {JANE}")
    letter: UUID = await bench.pool.fetchval('SELECT id FROM tidegate.dead_letter WHERE "offset" = 3')
    async with bench.pool.acquire() as connection, connection.transaction():
        await keep_edit(
            connection, letter, b'{"n":1,"customer":"%s"}' % JANE.encode(), reason=f"{JANE} asked", made_by="otto"
        )
    return letter


async def test_nothing_of_a_subject_is_left_in_any_table(bench: Bench, job: ConsumerJob) -> None:
    """The promise itself, asked of the database and not of the code: every column of every table is searched."""
    await fill(bench)
    record = ("header_names", "header_values", "key", "value")
    texts = ("correlation_id", "error_message", "event_id", "stack")
    assert await everywhere(bench, JANE) == sorted(
        [
            *(f"{table}.{column}" for table in ("dead_letter", "outbox", "parked") for column in record),
            *(f"dead_letter.{column}" for column in texts),
            "parked.event_id",
            "correction.reason",
            "correction.value",
        ]
    ), "the search finds what is there"

    done = await erase(bench, job, Subject(field="customer", value=JANE))

    assert await everywhere(bench, JANE) == []
    erased = done.erased
    assert (sum(erased.letters.values()), erased.parked, erased.edits, erased.copies) == (2, 1, 1, 2)
    assert (await plan(bench, job, Subject(field="customer", value=JANE))).found == 0


async def test_key_finds_what_does_not_decode(bench: Bench, job: ConsumerJob) -> None:
    """A record that became no event has no field; its key is bytes, whatever is in it."""
    await bench.settle([of_jane(0, n=0, value=GARBAGE), of_jane(1, n=1), of_key(2, OTHER_KEY, BAD)])
    by_field = await plan(bench, job, Subject(field="customer", value=JANE))

    done = await erase(bench, job, Subject(key=JANE_KEY))

    assert (len(by_field.jobs[0].held.letters), len(by_field.jobs[0].held.parked), by_field.jobs[0].unknown) == (
        0,
        1,
        1,
    )
    assert await everywhere(bench, JANE) == []
    assert (sum(done.erased.letters.values()), done.erased.parked) == (1, 1)
    assert await bench.pool.fetchval("SELECT count(*) FROM tidegate.dead_letter WHERE erased_at IS NULL") == 1


async def test_an_erased_letter_stands_where_it_stood(bench: Bench, job: ConsumerJob) -> None:
    """G1: its offset is still accounted for, and whoever looks at it is told who erased it; it is never replayed."""
    await bench.settle([of_jane(0, n=-1)])

    await erase(bench, job, Subject(key=JANE_KEY))

    row = await bench.pool.fetchrow("SELECT * FROM tidegate.dead_letter")
    assert row is not None
    assert (row["state"], row["reason"], row["erased_by"], row["has_payload"]) == (
        "discarded",
        "rejected",
        "anna",
        False,
    )
    assert (row["topic"], row["partition"], row["offset"], row["error_message"]) == ("orders", 0, 0, "erased")
    assert row["decided_at"] is not None
    assert [r["kind"] for r in await bench.pool.fetch("SELECT kind FROM tidegate.correction")] == ["discard"]
    assert await bench.pool.fetchval("SELECT count(*) FROM tidegate.inbox WHERE id = $1", row["claimed_id"]) == 1


async def test_decided_letters_keep_what_was_decided(bench: Bench, job: ConsumerJob) -> None:
    """That an event was put right in March is a fact; whose event it was is nobody's business any more."""
    await bench.settle([of_jane(0, n=-1)])
    await bench.pool.execute("UPDATE tidegate.dead_letter SET state = 'resolved', decided_at = '2026-03-01'")

    done = await erase(bench, job, Subject(key=JANE_KEY))

    assert dict(done.erased.letters) == {"resolved": 1}
    row = await bench.pool.fetchrow("SELECT state, decided_at::date::text FROM tidegate.dead_letter")
    assert row is not None
    assert tuple(row) == ("resolved", "2026-03-01")


async def test_letter_in_the_middle_of_a_sequence_leaves_it(bench: Bench, job: ConsumerJob) -> None:
    """Others' events of the same key still wait for others' letters, in their order."""
    shared = b"tenant-key"
    await bench.settle([of_key(0, shared, BAD)])
    await bench.settle([of_jane(1, n=1, key=shared), of_key(2, shared)])
    await bench.settle([of_jane(3, n=0, key=shared, value=GARBAGE), of_key(4, shared)])
    await bench.pool.execute(
        'UPDATE tidegate.dead_letter SET value = $1 WHERE "offset" = 3', b'{"n":1,"customer":"%s"}' % JANE.encode()
    )

    done = await erase(bench, job, Subject(field="customer", value=JANE))

    assert await bench.parked() == ["e2", "e4"]
    assert await bench.pool.fetchval("SELECT parked FROM tidegate.blocked_key") == 2
    assert await bench.pool.fetchval("SELECT count(*) FROM tidegate.blocking_letter") == 1
    assert done.loose == 0


async def test_what_waits_behind_an_erased_letter_is_told_and_goes_on_with_the_next_run(
    bench: Bench, job: ConsumerJob, replays: ReplayBench
) -> None:
    """Nothing of others is lost and nothing runs by itself: their events wait for the next run, as is told."""
    shared = b"tenant-key"
    await bench.settle(
        [of_jane(0, n=-1, key=shared), of_key(1, shared), of_jane(2, n=1, key=shared), of_key(3, shared)]
    )

    done = await erase(bench, job, Subject(field="customer", value=JANE))

    assert done.loose == 2
    assert await bench.parked() == ["e1", "e3"]
    assert await bench.pool.fetchval("SELECT parked FROM tidegate.blocked_key") == 2
    await replays.replay([])
    assert (await bench.effects(), await bench.blocked_keys()) == (["e1", "e3"], 0)


async def test_a_sequence_that_is_erased_whole_is_free(bench: Bench, job: ConsumerJob) -> None:
    """The next event of the key is handled, and nobody is told of events that are not there."""
    await bench.settle([of_jane(0, n=-1), of_jane(1, n=1)])

    done = await erase(bench, job, Subject(key=JANE_KEY))
    await bench.settle([of_key(2, JANE_KEY)])

    assert (done.loose, await bench.blocked_keys()) == (0, 0)
    assert await bench.effects() == ["e2"]


async def test_no_later_read_handles_what_was_erased(bench: Bench, job: ConsumerJob) -> None:
    """Kafka still has the records: a repair that reads them again passes them by, letters and parked events alike."""
    records = [of_jane(0, n=-1), of_jane(1, n=1), of_key(2, OTHER_KEY)]
    await bench.settle(records)
    await erase(bench, job, Subject(key=JANE_KEY))

    # Beyond the horizon no claim keeps a record from being handled again.
    await bench.pool.execute("DELETE FROM tidegate.inbox")
    outcome = await read_again(bench, records)

    assert (outcome.applied, outcome.skipped, outcome.failures, outcome.parked) == (1, 2, [], 0)
    assert await bench.effects() == ["e2", "e2"]
    assert await everywhere(bench, JANE) == []


async def read_again(bench: Bench, records: Sequence[SentRecord], *, corrected: bool = True) -> Outcome:
    """Reads from the beginning; not `corrected`: by somebody who took the partition before anything was decided."""
    place = TopicPartition("orders", 0)
    await bench.pool.execute("UPDATE tidegate.position SET next_offset = 0")
    position = replace(bench.places[place], next_offset=0)
    async with bench.pool.acquire() as connection:
        decided = await corrections_from(connection, JobId(1), "orders", TOPIC_ID, 0, 0) if corrected else {}
    fence = bench.parts.steward.fence(place, position)
    batch = Batch(fence, TOPIC_ID, records, records[-1].offset + 1, Attempts(), corrections=decided)
    while True:
        try:
            return await bench.parts.pipeline.handle(batch)
        except Transient:
            continue


async def test_reader_who_has_not_heard_of_it_fills_nothing_again(bench: Bench, job: ConsumerJob) -> None:
    """A backfill took the partition before, and the record fails again in its hands: no text and no copy returns."""
    await bench.settle([of_jane(0, n=0, value=GARBAGE + JANE.encode())])
    await erase(bench, job, Subject(key=JANE_KEY))

    await read_again(bench, [of_jane(0, n=0, value=GARBAGE + JANE.encode())], corrected=False)

    assert await everywhere(bench, JANE) == []
    assert await bench.blocked_keys() == 0
    assert await bench.pool.fetchval("SELECT occurrences FROM tidegate.dead_letter") == 1


async def test_letter_that_is_being_replayed_is_left_alone_and_named(bench: Bench, job: ConsumerJob) -> None:
    """Its record is in a runner's hands, and may be applied this very moment."""
    await bench.settle([of_jane(0, n=-1), of_key(1, OTHER_KEY, BAD)])
    await bench.pool.execute("UPDATE tidegate.dead_letter SET state = 'replaying' WHERE \"offset\" = 0")

    done = await erase(bench, job, Subject(key=JANE_KEY))

    assert len(done.erased.busy) == 1
    assert sum(done.erased.letters.values()) == 0
    assert "dead_letter.key" in await everywhere(bench, JANE)


async def test_whoever_is_at_the_key_is_waited_for(bench: Bench, job: ConsumerJob) -> None:
    """A replay that holds the sequence decides first; what it leaves is erased then."""
    await bench.settle([of_jane(0, n=-1), of_jane(1, n=1)])
    key = record_key(of_jane(0, n=1))
    assert key is not None
    async with bench.pool.acquire() as replaying:
        transaction = replaying.transaction()
        await transaction.start()
        await lock_keys(replaying, JobId(1), [key])
        erasing = asyncio.create_task(erase(bench, job, Subject(key=JANE_KEY)))
        await until_somebody_waits(bench)
        assert not erasing.done()
        await transaction.commit()
    async with asyncio.timeout(10):
        done = await erasing

    assert (sum(done.erased.letters.values()), done.erased.parked) == (1, 1)


async def until_somebody_waits(bench: Bench) -> None:
    async with asyncio.timeout(10):
        while not await bench.pool.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            await asyncio.sleep(0.01)


async def test_outbox_tells_how_the_letter_ended_and_nothing_of_it(bench: Bench, job: ConsumerJob) -> None:
    """What had not left yet never leaves; the topic is told that the letter is discarded, under its id alone."""
    await bench.settle([of_jane(0, n=-1), of_key(1, OTHER_KEY, BAD)])

    await erase(bench, job, Subject(key=JANE_KEY))

    rows = await bench.pool.fetch(
        "SELECT key, value, header_names, header_values FROM tidegate.outbox WHERE kind <> 'audit'"
    )
    told = [dict(zip(row["header_names"], row["header_values"], strict=True)) for row in rows]
    assert [(row["key"], row["value"]) for row in rows] == [(OTHER_KEY, BAD), (None, None)]
    assert told[1][b"tg-dlq-state"] == b"discarded"


async def test_audit_tells_how_much_and_nothing_of_whom(bench: Bench, job: ConsumerJob) -> None:
    """Not a digest either: whoever has a list of addresses would find the one it belongs to."""
    await fill(bench)

    await erase(bench, job, Subject(field="customer", value=JANE))
    await erase(bench, job, Subject(key=JANE_KEY))

    rows = await bench.pool.fetch("SELECT target, reason, parameters FROM tidegate.audit ORDER BY seq")
    assert [(row["target"], row["reason"]) for row in rows] == [
        ("tests.notes", REASON),
        ("tests.notes", REASON),
        ("tests", REASON),
    ]
    assert [row["parameters"] for row in rows] == [
        '{"by": "field customer", "copies": 0, "edits": 0, "items": 0, "letters": {}, "parked": 1}',
        '{"by": "field customer", "copies": 2, "edits": 1, "items": 0, "letters": {"dead": 2}, "parked": 0}',
        '{"by": "key", "letters": {}, "parked": 0}',
    ]


async def test_operator_may_not_erase(bench: Bench, job: ConsumerJob) -> None:
    """It cannot be had back: an admin's deed, with a reason; the refusal is audited, without the subject."""
    await bench.settle([of_jane(0, n=-1)])

    with pytest.raises(Denied, match="role admin"):
        await erase(bench, job, Subject(key=JANE_KEY), actor=Actor("otto", Role.OPERATOR))
    with pytest.raises(Denied, match="reason"):
        await erase(bench, job, Subject(key=JANE_KEY), reason=" ")

    assert "dead_letter.key" in await everywhere(bench, JANE)
    assert "audit.parameters" not in await everywhere(bench, JANE)
    assert await bench.pool.fetchval("SELECT count(*) FROM tidegate.audit WHERE outcome = 'denied'") == 2


async def test_plan_changes_nothing_and_counts_what_will_be(bench: Bench, job: ConsumerJob) -> None:
    """Whoever types it sees what is lost before it is lost."""
    await fill(bench)

    [planned] = (await plan(bench, job, Subject(field="customer", value=JANE))).jobs

    extent = planned.extent
    assert dict(extent.letters) == {"dead": 2}
    assert (extent.undecided, extent.parked, extent.edits, extent.copies, extent.waiting) == (2, 1, 1, 2, 1)
    assert await bench.pool.fetchval("SELECT count(*) FROM tidegate.dead_letter WHERE erased_at IS NULL") == 2


async def test_a_function_that_fails_hides_no_letter(make_road: MakeRoad) -> None:
    """It is told that nobody could look into it: silence would be taken for 'nothing there'."""

    def broken(event: Event[Any]) -> str:
        raise KeyError(event.id)

    job = parking_job(subjects={"customer": broken})
    road = await make_road(job, [handle(Note, note)])
    bench = Bench(road.parts, road.pool, {TopicPartition("orders", 0): road.position})
    await bench.settle([of_jane(0, n=-1)])

    planned = await plan(bench, job, Subject(field="customer", value=JANE))

    assert (planned.found, planned.jobs[0].unknown) == (0, 1)


async def test_field_that_no_job_declares_is_refused(bench: Bench, job: ConsumerJob) -> None:
    """'Nothing found' would be taken for an answer."""
    with pytest.raises(Misconfigured, match="they declare: customer"):
        await plan(bench, job, Subject(field="email", value=JANE))
    with pytest.raises(Misconfigured, match="no job 'ledger'"):
        await plan(bench, job, Subject(key=JANE_KEY), ["ledger"])


async def test_interrupted_erasure_has_done_what_the_audit_says(
    bench: Bench, job: ConsumerJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chunk is a transaction with a row of its own: the same command finds the rest."""
    monkeypatch.setattr("tidegate.console.erasing._CHUNK", 1)
    monkeypatch.setattr("tidegate.console.erasing._LOCK_TIMEOUT", timedelta(milliseconds=100))
    await bench.settle([of_jane(0, n=-1, key=b"a"), of_jane(1, n=-1, key=b"b")])
    ids = [row["id"] for row in await bench.pool.fetch("SELECT id FROM tidegate.dead_letter ORDER BY id")]
    async with bench.pool.acquire() as busy, busy.transaction():
        await busy.execute("SELECT FROM tidegate.dead_letter WHERE id = $1 FOR UPDATE", ids[1])
        with pytest.raises(Transient):
            await erase(bench, job, Subject(field="customer", value=JANE))

    outcomes = [row["outcome"] for row in await bench.pool.fetch("SELECT outcome FROM tidegate.audit ORDER BY seq")]
    assert outcomes == ["done", "failed"]
    await erase(bench, job, Subject(field="customer", value=JANE))
    assert await everywhere(bench, JANE) == []
