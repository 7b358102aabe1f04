"""A projection's batch on real Postgres: applied first, then settled; a crash in between costs a repeat."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from projections.memory import MemorySink
from projections.sink import Applied
from tests.integration.road import MakeRoad, Road, SentRecord, record
from tidegate import CloudEvents, Delete, Event, Json, ProjectionJob, Tombstone, Topic, Upsert, VersionHeader, on
from tidegate_kernel.errors import Reason, StaleOwner, Transient
from tidegate_kernel.postgres import Pool


class Noted(msgspec.Struct):
    n: int
    version: int = 1


def document(event: Event[Noted]) -> Upsert:
    return Upsert(str(event.data.n), version=event.data.version, document={"n": event.data.n, "id": event.id})


def removed(tombstone: Tombstone) -> Delete | None:
    version = tombstone.headers.get("version")
    return None if version is None else Delete((tombstone.key or b"").decode(), version=int(version))


ORDERS = Topic("orders", format=Json(), envelope=CloudEvents(), tombstone=removed)


def job(sink: MemorySink, *, project: Any = document, topic: Topic = ORDERS) -> ProjectionJob:
    return ProjectionJob(
        code="shown",
        topics=[topic],
        unlisted="skip",
        runbook="-",
        events=[on("noted", Noted, project)],
        sink=sink,
        freshness_sla=timedelta(seconds=5),
    )


@pytest.fixture
async def sink() -> MemorySink:
    prepared = MemorySink()
    await prepared.prepare()
    return prepared


def note(offset: int, n: int, *, version: int = 1, id: str | None = None) -> SentRecord:
    return record(offset, b'{"n":%d,"version":%d}' % (n, version), id=id)


async def claims(pool: Pool) -> int:
    count: int = await pool.fetchval("SELECT count(*) FROM tidegate.inbox")
    return count


async def test_documents_and_claims_follow_the_batch(make_road: MakeRoad, pool: Pool, sink: MemorySink) -> None:
    """The plain road: writes are in the sink, claims and position in Postgres."""
    road = await make_road(job(sink), sink=sink)

    outcome = await road.handle([note(n, n) for n in range(5)])

    assert (outcome.applied, outcome.duplicates) == (5, 0)
    assert len(sink.rows()) == 5
    assert (await claims(pool), await road.stored_offset()) == (5, 5)


async def test_crash_between_apply_and_settle_repeats_harmlessly(make_road: MakeRoad, sink: MemorySink) -> None:
    """The sink has the batch, Postgres does not: the repeat writes equal versions and settles."""

    class Interrupted(MemorySink):
        crashes = 1

        async def apply(self, encoded: Sequence[Any]) -> Applied:
            applied = await super().apply(encoded)
            if self.crashes:
                self.crashes -= 1
                raise Transient("the process died here")
            return applied

    interrupted = Interrupted()
    await interrupted.prepare()
    road = await make_road(job(interrupted), sink=interrupted)
    with pytest.raises(Transient):
        await road.handle([note(0, 1), note(1, 2)])
    assert await road.stored_offset() == 0

    outcome = await road.handle([note(0, 1), note(1, 2)])

    assert (outcome.applied, outcome.duplicates) == (2, 0)
    assert set(interrupted.rows()) == {"1", "2"}


async def test_claims_count_duplicates_but_never_gate_a_write(make_road: MakeRoad, sink: MemorySink) -> None:
    """A claimed event is written again: where the sink lost the document, the repeat brings it back."""
    road = await make_road(job(sink), sink=sink)
    await road.handle([note(0, 1, id="a")])
    emptied = MemorySink()
    await emptied.prepare()
    refilled = await make_road(job(emptied), sink=emptied)
    refilled.position = replace(refilled.position, next_offset=1)

    outcome = await refilled.handle([note(1, 1, id="a")])

    assert outcome.duplicates == 1
    assert set(emptied.rows()) == {"1"}


async def test_bad_events_cost_only_themselves(make_road: MakeRoad, sink: MemorySink) -> None:
    """G6: undecodable, refused by the function, not encodable, refused by the store: four letters, the rest applied."""

    def fussy(event: Event[Noted]) -> Upsert | None:
        if event.data.n == 1:
            raise KeyError("no such thing")
        if event.data.n == 2:
            return Upsert("2", version=-1, document={})
        return document(event)

    refusing = MemorySink(refuse={"3"})
    await refusing.prepare()
    road = await make_road(job(refusing, project=fussy), sink=refusing)
    records = [record(0, b"\xff"), *(note(n, n) for n in range(1, 6))]

    outcome = await road.handle(records)

    assert outcome.applied == 2
    assert set(refusing.rows()) == {"4", "5"}
    letters = {row["offset"]: row["reason"] for row in await road.dead_letters()}
    assert letters == {
        0: Reason.UNDECODABLE,
        1: Reason.PROJECTION_FAILED,
        2: Reason.INVALID_DOCUMENT,
        3: Reason.INVALID_DOCUMENT,
    }


async def test_event_that_failed_before_is_one_letter(make_road: MakeRoad, pool: Pool, sink: MemorySink) -> None:
    """Delivered again at a new offset, an event that is a dead letter already is a duplicate, not a second letter."""

    def failing(event: Event[Noted]) -> Upsert:
        raise ValueError("always")

    road = await make_road(job(sink, project=failing), sink=sink)
    await road.handle([note(0, 1, id="a")])

    outcome = await road.handle([note(1, 1, id="a")])

    assert (outcome.duplicates, len(outcome.failures)) == (1, 0)
    assert len(await road.dead_letters()) == 1


async def test_record_without_a_value_deletes(make_road: MakeRoad, sink: MemorySink) -> None:
    """Case 28: a tombstone is a typed delete, no error and no dead letter; a late older upsert stays dead."""
    road = await make_road(job(sink), sink=sink)
    await road.handle([note(0, 7, version=2)])
    gone = SentRecord(1, None, [("version", b"3")], key=b"7")

    outcome = await road.handle([gone, note(2, 7, version=1, id="late")])

    assert outcome.failures == []
    assert sink.rows() == {}


async def test_tombstone_without_a_version_is_a_dead_letter(make_road: MakeRoad, sink: MemorySink) -> None:
    """Case 29: a delete that cannot be ordered against upserts must not be guessed; the position goes on behind it."""

    def versioned(tombstone: Tombstone) -> Delete:
        return Delete((tombstone.key or b"").decode(), version=int(tombstone.headers["version"] or b""))

    topic = Topic("orders", format=Json(), envelope=CloudEvents(), tombstone=versioned)
    road = await make_road(job(sink, topic=topic), sink=sink)

    await road.handle([SentRecord(0, None, [], key=None)])

    (letter,) = await road.dead_letters()
    assert (letter["key"], letter["value"], letter["reason"]) == (None, None, Reason.NO_VERSION)
    assert await road.stored_offset() == 1


async def test_declared_header_orders_a_delete_among_upserts(make_road: MakeRoad, sink: MemorySink) -> None:
    """Cases 29 and 90: the newer delete deletes, the older one does not, and one that does not say is a dead letter."""

    def gone(tombstone: Tombstone) -> Delete:
        return Delete((tombstone.key or b"").decode(), version=tombstone.version)

    topic = Topic(
        "orders", format=Json(), envelope=CloudEvents(), tombstone=gone, tombstone_version=VersionHeader("version")
    )
    road = await make_road(job(sink, topic=topic), sink=sink)
    deletes = [SentRecord(n, None, [("version", told)], key=key) for n, key, told in
               ((3, b"1", b"9"), (4, b"2", b"4"), (5, b"3", b"soon"))]  # fmt: skip

    await road.handle([*(note(n - 1, n, version=5) for n in (1, 2, 3)), *deletes])

    assert set(sink.rows()) == {"2", "3"}
    assert [(row["offset"], row["reason"]) for row in await road.dead_letters()] == [(5, Reason.NO_VERSION)]


async def test_sink_outage_burns_no_attempt(make_road: MakeRoad, sink: MemorySink) -> None:
    """G5: while the store is away nothing is dead-lettered and the position stays, however often it is tried."""
    road = await make_road(job(sink), sink=sink)
    sink.is_down = True
    for _ in range(30):
        with pytest.raises(Transient):
            await road.handle([note(0, 1)])
    assert await road.dead_letters() == []
    assert await road.stored_offset() == 0
    sink.is_down = False

    outcome = await road.handle([note(0, 1)])

    assert outcome.applied == 1


async def test_late_write_of_a_stale_owner_loses(make_road: MakeRoad, sink: MemorySink) -> None:
    """G9: a zombie may still reach the sink, but its versions are old and its settle fails."""
    stale = await make_road(job(sink), sink=sink)
    owner: Road = await make_road(job(sink), sink=sink)
    await owner.handle([note(0, 1, version=1), note(1, 1, version=2)])

    with pytest.raises(StaleOwner):
        await stale.handle([note(0, 1, version=1)])

    assert sink.rows()["1"]["id"] == "e1"
