"""Dead letters out of their topic: a database that never saw the failures has them afterwards, and reopens nothing."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import date, timedelta
from uuid import UUID, uuid4

import pytest

from dlq.envelope import ItemNotice, item_record, outcome_record
from dlq.states import LetterState
from tests.integration.clockwork import minutely
from tests.integration.letter_import_bench import NOW, OPERATOR, Bench, Given, make_bench, named
from tests.integration.live import running, until
from tidegate.letter_import import plan_import
from tidegate.migrations.schema import migrate
from tidegate.stack.names import StackAddresses
from tidegate_kernel.errors import Denied, Reason
from tidegate_kernel.event import Headers, Scope
from tidegate_kernel.kafka import open_reader
from tidegate_kernel.permissions import Role
from tidegate_kernel.postgres import Pool, open_pool
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import Outgoing

HOUR = timedelta(hours=1)
CLAIM = (date(2026, 3, 1), UUID(int=0x123))


@pytest.fixture
def kafka(stack: StackAddresses) -> KafkaSettings:
    return KafkaSettings(bootstrap=stack.kafka_bootstrap)


@pytest.fixture
async def fresh(empty_database: str) -> AsyncIterator[Pool]:
    """A database with Tidegate's schema that never saw anything."""
    await migrate(empty_database)
    async with open_pool(empty_database, size=4) as opened:
        await opened.execute("CREATE TABLE effect (id text, n bigint)")
        yield opened


@pytest.fixture
async def bench(kafka: KafkaSettings, pool: Pool, fresh: Pool, unique_name: Callable[[str], str]) -> Bench:
    return await make_bench(kafka, pool, fresh, unique_name)


async def test_a_database_that_never_saw_the_failures_has_the_same_rows(bench: Bench) -> None:
    """G7, Cases 35, 46 and 51: the topic alone is enough, whatever is in the records, and repeats are one letter."""
    headers: Headers = [("h", b"1"), ("h", None), ("bin", b"\xff\x00"), ("h", b"")]
    full = bench.failure(
        Given(0, b"\xff", b"\xfe\x00", headers),
        claim=CLAIM,
        event_id="e",
        event_type="noted",
        scope=Scope("acme", "north"),
        correlation_id="c",
        traceparent="00-1",
        attempts=3,
        handler="note",
    )
    await bench.fail(full)
    await bench.fail(replace(full, reason=Reason.REJECTED, claim=None, event_id=None), at=NOW + HOUR)
    await bench.fail(bench.failure(Given(1, None, None)), bench.failure(Given(2, b"", b"", timestamp=-1)))
    await bench.fail(bench.failure(Given(3), topic_id=UUID(int=78), has_payload=True), backfill=True)

    report = await bench.do()

    assert report.restored == {LetterState.DEAD: 4}
    before, after = await bench.letters(bench.pool), await bench.letters()
    assert named(list(after.values())) == named(list(before.values()))
    assert [row["occurrences"] for row in after.values()].count(2) == 1


async def test_what_was_resolved_stays_resolved(bench: Bench) -> None:
    """An import that reopens what somebody has dealt with makes it act twice."""
    ends = (LetterState.RESOLVED, LetterState.ALREADY_PROCESSED, LetterState.SUPERSEDED, LetterState.DISCARDED)
    letters = await bench.fail(*(bench.failure(Given(n)) for n in range(5)))
    for letter, end in zip(letters, ends, strict=False):
        await bench.decide(letter, end, at=NOW + HOUR)

    plan = await bench.plan()
    report = await bench.do()

    assert plan.letters == report.restored == dict.fromkeys((*ends, LetterState.DEAD), 1)
    assert await bench.states() == dict(zip(letters, (*ends, LetterState.DEAD), strict=True))
    assert named(list((await bench.letters()).values())) == named(list((await bench.letters(bench.pool)).values()))


@pytest.mark.parametrize("key", [b"k", None])
async def test_what_failed_again_afterwards_is_dead_wherever_its_records_landed(
    bench: Bench, key: bytes | None
) -> None:
    """Without a key each record lands in any partition: only the times say what came last."""
    record = bench.failure(Given(0, key=key))
    (letter,) = await bench.fail(record)
    await bench.decide(letter, LetterState.RESOLVED, at=NOW + HOUR, key=key)
    await bench.fail(record, at=NOW)  # by a clock that is an hour behind

    report = await bench.do()

    assert report.restored == {LetterState.DEAD: 1}
    row = (await bench.letters())[letter]
    assert (row["occurrences"], row["decided_at"]) == (2, None)
    assert row["last_failed_at"] > NOW + HOUR


