"""Dead letters in a real Postgres, and on a real DLQ topic."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from uuid import UUID, uuid4

import pytest

from dlq.letters import Failure, Origin, letter_id, record_dead_letters
from tidegate.jobs.relay import OutboxRelay
from tidegate.stack.names import StackAddresses
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import InvalidEvent, Reason, Transient
from tidegate_kernel.event import Headers, JobId, Record, Scope, TopicPartition
from tidegate_kernel.kafka import create_topics, open_reader, open_writer
from tidegate_kernel.postgres import Connection, Pool, connect, open_pool
from tidegate_kernel.queries import load_queries
from tidegate_kernel.settings import KafkaSettings

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TOPIC_ID = UUID(int=77)


@dataclass
class Given:
    """A record with only the fields that matter."""

    offset: int = 0
    value: bytes | None = b"{}"
    key: bytes | None = b"k"
    headers: Headers = field(default_factory=list)
    timestamp: int = 1_700_000_000_000
    topic: str = "shop.orders"
    partition: int = 7


def failure(record: Record, **fields: object) -> Failure:
    plain = Failure(record=record, topic_id=TOPIC_ID, reason=Reason.INVALID_EVENT, error=InvalidEvent("field 'id'"))
    return replace(plain, **fields)  # type: ignore[arg-type]  # a builder


@pytest.fixture
async def connection(database: str) -> AsyncIterator[Connection]:
    async with connect(database) as connection:
        yield connection


@pytest.fixture
async def pool(database: str) -> AsyncIterator[Pool]:
    async with open_pool(database, size=2) as pool:
        yield pool


async def declare(connection: Connection, code: str = "ledger", **fields: object) -> Origin:
    job = await connection.fetchval(
        "INSERT INTO tidegate.job (service, code, claim_rule) VALUES ('shop', $1, 'v1') RETURNING id", code
    )
    plain = Origin(
        job=JobId(job),
        job_code=code,
        service="shop",
        group=f"shop.{code}",
        service_version="1.0",
        dlq_topic=f"shop.{code}.dlq",
    )
    return replace(plain, **fields)  # type: ignore[arg-type]  # a builder


async def fail(connection: Connection, origin: Origin, failures: Sequence[Failure], *, at: datetime = NOW) -> None:
    async with connection.transaction():
        await record_dead_letters(connection, origin, failures, at)


async def read_topic(settings: KafkaSettings, topic: str) -> list[Record]:
    """Everything in `topic`, by partition and offset."""
    async with open_reader(settings) as asking:
        partitions = await asking.partitions_of(topic)
    records: list[Record] = []
    async with open_reader(settings, partitions) as reader:
        ends = {partition: found.end for partition, found in (await reader.ranges(partitions)).items()}
        for partition, end in sorted(ends.items()):
            reader.seek(partition, 0)
            read = 0
            while read < end:
                fetched = await reader.fetch([partition], max_records=1000, timeout=5)
                records += fetched.get(partition, ())
                read += len(fetched.get(partition, ()))
    return records


def ours(record: Record) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in record.headers if name.startswith("tg-dlq-")}


# --- rows ----------------------------------------


async def test_a_letter_of_which_only_the_place_is_known_says_so(connection: Connection) -> None:
    """G7: it must not look like a letter of a record without key and value, which can be handled again."""
    origin = await declare(connection)
    unread = failure(Given(offset=1, key=None, value=None), has_payload=False)
    empty = failure(Given(offset=2, key=None, value=None))

    await fail(connection, origin, [unread, empty])

    rows = await connection.fetch('SELECT has_payload FROM tidegate.dead_letter ORDER BY "offset"')
    assert [row["has_payload"] for row in rows] == [False, True]


async def test_the_row_keeps_the_record_as_it_was(connection: Connection) -> None:
    """G7, Cases 29, 35 and 46: what is not kept now is gone when retention takes the source."""
    origin = await declare(connection)
    headers: Headers = [("h", b"1"), ("h", None), ("bin", b"\xff\x00"), ("h", b"")]
    records = [Given(0, b"\xff", b"\xfe\x00", headers), Given(1, None, None)]

    await fail(connection, origin, [failure(record) for record in records])

    rows = await connection.fetch('SELECT * FROM tidegate.dead_letter ORDER BY "offset"')
    assert [(row["key"], row["value"]) for row in rows] == [(b"\xfe\x00", b"\xff"), (None, None)]
    assert rows[0]["header_names"] == [b"h", b"h", b"bin", b"h"]
    assert rows[0]["header_values"] == [b"1", None, b"\xff\x00", b""]
    assert rows[1]["header_names"] == []
    assert rows[0]["recorded_at"] == datetime.fromtimestamp(1_700_000_000, UTC)


async def test_the_row_says_who_failed_and_what_it_had_claimed(connection: Connection) -> None:
    """Case 53: replay needs the job, the handler and the claim; a search needs ids and scope."""
    origin = await declare(connection, backfill=True)
    claim = (date(2026, 3, 1), uuid4())
    scope = Scope("acme", "north")

    await fail(
        connection, origin, [failure(Given(), event_id="e", event_type="t", scope=scope, claim=claim, handler="pay")]
    )

    row = await connection.fetchrow("SELECT * FROM tidegate.dead_letter")
    assert row is not None
    assert (row["job"], row["handler"], row["backfill"], row["state"]) == (origin.job, "pay", True, "dead")
    assert (row["claimed_bucket"], row["claimed_id"]) == claim
    assert (row["event_id"], row["event_type"], row["tenant"], row["brand"]) == ("e", "t", "acme", "north")
    assert (row["reason"], row["error_message"]) == ("invalid_event", "field 'id'")


@pytest.mark.parametrize("timestamp", [-1, 58692 * 365 * 86_400_000, 2**63 - 1, -(2**63)])
async def test_a_nonsense_time_of_the_record_is_no_time(connection: Connection, timestamp: int) -> None:
    """A producer's broken clock must not keep the letter from being written."""
    origin = await declare(connection)

    await fail(connection, origin, [failure(Given(timestamp=timestamp))])

    assert await connection.fetchval("SELECT recorded_at FROM tidegate.dead_letter") is None


