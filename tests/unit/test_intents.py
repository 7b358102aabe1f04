"""What is wanted of a job, as a process remembers it; and what people type to say it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from consumers.batch import Batch
from consumers.decoding import Arrival, Decoded, Undecoded
from consumers.failure import FailureClass
from consumers.intents import Intents, intent_of
from consumers.ownership import Hold, Holding
from consumers.positions import Position
from consumers.presence import SLOW_SECONDS, State, told_of
from consumers.routes import Route
from consumers.tenants import first_stop
from consumers.topics import Envelope
from tests.unit.records import StoredRecord
from tidegate import App, CloudEvents, ConsumerJob, Json, ScopeFields, Topic, handle, on
from tidegate.jobs.selection import select
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.errors import Misconfigured, Transient, Undecodable
from tidegate_kernel.event import LIVE, Event, Fence, JobId, Scope, TopicPartition
from tidegate_kernel.source import RecordSource

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class StillClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class Table:
    """What a pool answers: the rows that stand, or the trouble there is."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows = rows
        self.is_away = False

    @asynccontextmanager
    async def acquire(self, *, timeout: float) -> AsyncIterator[Table]:
        yield self

    async def fetch(self, query: str, job: JobId) -> list[dict[str, Any]]:
        if self.is_away:
            raise ConnectionRefusedError("away")
        return list(self.rows)


def row(**given: Any) -> dict[str, Any]:
    return {
        "id": 1,
        "kind": "pause",
        "topic": None,
        "partition": None,
        "tenant": None,
        "reason": "looking",
        "actor": "alice",
        "started_at": NOON,
        "until": None,
        "seconds_left": None,
        **given,
    }


def intents(table: Table, clock: StillClock) -> Intents:
    return Intents(table, clock, job=JobId(1))  # type: ignore[arg-type]  # no more of a pool is used


async def test_known_intents_stay_in_force_while_postgres_is_away_each_until_its_end() -> None:
    """An outage of Postgres must neither resume a paused job nor pause it for ever."""
    table, clock = Table(row(until=NOON, seconds_left=60.0), row(id=2, tenant="acme")), StillClock()
    known = intents(table, clock)
    await known.read()
    table.is_away = True

    clock.seconds = 59
    with pytest.raises(Transient):
        await known.read()
    assert set(known.holds(P0)) == {Hold.PAUSED}
    clock.seconds = 60
    assert known.holds(P0) == {}
    clock.seconds = 1e6
    assert list(known.tenants()) == ["acme"]


async def test_an_intent_holds_exactly_what_it_names() -> None:
    """A pause that reaches further than it says is an outage made by hand."""
    for given, held in (
        ({}, {P0, P1}),
        ({"topic": "orders", "partition": 1}, {P1}),
        ({"partition": 1}, {P1}),
        ({"topic": "orders"}, {P0, P1}),
        ({"topic": "others"}, set()),
        ({"tenant": "acme"}, set()),
    ):
        known = intents(Table(row(**given)), StillClock())
        await known.read()
        assert {partition for partition in (P0, P1) if known.holds(partition)} == held, given


async def test_a_flood_is_another_hold_than_a_pause() -> None:
    """Resuming a paused job must not release the stop that dead letters called for."""
    known = intents(Table(row(), row(id=2, kind="flood", topic="orders")), StillClock())
    await known.read()
    assert set(known.holds(P0)) == {Hold.PAUSED, Hold.FLOOD}


def arrival(offset: int, tenant: str) -> Arrival:
    record = StoredRecord(b"{}", offset=offset)
    route: Route[Any] = on("made", dict, lambda _: None)
    return Arrival(record, Event(str(offset), "made", {}, record, NOON, scope=Scope(tenant)), route)


def failure(offset: int, tenant: str | None) -> Undecoded:
    envelope = None if tenant is None else Envelope(None, "made", b"", tenant=tenant)
    return Undecoded(StoredRecord(b"no", offset=offset), Undecodable("no JSON"), envelope)


@pytest.mark.parametrize(
    "decoded, offset",
    [
        (Decoded(events=[arrival(1, "calm"), arrival(2, "acme"), arrival(3, "acme")]), 2),
        (Decoded(events=[arrival(2, "acme")], failures=[failure(1, "acme")]), 1),
        (Decoded(events=[arrival(1, "calm")], failures=[failure(2, None)]), None),
        (Decoded(events=[arrival(1, "")]), None),
    ],
)
def test_a_batch_stops_before_the_first_record_known_to_be_a_paused_tenants(
    decoded: Decoded, offset: int | None
) -> None:
    """What nobody can tell the tenant of goes on."""
    stop = first_stop(decoded, {"acme": "why", "beta": "why not"})
    assert (None if stop is None else stop.offset) == offset


def test_the_part_of_a_batch_before_an_offset_keeps_its_attempts() -> None:
    """What is remembered of failing records must not start anew because a tenant behind them is paused."""
    records = [StoredRecord(b"{}", offset=offset) for offset in (5, 7, 9)]
    batch = Batch(Fence(JobId(1), LIVE, *P0, 1, 5), UUID(int=1), records, 10)
    batch.attempts.count(5, FailureClass.TRANSIENT)

    part = batch.before(9)

    assert ([record.offset for record in part.records], part.next_offset) == ([5, 7], 9)
    assert part.attempts is batch.attempts
    assert batch.before(5).records == []


