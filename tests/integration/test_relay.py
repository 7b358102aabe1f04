"""The outbox relay on a real Postgres: order, one at a time, outages, and the backlog on a real Kafka."""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from structlog.testing import capture_logs

from tidegate.jobs.relay import OutboxRelay
from tidegate.stack.names import StackAddresses
from tidegate_kernel import logs
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import Record
from tidegate_kernel.kafka import create_topics, open_reader, open_writer
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.outbox import Kind, enqueue
from tidegate_kernel.postgres import Pool, open_pool
from tidegate_kernel.queries import load_queries
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import MessageTooLarge, NotAcknowledged, Outgoing, RecordWriter

Refuse = Callable[[Outgoing], NotAcknowledged | None]


class Log:
    """A `RecordWriter` in memory: refuses what it is told to, and goes on with the rest."""

    def __init__(self, refuse: Refuse = lambda _: None) -> None:
        self.refuse = refuse
        self.written: list[Outgoing] = []
        self.calls: list[int] = []

    async def write(self, records: Sequence[Outgoing]) -> Sequence[NotAcknowledged | None]:
        self.calls.append(len(records))
        answers = [self.refuse(record) for record in records]
        self.written += [record for record, answer in zip(records, answers, strict=True) if answer is None]
        return answers

    async def close(self) -> None:
        return None

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.written]


class Stuck(Log):
    """Kafka has the records, but the answer does not come."""

    def __init__(self) -> None:
        super().__init__()
        self.has_written = asyncio.Event()

    async def write(self, records: Sequence[Outgoing]) -> Sequence[NotAcknowledged | None]:
        await super().write(records)
        self.has_written.set()
        await asyncio.Event().wait()
        raise AssertionError


class MovableClock:
    """Time stands until somebody sleeps; a sleep takes no time but moves the clock."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        await asyncio.sleep(0)


@pytest.fixture
async def pool(database: str) -> AsyncIterator[Pool]:
    async with open_pool(database, size=4) as pool:
        yield pool


async def put(pool: Pool, *records: Outgoing, kind: Kind = "event") -> None:
    async with pool.acquire() as connection, connection.transaction():
        await enqueue(connection, records, kind=kind)


def record(value: bytes, *, key: bytes | None = b"k", topic: str = "t") -> Outgoing:
    return Outgoing(topic, value, key, [("ce_id", value[:32])])


async def waiting(pool: Pool) -> list[bytes]:
    return [row["value"] for row in await pool.fetch("SELECT value FROM tidegate.outbox ORDER BY id")]


def first_of_each(values: Sequence[bytes | None]) -> list[bytes | None]:
    """What a reader sees that drops repeats by id."""
    return list(dict.fromkeys(values))


async def drain(relay: OutboxRelay) -> int:
    total = 0
    while relayed := await relay.relay_once():
        total += relayed
    return total


async def test_acknowledged_records_leave_the_outbox_in_their_order(pool: Pool) -> None:
    """The relay's whole purpose, and its count is what its callers loop on."""
    log = Log()
    await put(pool, record(b"1"), record(b"2"))
    await put(pool, record(b"3"))

    relayed = await OutboxRelay(pool, log, MovableClock()).relay_once()

    assert (relayed, log.values(), await waiting(pool)) == (3, [b"1", b"2", b"3"], [])
    number = log.written[0].headers[-1]
    assert list(log.written[0].headers) == [("ce_id", b"1"), number]
    assert (number[0], [r.headers[-1][1] for r in log.written]) == ("tg-outbox-id", [b"1", b"2", b"3"])


async def test_a_relay_that_waits_too_long_for_a_lock_goes_on_later(pool: Pool, database: str) -> None:
    """A backup or a migration may hold the outbox for longer than a statement may wait: what else the process does must
    not end for that."""
    await put(pool, record(b"a"))
    async with open_pool(database, size=1, statement_timeout=timedelta(milliseconds=50)) as impatient:
        relay = OutboxRelay(impatient, Log(), MovableClock())
        async with pool.acquire() as somebody, somebody.transaction():
            await somebody.execute("LOCK TABLE tidegate.outbox")
            with pytest.raises(Transient):
                await relay.relay_once()

        assert await relay.relay_once() == 1