async def test_texts_that_postgres_refuses_are_made_storable(connection: Connection) -> None:
    """Cases 31 and 32: a NUL or a lone surrogate in an event id would fail the whole batch's settle, for ever."""
    origin = await declare(connection, service_version="1\0")
    wild = "a\0b\ud800" * 1000

    await fail(
        connection,
        origin,
        [
            failure(
                Given(headers=[("n\0", b"")]),
                error=InvalidEvent(wild),
                event_id=wild,
                event_type=wild,
                scope=Scope(wild, wild),
                handler=wild,
                correlation_id=wild,
                traceparent=wild,
                attempts=2**40,
            )
        ],
    )

    row = await connection.fetchrow("SELECT event_id, attempts FROM tidegate.dead_letter")
    assert row is not None
    assert row["event_id"].startswith("a\ufffdb\\ud800")
    assert row["attempts"] == 2**31 - 1


async def test_a_second_failure_of_a_record_is_an_occurrence(connection: Connection) -> None:
    """Case 51: a re-read is not a second letter, in the table as on the topic."""
    origin = await declare(connection)
    await fail(connection, origin, [failure(Given(), event_id="e", reason=Reason.HANDLER_FAILED)])

    await fail(connection, origin, [failure(Given(), reason=Reason.REJECTED)], at=NOW + timedelta(hours=1))

    rows = await connection.fetch("SELECT * FROM tidegate.dead_letter")
    assert [(r["occurrences"], r["reason"], r["event_id"]) for r in rows] == [(2, "rejected", "e")]
    assert (rows[0]["first_failed_at"], rows[0]["last_failed_at"]) == (NOW, NOW + timedelta(hours=1))
    published = await connection.fetch("SELECT header_names, header_values FROM tidegate.outbox ORDER BY id")
    told = [dict(zip(row["header_names"], row["header_values"], strict=True)) for row in published]
    assert told[0][b"tg-dlq-id"] == told[1][b"tg-dlq-id"] == str(rows[0]["id"]).encode()
    assert told[1][b"tg-dlq-first-failed-at"] == NOW.isoformat().encode()


async def test_one_record_twice_in_a_batch_is_one_letter(connection: Connection) -> None:
    """One statement cannot touch a row twice: a duplicate must not fail the batch."""
    origin = await declare(connection)

    await fail(connection, origin, [failure(Given()), failure(Given(), reason=Reason.REJECTED)])

    assert await connection.fetchval("SELECT array_agg(reason) FROM tidegate.dead_letter") == ["rejected"]