async def test_an_import_that_is_repeated_changes_nothing(bench: Bench) -> None:
    """After a crash in the middle it is simply typed again."""
    letters = await bench.fail(*(bench.failure(Given(n), claim=(CLAIM[0], uuid4())) for n in range(3)))
    await bench.decide(letters[0], LetterState.DISCARDED, at=NOW + HOUR)
    await bench.write(Outgoing(bench.dlq, b"hello", b"k"))
    tables = ("dead_letter", "inbox", "blocked_key", "blocking_letter", "correction")

    async def all_rows() -> list[object]:
        return [await bench.fresh.fetch(f"SELECT * FROM tidegate.{table} ORDER BY 1, 2, 3") for table in tables]

    await bench.do()
    before = await all_rows()
    again = await bench.do()

    assert (again.total, again.plan.known) == (0, 4)
    assert await all_rows() == before
    audited = await bench.fresh.fetch("SELECT parameters ->> 'letters' AS letters FROM tidegate.audit ORDER BY seq")
    assert [row["letters"] for row in audited] == ["4", "0"]


async def test_what_the_database_has_stays_as_it_is(bench: Bench) -> None:
    """The row is the dead letter; the topic may lag behind it."""
    (letter,) = await bench.fail(bench.failure(Given(0), claim=CLAIM))
    await bench.pool.execute("UPDATE tidegate.dead_letter SET state = 'quarantined', replay_count = 3")
    before = await bench.letters(bench.pool)

    report = await bench.do(into=bench.pool)

    assert (report.total, report.plan.known) == (0, 1)
    assert await bench.letters(bench.pool) == before
    assert list(before) == [letter]


async def test_a_discarded_record_is_passed_by_when_it_is_read_again(bench: Bench) -> None:
    """The new database reads its topics from the beginning: what somebody gave up must not be handled after all."""
    (letter,) = await bench.fail(bench.failure(Given(7)))
    await bench.decide(letter, LetterState.DISCARDED, at=NOW + HOUR)

    await bench.do()

    row = await bench.fresh.fetchrow("SELECT * FROM tidegate.correction")
    assert row is not None
    assert (row["topic"], row["partition"], row["offset"], row["kind"]) == (bench.orders, 0, 7, "discard")
    assert (row["letter"], row["made_by"]) == (letter, "olga")


async def test_the_ids_of_letters_that_stand_are_claimed(bench: Bench) -> None:
    """G2: the new database reads the event again; handled then, and once more by a replay, it would act twice."""
    claims = [(CLAIM[0], UUID(int=n)) for n in range(1, 4)]
    letters = await bench.fail(*(bench.failure(Given(n), claim=claim) for n, claim in enumerate(claims)))
    await bench.fail(bench.failure(Given(9), reason=Reason.UNDECODABLE))
    await bench.decide(letters[2], LetterState.RESOLVED, at=NOW + HOUR)

    await bench.do()

    taken = await bench.fresh.fetch("SELECT bucket, id, claimed_on FROM tidegate.inbox ORDER BY id")
    assert [(row["bucket"], row["id"], row["claimed_on"]) for row in taken] == [
        (*claim, NOW.date()) for claim in claims[:2]
    ]


async def test_a_letter_whose_event_was_handled_comes_in_as_processed(bench: Bench) -> None:
    """The job was started before the import and has handled the event this time: its replay would act twice."""
    letters = await bench.fail(bench.failure(Given(0), claim=CLAIM), bench.failure(Given(1, key=b"l")))
    job = await bench.fresh.fetchval(
        "INSERT INTO tidegate.job (service, code, claim_rule) VALUES ($1, 'notes', $2) RETURNING id",
        bench.name,
        bench.job.claim_rule.spell(),
    )
    await bench.fresh.execute("INSERT INTO tidegate.inbox (job, bucket, id) VALUES ($1, $2, $3)", job, *CLAIM)

    report = await bench.do()

    assert report.restored == {LetterState.ALREADY_PROCESSED: 1, LetterState.DEAD: 1}
    rows = await bench.letters()
    assert [rows[letter]["state"] for letter in letters] == ["already_processed", "dead"]
    assert rows[letters[0]]["decided_at"] is not None
    assert await _blocking(bench) == {letters[1]}