async def test_a_rolled_back_transaction_publishes_nothing(pool: Pool) -> None:
    """An event about something that did not happen is worse than none."""
    log = Log()
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await enqueue(connection, [record(b"1")])
        await transaction.rollback()

    assert await OutboxRelay(pool, log, MovableClock()).relay_once() == 0
    assert log.values() == []


async def test_a_relay_killed_between_write_and_delete_repeats_the_same_ids(pool: Pool) -> None:
    """At least once: the other order would lose what was deleted and not written. Readers drop repeats by id."""
    stuck, log = Stuck(), Log()
    await put(pool, record(b"1"), record(b"2"))
    killed = asyncio.create_task(OutboxRelay(pool, stuck, MovableClock()).relay_once())
    await asyncio.wait_for(stuck.has_written.wait(), 10)
    killed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await killed

    await OutboxRelay(pool, log, MovableClock()).relay_once()

    assert [r.headers for r in log.written] == [r.headers for r in stuck.written]
    assert await waiting(pool) == []


async def test_number_of_a_letter_is_among_its_own_headers(pool: Pool) -> None:
    """G7: of a letter only what begins with tg-dlq- is ours; the number of a relayed event stays with it."""
    log = Log()
    letter = replace(record(b"1"), headers=[("tg-outbox-id", b"77"), ("tg-dlq-id", b"x")])
    await put(pool, letter, kind="dead_letter")
    await put(pool, letter)

    await OutboxRelay(pool, log, MovableClock()).relay_once()

    assert [list(r.headers) for r in log.written] == [
        [("tg-outbox-id", b"77"), ("tg-dlq-id", b"x"), ("tg-dlq-outbox-id", b"1")],
        [("tg-dlq-id", b"x"), ("tg-outbox-id", b"2")],
    ]


async def test_a_relay_whose_backend_dies_while_kafka_answers_repeats(pool: Pool) -> None:
    """G5: Postgres fails over after the write: Transient for the caller, nothing lost, the turn is free again."""
    log = Log()
    backend = (
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"  # not those of other tests
    )

    class Murderous(Log):
        async def write(self, records: Sequence[Outgoing]) -> Sequence[NotAcknowledged | None]:
            await pool.execute(f"SELECT pg_terminate_backend(pid) FROM ({backend}) AS b")
            return await super().write(records)

    await put(pool, record(b"1"))

    with pytest.raises(Transient):
        await OutboxRelay(pool, Murderous(), MovableClock()).relay_once()
    await OutboxRelay(pool, log, MovableClock()).relay_once()

    assert log.values() == [b"1"]


async def test_two_relays_at_once_write_each_record_once_in_order(pool: Pool) -> None:
    """Every replica runs a relay; two at the same rows would double and re-order them."""
    log = Log()

    class Slow(Log):
        async def write(self, records: Sequence[Outgoing]) -> Sequence[NotAcknowledged | None]:
            for _ in range(5):  # gives the other one every chance to look at the same rows
                await asyncio.sleep(0)
            return await log.write(records)

    await put(pool, *(record(b"%d" % n, key=b"k%d" % (n % 3)) for n in range(200)))
    relays = [OutboxRelay(pool, Slow(), MovableClock(), batch_size=7) for _ in range(3)]

    async def until_empty(relay: OutboxRelay) -> None:
        while await waiting(pool):
            await relay.relay_once()

    await asyncio.wait_for(asyncio.gather(*map(until_empty, relays)), 30)

    assert log.values() == [b"%d" % n for n in range(200)]


async def test_the_order_of_a_key_holds_when_its_middle_record_fails(pool: Pool) -> None:
    """G4: the records behind the failed one are written again, so that dropping repeats leaves the order."""
    clock = MovableClock()
    failing = {b"2"}
    log = Log(lambda r: NotAcknowledged("down") if r.value in failing else None)
    relay = OutboxRelay(pool, log, clock)
    # A client that gives up a partition at its first failure writes nothing behind it.
    log.refuse = lambda r: NotAcknowledged("down") if failing and r.value in (b"2", b"3") else None
    await put(pool, record(b"1"), record(b"2"), record(b"3"), record(b"x", key=b"other"))

    await relay.relay_once()
    still_there = await waiting(pool)
    failing.clear()
    await clock.sleep(60)
    await relay.relay_once()

    assert still_there == [b"2", b"3"]
    assert [v for v in first_of_each(log.values()) if v != b"x"] == [b"1", b"2", b"3"]
    assert await waiting(pool) == []