async def test_lanes_that_meet_one_event_at_once_make_one_letter(connection: Connection, database: str) -> None:
    """Case 51: copies of an event lie in two partitions, and a backfill reads both side by side."""
    origin = await declare(connection, backfill=True)
    copies = [failure(Given(partition=n, offset=n), claim=(date(2026, 3, 1), UUID(int=9))) for n in range(2)]
    async with connect(database) as other:
        first = connection.transaction()
        await first.start()
        await record_dead_letters(connection, origin, copies[:1], NOW)
        second = asyncio.create_task(fail(other, origin, copies[1:]))
        await _waits_for_a_lock(database)
        await first.commit()
        await second

    rows = await connection.fetch("SELECT partition, occurrences FROM tidegate.dead_letter")
    assert [tuple(row) for row in rows] == [(0, 2)]


async def _waits_for_a_lock(database: str) -> None:
    async with connect(database) as looking, asyncio.timeout(20):
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        while not await looking.fetchval(query):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("before, after", [("resolved", "dead"), ("discarded", "discarded"), ("dead", "dead")])
async def test_only_a_resolved_letter_is_dead_again(connection: Connection, before: str, after: str) -> None:
    """A backfill that meets a discarded record must not undo a person's decision."""
    origin = await declare(connection)
    await fail(connection, origin, [failure(Given())])
    await connection.execute("UPDATE tidegate.dead_letter SET state = $1", before)

    await fail(connection, replace(origin, backfill=True), [failure(Given())])

    row = await connection.fetchrow("SELECT state, backfill FROM tidegate.dead_letter")
    assert row is not None
    assert (row["state"], row["backfill"]) == (after, False)


async def test_jobs_topics_and_generations_have_letters_of_their_own(connection: Connection) -> None:
    """Cases 53 and 65: the same coordinates of a re-created topic, or in another job, are another failure."""
    origin = await declare(connection)
    other = await declare(connection, "other")
    rebuild = await connection.fetchval(
        "INSERT INTO tidegate.job (service, code, generation, claim_rule)"
        " VALUES ('shop', 'ledger', 2, 'v1') RETURNING id"
    )

    await fail(connection, origin, [failure(Given()), failure(Given(), topic_id=UUID(int=78))])
    await fail(connection, other, [failure(Given())])
    await fail(connection, replace(origin, job=JobId(rebuild), generation=2), [failure(Given())])

    assert await connection.fetchval("SELECT count(*) FROM tidegate.dead_letter WHERE occurrences = 1") == 4


async def test_a_rolled_back_settle_leaves_no_letter(connection: Connection) -> None:
    """The letter belongs to the settle: without the position's advance the record will be read again."""
    origin = await declare(connection)
    transaction = connection.transaction()
    await transaction.start()
    await record_dead_letters(connection, origin, [failure(Given())], NOW)
    await transaction.rollback()

    assert await connection.fetchval("SELECT count(*) FROM tidegate.dead_letter") == 0
    assert await connection.fetchval("SELECT count(*) FROM tidegate.outbox") == 0


async def test_a_batch_of_poison_costs_two_round_trips(connection: Connection) -> None:
    """500 letters one at a time would hold the settle's locks for half a second and more."""
    origin = await declare(connection)
    await fail(connection, origin, [failure(Given(1000))])  # the driver learns the types once per connection
    await connection.execute("DELETE FROM tidegate.dead_letter; DELETE FROM tidegate.outbox")
    statements: list[str] = []
    connection.add_query_logger(lambda query: statements.append(query.query))

    async with connection.transaction():
        statements.clear()
        await record_dead_letters(connection, origin, [failure(Given(n)) for n in range(500)], NOW)
        spoken = len(statements)

    assert spoken <= 2
    assert await connection.fetchval("SELECT count(*) FROM tidegate.dead_letter") == 500
    order = await connection.fetch("SELECT header_values, header_names FROM tidegate.outbox ORDER BY id")
    offsets = [int(dict(zip(r["header_names"], r["header_values"], strict=True))[b"tg-dlq-offset"]) for r in order]
    assert offsets == list(range(500))


async def test_a_lost_connection_is_transient(connection: Connection) -> None:
    """G5: a failing Postgres must never look like the record's fault."""
    origin = await declare(connection)
    connection.terminate()

    with pytest.raises(Transient):
        await record_dead_letters(connection, origin, [failure(Given())], NOW)


@pytest.mark.parametrize("package", ["dlq", "tidegate.jobs"])
async def test_every_query_is_valid(connection: Connection, package: str) -> None:
    """A misspelt column must not wait for its first use in production."""
    for query in load_queries(package).values():
        await connection.prepare(query)