async def test_of_two_letters_of_one_event_one_stands(bench: Bench) -> None:
    """A topic that was created anew may carry the event again: the claim lets one of the two be replayed."""
    await bench.fail(bench.failure(Given(0), claim=CLAIM))
    await bench.fail(bench.failure(Given(0), claim=CLAIM, topic_id=UUID(int=78)))

    report = await bench.do()

    assert report.restored == {LetterState.ALREADY_PROCESSED: 1, LetterState.DEAD: 1}


async def _blocking(bench: Bench) -> set[UUID]:
    return {row["letter"] for row in await bench.fresh.fetch("SELECT letter FROM tidegate.blocking_letter")}


async def test_a_letter_that_stands_blocks_its_key(bench: Bench) -> None:
    """G4: later events of the key wait behind it in the new database, too; a record without a key has no order."""
    letters = await bench.fail(*(bench.failure(Given(n, key=key)) for n, key in enumerate((b"a", b"a", None, b"b"))))
    await bench.decide(letters[3], LetterState.RESOLVED, at=NOW + HOUR, key=b"b")

    await bench.do()

    assert await _blocking(bench) == set(letters[:2])
    assert await bench.fresh.fetchval("SELECT count(*) FROM tidegate.blocked_key") == 1


async def test_a_job_that_lets_later_events_pass_has_no_blocked_keys(
    kafka: KafkaSettings, pool: Pool, fresh: Pool, unique_name: Callable[[str], str]
) -> None:
    """Nothing would ever wait, and nothing free them."""
    bench = await make_bench(kafka, pool, fresh, unique_name, order="skip")
    await bench.fail(bench.failure(Given(0)))

    report = await bench.do()

    assert report.restored == {LetterState.DEAD: 1}
    assert await _blocking(bench) == set()


async def test_a_job_with_a_key_of_its_own_has_that_one_blocked(
    kafka: KafkaSettings, pool: Pool, fresh: Pool, unique_name: Callable[[str], str]
) -> None:
    """G4: the job's order is by customer; a record that cannot be decoded blocks its own key, as on the live road."""
    from dlq.parking import named_key, record_key

    bench = await make_bench(kafka, pool, fresh, unique_name, order_key=lambda event: event.data.customer)
    headers: Headers = [(f"ce_{n}", v) for n, v in (("specversion", b"1.0"), ("source", b"t"), ("type", b"noted"))]
    told = [*headers, ("ce_id", b"e1")]
    await bench.fail(
        bench.failure(Given(0, b'{"n":1,"customer":"c1"}', headers=told)), bench.failure(Given(1, b"\xff", b"raw"))
    )

    await bench.do()

    blocked = {row["key"] for row in await bench.fresh.fetch("SELECT key FROM tidegate.blocked_key")}
    raw = record_key(Given(1, key=b"raw", topic=bench.orders))
    assert raw is not None
    assert blocked == {named_key(bench.orders, b"c1").digest, raw.digest}


async def test_a_job_that_begins_anew_goes_by_the_letters_that_were_imported(bench: Bench) -> None:
    """G2, G4: the job reads its topic from the beginning. What came before the failure of its key is handled, the
    failure itself is not tried a second time beside its letter, and what came after waits behind it."""
    await bench.produce(("k", 0), ("k", -1), ("k", 2), ("l", 3))
    async with running(await bench.loop(bench.pool)):
        await until(lambda: _count(bench.pool, "effect", 2))
        await until(lambda: _count(bench.pool, "tidegate.parked", 1))
    await bench.relay()
    await bench.do()

    async with running(await bench.loop(bench.fresh)):
        await until(lambda: _count(bench.fresh, "tidegate.parked", 1))
        await until(lambda: _count(bench.fresh, "effect", 2))

    assert [row["n"] for row in await bench.fresh.fetch("SELECT n FROM effect ORDER BY n")] == [0, 3]
    assert await bench.fresh.fetchval('SELECT "offset" FROM tidegate.parked') == 2
    assert [(row["offset"], row["state"], row["occurrences"]) for row in (await bench.letters()).values()] == [
        (1, "dead", 1)
    ]