async def test_a_record_behind_a_failed_one_is_written_again_even_if_kafka_took_it(pool: Pool) -> None:
    """G4: if it were forgotten, its older sibling would be the key's newest record on the topic for ever."""
    clock = MovableClock()
    failing = {b"1"}
    log = Log(lambda r: NotAcknowledged("down") if r.value in failing else None)
    relay = OutboxRelay(pool, log, clock)
    await put(pool, record(b"1"), record(b"2"))

    await relay.relay_once()
    failing.clear()
    await clock.sleep(60)
    await relay.relay_once()

    assert log.values() == [b"2", b"1", b"2"]


async def test_a_topic_that_fails_is_left_alone_for_a_while_and_the_others_go_on(pool: Pool) -> None:
    """One missing DLQ topic must neither stop nor slow the rest; one warning, not five a second."""
    clock = MovableClock()
    log = Log(lambda r: NotAcknowledged("no such topic") if r.topic == "missing" else None)
    relay = OutboxRelay(pool, log, clock)
    await put(pool, *(record(b"m%d" % n, topic="missing") for n in range(600)), record(b"1"))

    with capture_logs() as entries:
        await relay.relay_once()
        await put(pool, record(b"2"))
        calls = len(log.calls)
        await relay.relay_once()
        assert log.calls[calls:] == [1]  # nothing was tried on the paused topic
        await clock.sleep(1)
        await relay.relay_once()
        log.refuse = lambda _: None
        await clock.sleep(60)
        assert await drain(relay) == 600

    assert log.values()[:2] == [b"1", b"2"]
    assert [entry["event"] for entry in entries] == [logs.OUTBOX_TOPICS_UNAVAILABLE, logs.OUTBOX_TOPICS_AVAILABLE]


async def test_a_long_backlog_of_one_topic_does_not_keep_another_waiting(pool: Pool) -> None:
    """A rebuild's thousands of letters must not delay a job's events."""
    log = Log()
    await put(pool, *(record(b"a%d" % n, topic="a") for n in range(300)))
    await put(pool, *(record(b"b%d" % n, topic="b") for n in range(300)))

    await OutboxRelay(pool, log, MovableClock(), batch_size=100).relay_once()

    assert [r.topic for r in log.written].count("b") == 50


async def test_a_batch_is_bounded_in_bytes(pool: Pool) -> None:
    """500 letters of a megabyte would be the end of a worker with 250 MB."""
    log = Log()
    await put(pool, *(record(b"%d" % n * 1_000_000, key=None) for n in range(9)))
    await put(pool, record(b"x" * 12_000_000))
    relay = OutboxRelay(pool, log, MovableClock())

    batches = [await relay.relay_once() for _ in range(3)]

    assert batches == [8, 1, 1]


async def test_an_event_no_topic_takes_is_set_aside_and_seen(pool: Pool) -> None:
    """It can never be written: it must neither block nor vanish."""
    log = Log(lambda r: MessageTooLarge("too large") if len(r.value or b"") > 1000 else None)
    relay = OutboxRelay(pool, log, MovableClock())
    await put(pool, record(b"x" * 20_000), record(b"1"))

    with capture_logs() as entries:
        await drain(relay)

    assert log.values() == [b"1"]
    backlog = await relay.backlog()
    assert (backlog.records, backlog.set_aside) == (0, 1)
    assert [entry["event"] for entry in entries] == [logs.OUTBOX_SET_ASIDE]
    error = await pool.fetchval("SELECT error FROM tidegate.outbox WHERE failed_at IS NOT NULL")
    assert error == "too large for topic 't'; raise its max.message.bytes"


async def test_the_backlog_tells_how_many_and_how_old(pool: Pool) -> None:
    """An unreachable DLQ topic shows here and nowhere else, as the source goes on."""
    relay = OutboxRelay(pool, Log(), MovableClock())
    empty = await relay.backlog()
    await put(pool, record(b"1"), record(b"2"))
    await pool.execute("UPDATE tidegate.outbox SET created_at = now() - interval '90 s'")

    backlog = await relay.backlog()

    assert (empty.records, empty.oldest_age_seconds) == (0, 0)
    assert backlog.records == 2
    assert 90 <= backlog.oldest_age_seconds < 150