# --- on the topic ----------------------------------------


async def relay_all(pool: Pool, settings: KafkaSettings) -> None:
    async with open_writer(settings) as writer:
        relay = OutboxRelay(pool, writer, SystemClock())
        while await relay.relay_once():
            pass
        assert (await relay.backlog()).records == 0


async def test_the_topic_gets_key_value_and_headers_byte_for_byte(
    connection: Connection, pool: Pool, stack: StackAddresses, unique_name: Callable[[str], str]
) -> None:
    """G7, Cases 29, 35, 44 and 46: through Postgres and Kafka, into a topic with fewer partitions than the source."""
    settings = KafkaSettings(bootstrap=stack.kafka_bootstrap)
    dlq = unique_name("dlq")
    await create_topics(settings, {dlq: 3})
    origin = await declare(connection, dlq_topic=dlq)
    headers: Headers = [("h", b"1"), ("h", None), ("bin", b"\xff\x00"), ("h", b""), ("tg-dlq-id", b"stale")]
    records = [Given(0, b"\xff", b"\xfe", headers), Given(1, None, None), Given(2, b"", b""), Given(3, None, b"gone")]

    await fail(connection, origin, [failure(record) for record in records])
    await relay_all(pool, settings)

    found = {int(ours(record)["tg-dlq-offset"]): record for record in await read_topic(settings, dlq)}
    assert {offset: (r.key, r.value) for offset, r in found.items()} == {r.offset: (r.key, r.value) for r in records}
    assert list(found[0].headers[:4]) == headers[:4]
    assert all(name.startswith("tg-dlq-") for name, _ in found[0].headers[4:])
    assert ours(found[0])["tg-dlq-id"] == str(letter_id(origin, TOPIC_ID, records[0]))
    assert ours(found[0])["tg-dlq-replay-of"] == "stale"
    assert (ours(found[0])["tg-dlq-partition"], ours(found[0])["tg-dlq-group"]) == ("7", "shop.ledger")


async def test_a_letter_above_the_topics_limit_arrives_without_its_payload(
    connection: Connection, pool: Pool, stack: StackAddresses, unique_name: Callable[[str], str]
) -> None:
    """Case 42: the source took the value; with our headers the DLQ topic does not."""
    settings = KafkaSettings(bootstrap=stack.kafka_bootstrap)
    dlq = unique_name("dlq")
    await create_topics(settings, {dlq: 1})
    origin = await declare(connection, dlq_topic=dlq)
    value = os.urandom(1024 * 1024 - 200)
    records = [Given(0, b"before"), Given(1, value, headers=[("h", b"x" * 2048)]), Given(2, b"after")]

    await fail(connection, origin, [failure(record) for record in records])
    await relay_all(pool, settings)

    found = await read_topic(settings, dlq)
    assert [record.value for record in found] == [b"before", None, b"after"]
    told = ours(found[1])
    assert told["tg-dlq-payload"] == f"omitted; size={len(value)}; sha256={sha256(value).hexdigest()}"
    assert (told["tg-dlq-topic"], told["tg-dlq-offset"]) == ("shop.orders", "1")
    assert await connection.fetchval('SELECT value FROM tidegate.dead_letter WHERE "offset" = 1') == value


async def test_a_letter_read_back_is_on_one_partition_by_its_key(
    connection: Connection, pool: Pool, stack: StackAddresses, unique_name: Callable[[str], str]
) -> None:
    """G4: an operator who reads the topic sees the failures of a key in their order."""
    settings = KafkaSettings(bootstrap=stack.kafka_bootstrap)
    dlq = unique_name("dlq")
    await create_topics(settings, {dlq: 4})
    origin = await declare(connection, dlq_topic=dlq)

    await fail(connection, origin, [failure(Given(n, key=b"k%d" % (n % 5))) for n in range(100)])
    await relay_all(pool, settings)

    by_key: dict[bytes | None, list[tuple[TopicPartition, int]]] = {}
    for record in await read_topic(settings, dlq):
        where = TopicPartition(record.topic, record.partition)
        by_key.setdefault(record.key, []).append((where, int(ours(record)["tg-dlq-offset"])))
    assert len(by_key) == 5
    for key, found in by_key.items():
        assert len({where for where, _ in found}) == 1, key
        assert [offset for _, offset in found] == sorted(offset for _, offset in found)