async def _count(pool: Pool, table: str, wanted: int) -> bool:
    return bool(await pool.fetchval(f"SELECT count(*) = $1 FROM {table}", wanted))


# --- what does not fit, and what is no letter ----------------------------------------


async def test_a_payload_that_did_not_fit_is_taken_from_where_it_stands(bench: Bench) -> None:
    """Case 42: the DLQ topic tells where and a digest; while the record is there, the letter is whole again."""
    value = os.urandom(1024 * 1024 - 600)
    headers: list[tuple[str, bytes | None]] = [("h", b"x" * 100), ("h", None)]
    await bench.write(Outgoing(bench.orders, value, b"k", headers, partition=0))
    async with open_reader(bench.kafka) as asking:
        bench.topic_id = await asking.topic_id(bench.orders)
    await bench.fail(bench.failure(Given(0, value, headers=headers)))

    report = await bench.do()

    assert report.restored == {LetterState.DEAD: 1}
    assert named(list((await bench.letters()).values())) == named(list((await bench.letters(bench.pool)).values()))


@pytest.mark.parametrize("is_another_topic", [True, False])
async def test_a_payload_that_is_gone_leaves_a_quarantined_letter_that_says_where_it_was(
    bench: Bench, is_another_topic: bool
) -> None:
    """Case 42: replayed as a record without a value it would be taken for a delete."""
    if not is_another_topic:
        await bench.write(Outgoing(bench.orders, b"something else", b"k", partition=0))
        async with open_reader(bench.kafka) as asking:
            bench.topic_id = await asking.topic_id(bench.orders)
    (letter,) = await bench.fail(bench.failure(Given(0, os.urandom(1024 * 1024 - 600)), claim=CLAIM))

    report = await bench.do()

    row = (await bench.letters())[letter]
    assert report.restored == {LetterState.QUARANTINED: 1}
    assert (row["state"], row["value"], row["has_payload"], row["claimed_id"]) == ("quarantined", None, False, CLAIM[1])
    assert f"it stood at {bench.orders}:0:0 " in row["error_message"]
    assert await _blocking(bench) == {letter}


async def test_what_is_no_letter_is_quarantined_under_its_own_coordinates(bench: Bench) -> None:
    """The topic is anybody's to write: nothing in it may stop an import or pass for a letter of another place."""
    (letter,) = await bench.fail(bench.failure(Given(0), claim=CLAIM))
    (good,) = await bench.published()

    def forged(name: str, value: bytes | None) -> list[tuple[str, bytes | None]]:
        return [(n, value if n == f"tg-dlq-{name}" else v) for n, v in good.headers]

    changes: list[tuple[str, bytes | None]] = [
        ("job", b"another"), ("id", str(UUID(int=1)).encode()), ("offset", b"12"), ("offset", b"-1"),
        ("offset", b"9" * 30), ("partition", "²".encode()), ("topic-id", b"\xff"), ("topic", None),
        ("reason", b"bad luck"), ("last-failed-at", b"2026-03-01"), ("first-failed-at", b"soon"),
        ("attempts", b"many"), ("claim", b"yesterday/x"), ("job", None),
    ]  # fmt: skip
    states = [b"dead", b"", b"\xff", None]
    wrong = [forged(*change) for change in changes] + [[*good.headers, ("tg-dlq-state", state)] for state in states]
    wrong.append([])
    await bench.write(*(Outgoing(bench.dlq, b"x", b"k", headers) for headers in wrong))

    report = await bench.do()

    assert report.plan.misfits == len(wrong)
    assert report.restored == {LetterState.DEAD: 1, LetterState.QUARANTINED: len(wrong)}
    assert all(place.startswith(f"{bench.dlq}:{good.partition}:") for place in report.plan.first_misfits)
    rows = await bench.letters()
    assert rows.pop(letter)["state"] == "dead"
    assert {(row["reason"], row["topic"], row["state"]) for row in rows.values()} == {
        ("invalid_envelope", bench.dlq, "quarantined")
    }
    assert sorted(row["offset"] for row in rows.values()) == list(range(1, len(wrong) + 1))
    assert await _blocking(bench) == {letter}
    assert "there is no header tg-dlq-job" in next(
        row["error_message"] for row in rows.values() if row["offset"] == len(wrong)
    )