@pytest.fixture
async def source() -> AsyncIterator[RecordSource]:
    broker = MemoryBroker()
    broker.create_topic("orders", 1)
    async with broker.reader([P0]) as reader:
        yield reader


def holding(**given: Any) -> Holding:
    held = Holding(P0, Position(3, 40, UUID(int=1)), 0)
    for name, value in given.items():
        setattr(held, name, value)
    return held


def batch_of(held: Holding, tries: int) -> Batch:
    fence = Fence(JobId(1), LIVE, *P0, held.position.epoch, held.position.next_offset)
    made = Batch(fence, held.position.topic_id, [StoredRecord(b"{}", offset=40)], 41)
    made.attempts.tries = tries
    return made


async def test_an_owner_tells_what_a_person_has_to_resolve_before_what_passes_by_itself(source: RecordSource) -> None:
    """A blocked partition that is paused too needs its block resolved; a pause outlasts an outage."""
    held = holding(holds={Hold.OUTAGE: "away", Hold.PAUSED: "alice", Hold.BLOCKED: "gap"})
    for gone, state in ((None, State.BLOCKED), (Hold.BLOCKED, State.PAUSED), (Hold.PAUSED, State.OUTAGE)):
        if gone is not None:
            del held.holds[gone]
        told = told_of(held, source, lambda _: None, 100.0)
        assert (told.state, told.epoch) == (state, 3)


async def test_a_batch_in_hand_for_long_is_told_with_its_handler(source: RecordSource) -> None:
    """The first question about a partition that stands still is whose code holds it."""
    held = holding(in_hand_since=10.0)
    assert told_of(held, source, lambda _: "shop.charge", 10.0 + SLOW_SECONDS).state is State.MOVING
    told = told_of(held, source, lambda _: "shop.charge", 11.0 + SLOW_SECONDS)
    assert (told.state, told.since, told.detail) == (State.SLOW, 10.0, "shop.charge, in a batch from offset 40")


async def test_a_batch_that_waits_is_told_with_its_error_and_its_first_failure(source: RecordSource) -> None:
    """How long it has been failing counts from the first try, not from the last."""
    held = holding()
    batch = batch_of(held, tries=2)
    held.wait(batch, "TimeoutError: no answer", now=10.0, delay=1.0)
    held.wait(batch, "TimeoutError: no answer", now=12.0, delay=2.0)
    told = told_of(held, source, lambda _: None, 20.0)
    assert (told.state, told.since) == (State.WAITING, 10.0)
    assert told.detail == "try 2 failed at offset 40: TimeoutError: no answer"


def app(**scope: str) -> App:
    topics = [Topic(name, format=Json(), envelope=CloudEvents(), scope=ScopeFields(**scope)) for name in ("a", "b")]
    jobs = [
        ConsumerJob(code=code, topics=topics, unlisted="skip", runbook="-", events=[on("made", dict, lambda _: None)])
        for code in ("ledger", "search")
    ]
    return App(service="shop", owner="tests", jobs=jobs, handlers=[handle(str, _nothing)])


async def _nothing(command: str, ctx: Any) -> None:
    return None


@pytest.mark.parametrize(
    "words, complaint",
    [
        ({}, "name a job, or say --all"),
        ({"code": "ledger", "all_jobs": True}, "name a job, or say --all"),
        ({"code": "nobody"}, "no job 'nobody'"),
        ({"code": "ledger", "place": "three"}, "'three' is neither a number nor TOPIC:NUMBER"),
        ({"code": "ledger", "place": "-1"}, "neither a number"),
        ({"code": "ledger", "place": "c:1"}, "does not read topic 'c'; it reads a, b"),
        ({"all_jobs": True, "place": "1"}, "neither --tenant nor --all"),
        ({"code": "ledger", "place": "1", "tenant": "acme"}, "neither --tenant nor --all"),
        ({"code": "ledger", "tenant": ""}, "needs a tenant's name"),
    ],
)
def test_words_that_mean_no_part_of_a_job_are_refused_with_the_remedy(words: dict[str, Any], complaint: str) -> None:
    """A pause that silently pauses nothing is found out when it is too late."""
    with pytest.raises(Misconfigured, match=complaint):
        select(app(tenant="tenantid"), words.pop("code", None), **words)


def test_a_tenant_that_no_topic_tells_cannot_be_paused() -> None:
    """None of its events would ever be recognized."""
    with pytest.raises(Misconfigured, match="ScopeFields"):
        select(app(), "ledger", tenant="acme")


def test_a_partition_that_a_job_has_not_is_a_typing_error() -> None:
    """30 for 3: the pause would stand and the partition move."""
    meant = select(app(), "ledger", place="a:3")
    meant.require_one_of([TopicPartition("a", 3)])
    meant.require_one_of([])  # it never started: nobody knows
    with pytest.raises(Misconfigured, match=r"no partition a:3; it has a:0, b:3"):
        meant.require_one_of([TopicPartition("a", 0), TopicPartition("b", 3)])


def test_an_intents_sentence_names_who_until_when_and_why() -> None:
    """It is shown wherever the pause is: in the status, in explanations, in the log."""
    assert intent_of(row(until=NOON)).sentence() == "paused by alice until 2026-03-01 12:00:00Z: looking"  # type: ignore[arg-type]