async def test_a_running_relay_shows_its_backlog_in_the_metrics(pool: Pool) -> None:
    """The alert on a DLQ topic that cannot be reached stands on these."""
    metrics = Metrics()
    log = Log(lambda r: NotAcknowledged("down") if r.topic == "down" else None)
    await put(pool, record(b"1", topic="down"), record(b"2"))
    relay = OutboxRelay(pool, log, MovableClock(), metrics=metrics)

    running = asyncio.create_task(relay.run())
    await eventually(lambda: metrics.registry.get_sample_value("tidegate_outbox_waiting") == 1)
    running.cancel()

    assert metrics.registry.get_sample_value("tidegate_outbox_records_total", {"outcome": "delivered"}) == 1
    assert (metrics.registry.get_sample_value("tidegate_outbox_oldest_seconds") or 0) > 0


async def test_a_running_relay_survives_an_outage_of_postgres(pool: Pool, database: str) -> None:
    """G5: it resumes by itself, and says so once."""
    log, clock = Log(), MovableClock()
    relay = OutboxRelay(pool, log, clock)
    await put(pool, record(b"1"))
    await pool.expire_connections()
    pool.set_connect_args("postgresql://127.0.0.1:1/nobody-listens", timeout=5)

    with capture_logs() as entries:
        running = asyncio.create_task(relay.run())
        await eventually(lambda: clock.seconds > 60)
        silent = list(log.written)
        pool.set_connect_args(database)
        await eventually(lambda: len(entries) == 2)
        running.cancel()

    assert log.values() == [b"1"]
    assert silent == []
    assert [entry["event"] for entry in entries] == [logs.OUTBOX_INTERRUPTED, logs.OUTBOX_RESUMED]


async def test_an_idle_look_is_one_statement(database: str) -> None:
    """Every process looks, all day: no transaction and no lock."""
    statements: list[str] = []
    async with open_pool(database, size=1) as single:
        connection = await single.acquire()
        connection.add_query_logger(lambda query: statements.append(query.query))
        await single.release(connection)
        statements.clear()

        assert await OutboxRelay(single, Log(), MovableClock()).relay_once() == 0

    assert len([s for s in statements if "tidegate.outbox" in s or "BEGIN" in s]) == 1


async def test_looking_for_topics_walks_the_index(pool: Pool) -> None:
    """With a topic unavailable its backlog grows; reading through it at every look would take the CPU."""
    await put(pool, *(record(b"x", topic=f"t{n % 3}") for n in range(20_000)))
    await pool.execute("ANALYZE tidegate.outbox")

    plan = "".join(r[0] for r in await pool.fetch(f"EXPLAIN {load_queries('tidegate.jobs')['pending_topics']}"))

    assert "outbox_by_topic" in plan
    assert "Seq Scan" not in plan


async def test_a_missing_topic_gets_its_records_once_it_exists(
    pool: Pool, stack: StackAddresses, unique_name: Callable[[str], str]
) -> None:
    """Case 41: with the DLQ topic missing nothing is lost, and on recovery each record is there once."""
    settings, clock = KafkaSettings(bootstrap=stack.kafka_bootstrap), MovableClock()
    there, missing = unique_name("there"), unique_name("missing")
    await create_topics(settings, {there: 1})
    await put(pool, record(b"1", topic=missing), record(b"2", topic=missing), record(b"3", topic=there))

    async with open_writer(settings) as writer:
        relay = OutboxRelay(pool, writer, clock)
        began = time.monotonic()
        assert await relay.relay_once() == 1
        took = time.monotonic() - began
        await create_topics(settings, {missing: 1})
        await clock.sleep(60)
        assert await relay.relay_once() == 2

    assert took < 20, "the client alone asks for half a minute"
    assert [r.value for r in await read_partition(settings, missing)] == [b"1", b"2"]
    assert [r.value for r in await read_partition(settings, there)] == [b"3"]