async def test_outcomes_whose_letters_are_gone_tell_nothing(bench: Bench) -> None:
    """Retention takes the letter first."""
    (letter,) = await bench.fail(bench.failure(Given(0)))
    await bench.pool.execute("DELETE FROM tidegate.outbox")
    await bench.write(
        *(
            Outgoing(bench.dlq, None, b"k", [(n, v) for n, v in headers])
            for headers in [
                [
                    ("tg-dlq-id", str(UUID(int=5)).encode()),
                    ("tg-dlq-job", b"notes"),
                    ("tg-dlq-state", b"resolved"),
                    ("tg-dlq-decided-at", b"2026-03-01T00:00:00+00:00"),
                ]
            ]
        )
    )

    report = await bench.do()

    assert report.restored == {LetterState.DEAD: 1}
    assert list(await bench.letters()) == [letter]


async def test_five_failures_of_a_letter_do_not_grow_what_the_topic_holds(bench: Bench) -> None:
    """Case 54's quiet form: a letter that is replayed and fails for ever must not reach the topic's limit."""
    record = bench.failure(Given(0, headers=[("h", b"1"), ("h", b"2")]), claim=CLAIM)
    for n in range(5):
        await bench.fail(record, at=NOW + n * HOUR)

    sizes = [sum(len(name) + len(value or b"") for name, value in each.headers) for each in await bench.published()]
    report = await bench.do()

    assert len(sizes) == 5
    assert len(set(sizes)) == 1
    assert report.restored == {LetterState.DEAD: 1}
    assert [row["occurrences"] for row in (await bench.letters()).values()] == [5]


async def test_more_letters_than_a_chunk_come_in(bench: Bench) -> None:
    """Every chunk is a transaction of its own: a million letters must not be one."""
    await bench.fail(*(bench.failure(Given(n, key=b"k%d" % n), claim=(CLAIM[0], uuid4())) for n in range(1_200)))

    report = await bench.do()

    assert report.restored == {LetterState.DEAD: 1_200}
    deeds = await bench.fresh.fetch("SELECT action, target, parameters FROM tidegate.audit ORDER BY seq")
    assert [(row["action"], row["target"]) for row in deeds] == [("dlq:import", "notes")] * 3


@pytest.mark.parametrize("role", [None, Role.VIEWER])
async def test_an_import_without_the_role_is_refused_and_audited(bench: Bench, role: Role | None) -> None:
    """Case 61: it decides what will be replayed."""
    await bench.fail(bench.failure(Given(0)))

    with pytest.raises(Denied):
        await bench.do(replace(OPERATOR, role=role))

    assert await bench.letters() == {}
    assert await bench.fresh.fetchval("SELECT outcome FROM tidegate.audit") == "denied"


async def test_items_are_counted_and_not_brought_in(bench: Bench) -> None:
    """ADR 10: their copy says why one failed and holds nothing to do it with; it is no malformed record either."""
    item, code = UUID(int=0xA), bench.origin.job_code
    notice = ItemNotice(
        id=item, job=code, run=7, item="order-1", scheduled_at=NOW, reason="rejected", error_class="Rejected",
        error_message="closed", stack="", fingerprint="f", attempts=1, occurrences=1, first_failed_at=NOW,
        last_failed_at=NOW, correlation_id="c", tenant="acme", brand="", handler="h", service_version="",
        replay_count=0, instruction="tidegate jobs replay …",
    )  # fmt: skip
    ended = outcome_record(
        letter=item, key=b"k", job=code, state=LetterState.DISCARDED, decided_at=NOW + HOUR, topic=bench.dlq
    )
    await bench.fail(bench.failure(Given(0)))
    await bench.write(item_record(notice, key=b"k", topic=bench.dlq), ended)

    report = await bench.do()
    async with bench.fresh.acquire() as connection:
        by_the_clock = await plan_import(bench.app, bench._settings(), minutely(code=code), connection)

    assert (report.plan.items, report.plan.misfits, report.restored) == (1, 0, {LetterState.DEAD: 1})
    assert by_the_clock.items == 1
    assert item not in await bench.letters()