async def test_a_backlog_of_ten_thousand_drains_in_order(
    pool: Pool, stack: StackAddresses, unique_name: Callable[[str], str], record_property: Callable[[str, object], None]
) -> None:
    """After an outage of Kafka the outbox holds what happened meanwhile; it must not take as long again."""
    settings = KafkaSettings(bootstrap=stack.kafka_bootstrap)
    topic = unique_name("events")
    await create_topics(settings, {topic: 1})
    await put(pool, *(record(b"%06d" % n + b"x" * 300, key=b"k%d" % (n % 50), topic=topic) for n in range(10_000)))

    async with open_writer(settings) as writer:
        began = time.monotonic()
        assert await drain(OutboxRelay(pool, writer, SystemClock())) == 10_000
        rate = 10_000 / (time.monotonic() - began)

    found = await read_partition(settings, topic)
    by_key: dict[bytes | None, list[bytes]] = defaultdict(list)
    for kept in found:
        by_key[kept.key].append((kept.value or b"")[:6])
    record_property("records_per_second", rate)
    print(f"relayed {rate:.0f} records/s")
    assert len(found) == 10_000
    assert all(values == sorted(values) for values in by_key.values())
    assert rate > 500


class Forgetful:
    """A writer to Kafka, every third of whose calls arrives and is answered as if it had not."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer, self._calls = writer, 0

    async def write(self, records: Sequence[Outgoing]) -> Sequence[NotAcknowledged | None]:
        self._calls += 1
        answers = await self._writer.write(records)
        return [NotAcknowledged("no answer")] * len(records) if self._calls % 3 == 1 else answers

    async def close(self) -> None:
        return None


async def test_order_of_keys_holds_on_kafka_with_several_relays_whose_sends_fail(
    pool: Pool, stack: StackAddresses, unique_name: Callable[[str], str]
) -> None:
    """G4: three replicas take turns, and lose answers; whoever drops repeats by the outbox's number reads each key in
    order, and whatever was sent again has its number again."""
    settings, topic = KafkaSettings(bootstrap=stack.kafka_bootstrap), unique_name("ordered")
    await create_topics(settings, {topic: 1})
    await put(pool, *(record(b"%03d" % n, key=b"k%d" % (n % 4), topic=topic) for n in range(120)))

    async with open_writer(settings) as one, open_writer(settings) as two, open_writer(settings) as three:
        clocks = [MovableClock() for _ in range(3)]
        relays = [
            OutboxRelay(pool, Forgetful(writer), clock, batch_size=10)
            for writer, clock in zip((one, two, three), clocks, strict=True)
        ]
        while await waiting(pool):
            for relay, clock in zip(relays, clocks, strict=True):
                await relay.relay_once()
                await clock.sleep(60)

    found = await read_partition(settings, topic)
    numbers = [int(dict(r.headers)["tg-outbox-id"] or b"") for r in found]
    firsts: dict[int, Record] = {}
    for number, kept in zip(numbers, found, strict=True):
        assert firsts.setdefault(number, kept).value == kept.value
    assert len(found) > 120, "some were sent again"
    assert {r.value for r in firsts.values()} == {b"%03d" % n for n in range(120)}
    assert len(firsts) == 120
    for key in {r.key for r in found}:
        values = [r.value or b"" for r in firsts.values() if r.key == key]
        assert values == sorted(values)


async def test_measuring_a_long_backlog_reads_no_more_than_its_bound(pool: Pool) -> None:
    """The lag metric is read every few seconds, also while a million records wait."""
    await pool.execute("INSERT INTO tidegate.outbox (kind, topic) SELECT 'event', 't' FROM generate_series(1, 120000)")
    await pool.execute("ANALYZE tidegate.outbox")

    backlog = await OutboxRelay(pool, Log(), MovableClock()).backlog()
    plan = await pool.fetch(f"EXPLAIN (ANALYZE) {load_queries('tidegate.jobs')['outbox_backlog']}")

    assert backlog.records == 100_000
    assert (
        max(float(rows) for line in plan for rows in re.findall(r"actual time=\S+ rows=([\d.]+)", line[0])) <= 100_000
    )


async def read_partition(settings: KafkaSettings, topic: str) -> list[Record]:
    """Everything in the only partition of `topic`."""
    async with open_reader(settings) as asking:
        (partition,) = await asking.partitions_of(topic)
    records: list[Record] = []
    async with open_reader(settings, [partition]) as reader:
        end = (await reader.ranges([partition]))[partition].end
        reader.seek(partition, 0)
        while len(records) < end:
            records += (await reader.fetch([partition], max_records=5000, timeout=5)).get(partition, ())
    return records


async def eventually(is_true: Callable[[], bool], *, within: timedelta = timedelta(seconds=20)) -> None:
    """Returns when `is_true`, lets the loop work meanwhile; fails after `within`."""
    async with asyncio.timeout(within.total_seconds()):
        while not is_true():
            await asyncio.sleep(0.01)
