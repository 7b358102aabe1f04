"""The plan of a replay: the letters that it would have, and each thing that may surprise, on real Postgres."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest

from dlq.runs import RunKind
from dlq.states import LetterState
from projections.memory import MemorySink
from tests.integration.parking_bench import BAD, GARBAGE, Bench, Note, Noted, make_bench, note, of_key, parking_job
from tests.integration.replay_bench import ReplayBench
from tests.integration.road import MakeRoad
from tidegate import App, CloudEvents, ConsumerJob, Json, ProjectionJob, Topic, Upsert, handle, on
from tidegate.console.letters import LetterFilter
from tidegate.console.replay_hazards import Hazard, HazardCode
from tidegate.console.replay_plan import ReplayPlan, plan_replay
from tidegate.jobs.declaration import Job
from tidegate_kernel.errors import Misconfigured, Reason
from tidegate_kernel.event import Scope
from tidegate_kernel.postgres import Connection, Pool
from tidegate_kernel.queries import load_queries

K, L, M = b"k", b"l", b"m"
_QUERIES = load_queries("tidegate.console")


@pytest.fixture
async def bench(make_road: MakeRoad) -> Bench:
    return await make_bench(make_road)


@pytest.fixture
def replays(pool: Pool, database: str) -> ReplayBench:
    return ReplayBench(pool, database)


async def planned(
    pool: Pool,
    wanted: LetterFilter | Sequence[UUID] | None = None,
    *,
    job: Job | None = None,
    kind: RunKind = RunKind.REPLAY,
    is_forced: bool = False,
    **more: Any,
) -> ReplayPlan:
    job = parking_job() if job is None else job
    app = app_of(job)
    async with pool.acquire() as connection:
        return await plan_replay(
            connection, app, job, LetterFilter() if wanted is None else wanted, kind=kind, is_forced=is_forced, **more
        )


def app_of(job: Job) -> App:
    handlers = [handle(Note, note)] if isinstance(job, ConsumerJob) else []
    return App(service="tests", owner="tests", jobs=[job], handlers=handlers)


def counts(plan: ReplayPlan) -> dict[HazardCode, int]:
    return {hazard.code: hazard.count for hazard in plan.hazards}


def hazard(plan: ReplayPlan, code: HazardCode) -> Hazard:
    (found,) = [each for each in plan.hazards if each.code is code]
    return found


async def test_the_plan_tells_what_would_be_replayed(bench: Bench, pool: Pool, replays: ReplayBench) -> None:
    """Somebody decides by it: how many, of which kinds, since when, a sample of each."""
    await bench.settle([of_key(0, K, BAD), of_key(1, L, BAD), of_key(2, M, GARBAGE), of_key(3, None, BAD)])

    plan = await planned(pool)

    assert sorted(plan.letters) == list(plan.letters) == sorted(await replays.letters())
    assert (plan.keys, plan.all_groups, plan.parked) == (3, 2, 0)
    assert [(group.reason, group.letters) for group in plan.groups] == [("rejected", 3), ("undecodable", 1)]
    assert plan.groups[0].error_class == "tidegate_kernel.errors.Rejected"
    assert plan.groups[0].sample in plan.letters
    assert plan.first_failed_at is not None
    assert plan.first_failed_at <= plan.groups[0].first_failed_at
    assert plan.scopes == [Scope()]
    assert json.loads(msgspec.json.encode(plan))["digest"] == plan.digest


async def test_a_filter_takes_its_letters_and_no_others(bench: Bench, pool: Pool) -> None:
    """The plan has what 'dlq list' shows with the same words."""
    await bench.settle([of_key(0, K, BAD), of_key(1, L, GARBAGE)])

    rejected = await planned(pool, LetterFilter(reason=Reason.REJECTED))
    both = await planned(pool, LetterFilter(states=list(LetterState)))
    none = await planned(pool, LetterFilter(error="no such words"))

    assert (len(rejected.letters), len(both.letters), len(none.letters)) == (1, 2, 0)
    assert none.hazards == []


async def test_the_digest_is_that_of_the_letters_as_they_are(bench: Bench, pool: Pool) -> None:
    """A run is begun by the digest of a plan that somebody has read: it must not be of other letters."""
    await bench.settle([of_key(0, K, BAD), of_key(1, L, BAD)])
    first = await planned(pool)

    assert (await planned(pool, list(reversed(first.letters)))).digest == first.digest
    digests = {first.digest, (await planned(pool, first.letters[:1])).digest}
    for change in ("occurrences = 7", "last_failed_at = last_failed_at + interval '1 second'"):
        await pool.execute(f"UPDATE tidegate.dead_letter SET {change}")
        digests.add((await planned(pool)).digest)
    await edit(pool, first.letters[0])
    digests.add((await planned(pool)).digest)
    assert len(digests) == 5


async def test_what_is_parked_behind_the_letters_is_told(bench: Bench, pool: Pool) -> None:
    """A discard of one letter lets many events act: whoever discards sees how many, and a few of them."""
    await bench.settle([of_key(0, K, BAD), of_key(1, K), of_key(2, K), of_key(3, L)])

    for kind in RunKind:
        plan = await planned(pool, kind=kind)
        assert counts(plan) == {HazardCode.PARKED: 2}
        assert [(each.event_id, each.offset) for each in plan.parked_first] == [("e1", 1), ("e2", 2)]
        assert plan.parked == 2


async def test_events_that_wait_for_no_letter_any_more_are_told_and_are_work(bench: Bench, pool: Pool) -> None:
    """After an erasure, or a run that was cut short: with no letters at all a run still has something to do."""
    await bench.settle([of_key(0, K, BAD), of_key(1, K)])
    await pool.execute("DELETE FROM tidegate.blocking_letter")
    await pool.execute("UPDATE tidegate.dead_letter SET state = 'discarded'")

    plan = await planned(pool)

    assert (plan.letters, counts(plan), plan.is_empty) == ([], {HazardCode.LOOSE: 1}, False)


async def test_whose_events_are_parked_counts_as_scope(bench: Bench, pool: Pool) -> None:
    """An actor limited to a tenant must not set another's events going from behind a letter."""
    await bench.settle([of_key(0, K, BAD), of_key(1, K)])
    await pool.execute("UPDATE tidegate.parked SET tenant = 'acme', brand = 'north'")

    assert (await planned(pool)).scopes == [Scope(), Scope("acme", "north")]


async def test_letters_behind_one_that_is_not_chosen_are_told_with_the_command(
    bench: Bench, pool: Pool, replays: ReplayBench
) -> None:
    """G4: they would end as 'behind', and whoever chose them should know before."""
    await bench.settle([of_key(0, K, BAD)])
    await bench.settle([of_key(1, K, GARBAGE), of_key(2, K)])
    first, second = await replays.letters()

    plan = await planned(pool, [second])

    assert counts(plan) == {HazardCode.HELD: 1, HazardCode.BEHIND: 1, HazardCode.UNCLAIMED: 1}
    assert hazard(plan, HazardCode.BEHIND).remedy.endswith(f"'tidegate dlq replay --letter {first}'")
    assert hazard(plan, HazardCode.BEHIND).sample == first
    assert plan.parked == 0
    assert counts(await planned(pool, [first])) == {HazardCode.HELD: 1}
    assert counts(await planned(pool, [first, second])) == {HazardCode.PARKED: 1, HazardCode.UNCLAIMED: 1}
    await pool.execute("UPDATE tidegate.dead_letter SET state = 'quarantined' WHERE id = $1", first)
    assert hazard(await planned(pool, [second]), HazardCode.BEHIND).remedy.endswith("--force'")


async def test_many_earlier_letters_are_asked_for_by_the_job(bench: Bench, pool: Pool, replays: ReplayBench) -> None:
    """A command with a hundred ids is not a remedy."""
    for n in range(12):
        await bench.settle([of_key(n, K, GARBAGE)])
    *_, last = await replays.letters()

    behind = hazard(await planned(pool, [last], kind=RunKind.DISCARD), HazardCode.BEHIND)

    assert behind.remedy == "include all letters of the job: 'tidegate dlq discard --job notes'"


async def test_an_event_that_also_waits_for_another_key_stays_while_that_is_blocked(
    make_road: MakeRoad, pool: Pool
) -> None:
    """It has two letters before it, and is handled when both are chosen."""
    job = parking_job(order_key=lambda event: event.data.customer)
    bench = await make_bench(make_road, order_key=job.order_key)
    await bench.settle([of_key(0, K, GARBAGE), of_key(1, L, b'{"n":-1,"customer":"x"}')])
    await bench.settle([of_key(2, K, b'{"n":1,"customer":"x"}'), of_key(3, L, b'{"n":1,"customer":"x"}')])
    garbage, bad = await ReplayBench(pool, "", job).letters()

    assert counts(await planned(pool, [bad], job=job)) == {HazardCode.HELD: 2}
    assert counts(await planned(pool, [garbage], job=job)) == {HazardCode.HELD: 2, HazardCode.UNCLAIMED: 1}
    assert counts(await planned(pool, [garbage, bad], job=job)) == {HazardCode.PARKED: 2, HazardCode.UNCLAIMED: 1}


async def test_letters_of_another_run_are_left_out(bench: Bench, pool: Pool, replays: ReplayBench) -> None:
    """Case 58: the second plan says who has them, instead of a conflict that nobody foresaw."""
    await bench.settle([of_key(0, K, BAD), of_key(1, L, BAD)])
    first, second = await replays.letters()
    held = await replays.begin([first])

    for wanted in (None, [first, second]):
        plan = await planned(pool, wanted)
        assert list(plan.letters) == [second]
        assert hazard(plan, HazardCode.REPLAYING).sentence.endswith(f"in the hands of run {held.run}")


async def test_quarantined_letters_need_force(bench: Bench, pool: Pool, replays: ReplayBench) -> None:
    """Case 54: they are named, so that nobody thinks they had been replayed."""
    await bench.settle([of_key(0, K, BAD), of_key(1, L, BAD)])
    first, second = await replays.letters()
    await pool.execute("UPDATE tidegate.dead_letter SET state = 'quarantined' WHERE id = $1", first)

    plain, named = await planned(pool), await planned(pool, [first])
    forced = await planned(pool, is_forced=True)
    only = await planned(pool, LetterFilter(states=[LetterState.QUARANTINED]), is_forced=True)

    assert (list(plain.letters), counts(plain)) == ([second], {HazardCode.QUARANTINED: 1})
    assert hazard(plain, HazardCode.QUARANTINED).remedy == "--force includes them"
    assert (list(named.letters), counts(named)) == ([], {HazardCode.QUARANTINED: 1})
    assert hazard(plain, HazardCode.QUARANTINED).sentence.startswith("1 more letter is left out: quarantined")
    assert hazard(named, HazardCode.QUARANTINED).sentence.startswith("1 letter is left out: quarantined")
    assert (set(forced.letters), counts(forced)) == ({first, second}, {})
    assert list(only.letters) == [first]


async def test_decided_letters_are_left_out(bench: Bench, pool: Pool, replays: ReplayBench) -> None:
    """Case 57: what is done is not done again, and asking for nothing else is a misuse."""
    await bench.settle([of_key(0, K, BAD)])
    letters = await replays.letters()
    await replays.replay(kind=RunKind.DISCARD)

    plan = await planned(pool, letters)

    assert (list(plan.letters), counts(plan)) == ([], {HazardCode.DECIDED: 1})
    assert hazard(plan, HazardCode.DECIDED).sentence == "1 letter is left out: decided about before (1 discarded)"
    with pytest.raises(Misconfigured, match="decided about"):
        await planned(pool, LetterFilter(states=[LetterState.DISCARDED]))


async def test_a_job_that_lets_later_events_pass_is_told(make_road: MakeRoad, pool: Pool) -> None:
    """Case 60, order="skip": nothing waits, so a replay puts an old event after newer ones."""
    bench = await make_bench(make_road, order="skip")
    await bench.settle([of_key(0, K, BAD), of_key(1, None, BAD)])

    assert counts(await planned(pool, job=parking_job(order="skip"))) == {HazardCode.LATER_PASSED: 1}
    assert counts(await planned(pool, job=parking_job(order="skip"), kind=RunKind.DISCARD)) == {}


async def test_a_projections_letters_may_be_superseded(make_road: MakeRoad, pool: Pool) -> None:
    """Case 60: the newest version of a document stays, whatever is replayed."""
    sink = MemorySink()
    job = ProjectionJob(
        code="search",
        topics=[Topic("orders", format=Json(), envelope=CloudEvents())],
        unlisted="skip",
        runbook="-",
        events=[on("noted", Noted, lambda event: Upsert(event.id, 1, {}))],
        sink=sink,
        freshness_sla=timedelta(seconds=5),
    )
    await (await make_road(job, sink=sink)).handle([of_key(0, K, GARBAGE)])

    assert counts(await planned(pool, job=job))[HazardCode.NEWEST_WINS] == 1


async def test_letters_past_the_horizon_are_told_apart_by_their_claims(
    bench: Bench, pool: Pool, replays: ReplayBench
) -> None:
    """G2 ends at the horizon: a forgotten claim may mean a doubled effect; a younger one means it was handled."""
    await bench.settle([of_key(n, b"k%d" % n, BAD) for n in range(4)])
    one, two, three, _ = await replays.letters()
    await pool.execute("UPDATE tidegate.job SET claims_since = '2026-01-10'")
    await pool.execute(
        "UPDATE tidegate.dead_letter SET first_failed_at = '2026-01-01T12:00Z' WHERE id = ANY($1)", [one, two, three]
    )
    old = "SELECT FROM tidegate.dead_letter d WHERE d.id = $1 AND d.claimed_id = i.id AND d.claimed_bucket = i.bucket"
    await pool.execute(f"DELETE FROM tidegate.inbox i WHERE EXISTS ({old})", one)
    await pool.execute(f"UPDATE tidegate.inbox i SET claimed_on = '2026-01-02' WHERE EXISTS ({old})", two)

    plan = await planned(pool)

    assert counts(plan) == {HazardCode.CLAIM_FORGOTTEN: 1, HazardCode.HANDLED_SINCE: 1}
    assert hazard(plan, HazardCode.CLAIM_FORGOTTEN).sample == one
    assert hazard(plan, HazardCode.HANDLED_SINCE).sample == three


async def test_letters_that_are_not_as_they_came_are_told(bench: Bench, pool: Pool, replays: ReplayBench) -> None:
    """Without a payload there is nothing to handle; an edit says something else than the record did."""
    await bench.settle([of_key(n, b"k%d" % n, BAD) for n in range(3)])
    absent, edited, passed_by = await replays.letters()
    await pool.execute("UPDATE tidegate.dead_letter SET has_payload = false WHERE id = $1", absent)
    await edit(pool, edited)
    await edit(pool, passed_by, kind="discard")

    plan = await planned(pool)

    samples = {each.code: (each.count, each.sample) for each in plan.hazards}
    assert samples == {
        HazardCode.NO_PAYLOAD: (1, absent),
        HazardCode.EDITED: (1, edited),
        HazardCode.PASSED_BY: (1, passed_by),
    }
    assert str(absent) in hazard(plan, HazardCode.NO_PAYLOAD).remedy


async def test_letters_of_a_topic_that_is_read_no_more_are_told(bench: Bench, pool: Pool) -> None:
    """Nobody is left who knows how to decode them: they would be refused."""
    await bench.settle([of_key(0, K, BAD)])
    await bench.settle([of_key(0, L, BAD, id="r0")], topic="returns")
    job = parking_job()

    assert counts(await planned(pool, job=replace(job, topics=job.topics[:1]))) == {HazardCode.UNREAD_TOPIC: 1}


async def test_letters_that_were_replayed_before_are_told(bench: Bench, pool: Pool) -> None:
    """Case 54: once more, and some of them are quarantined."""
    await bench.settle([of_key(n, b"k%d" % n, BAD) for n in range(3)])
    await pool.execute('UPDATE tidegate.dead_letter SET replay_count = "offset"')

    assert counts(await planned(pool, most_replays=3)) == {HazardCode.REPLAYED_BEFORE: 2, HazardCode.LAST_TRY: 1}


async def test_what_is_not_the_jobs_is_refused(bench: Bench, pool: Pool) -> None:
    """A letter of another job would be handled by the wrong handlers."""
    with pytest.raises(Misconfigured, match="has no letter"):
        await planned(pool, [uuid4()])
    with pytest.raises(Misconfigured, match="never started"):
        await planned(pool, job=replace(parking_job(), code="other"))


async def test_too_many_letters_are_refused(bench: Bench, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan holds all ids: it says what to do before memory does."""
    monkeypatch.setattr("tidegate.console.replay_plan.MOST_LETTERS", 1)
    await bench.settle([of_key(0, K, BAD), of_key(1, L, BAD)])

    for wanted in (LetterFilter(), [uuid4(), uuid4()]):
        with pytest.raises(Misconfigured, match="take a part of them"):
            await planned(pool, wanted)


async def edit(pool: Pool, letter: UUID, *, kind: str = "edit") -> None:
    await pool.execute(
        """
        INSERT INTO tidegate.correction (job, topic, topic_id, partition, "offset", kind, letter, reason, made_by)
        SELECT job, topic, topic_id, partition, "offset", $2, id, '-', 'anna' FROM tidegate.dead_letter WHERE id = $1
        """,
        letter,
        kind,
    )


@pytest.fixture
async def many(database: str) -> AsyncIterator[Connection]:
    """20,000 letters of 10,000 keys with their claims, 10,000 events parked behind them."""
    connection = await asyncpg.connect(database)
    await connection.execute(
        """
        INSERT INTO tidegate.job (service, code, claim_rule, claims_since)
        VALUES ('tests', 'notes', 'v1', '2026-03-20');
        INSERT INTO tidegate.dead_letter (
            id, job, topic, topic_id, partition, "offset", key, value, reason, error_class, error_message, fingerprint,
            attempts, first_failed_at, last_failed_at, claimed_bucket, claimed_id
        )
        SELECT
            md5(n::text)::uuid, 1, 'orders', '00000000-0000-0000-0000-000000000007', n % 8, n,
            ('key-' || n % 10000)::bytea, convert_to(repeat('x', 300), 'UTF8'), 'rejected', 'Rejected', 'no',
            CASE WHEN n % 66 = 0 THEN 'rare' ELSE 'f' || n % 20 END, 1,
            timestamptz '2026-03-01' + n * interval '1 minute', timestamptz '2026-03-01' + n * interval '1 minute',
            '2026-03-01', md5(n::text)::uuid
        FROM generate_series(1, 20000) AS n;
        INSERT INTO tidegate.inbox (job, bucket, id, claimed_on)
        SELECT 1, d.claimed_bucket, d.claimed_id, '2026-03-01'::date FROM tidegate.dead_letter AS d
        UNION ALL SELECT 1, '1970-01-01', gen_random_uuid(), '2026-03-01' FROM generate_series(1, 5000);
        INSERT INTO tidegate.blocked_key (job, topic, key, turns, parked)
        SELECT 1, 'orders', md5('key-' || n)::uuid, 3, 1 FROM generate_series(0, 9999) AS n;
        INSERT INTO tidegate.blocking_letter (letter, job, topic, key, turn, "offset")
        SELECT md5(n::text)::uuid, 1, 'orders', md5('key-' || n % 10000)::uuid, 1 + n / 10001, n
        FROM generate_series(1, 20000) AS n;
        INSERT INTO tidegate.parked (
            job, topic, order_key, turn, topic_id, partition, "offset", value, event_type, claimed_bucket, claimed_id
        )
        SELECT
            1, 'orders', md5('key-' || n)::uuid, 3, '00000000-0000-0000-0000-000000000007', 0, 200000 + n,
            convert_to(repeat('x', 300), 'UTF8'), 'noted', '2026-03-01', gen_random_uuid()
        FROM generate_series(0, 9999) AS n;
        """
    )
    yield connection
    await connection.close()


async def test_a_plan_for_a_few_letters_reads_no_table_whole(many: Connection) -> None:
    """300 letters of a service that keeps millions are planned as quickly as 300 letters of one that keeps 300."""
    await many.execute("VACUUM ANALYZE")
    rows = await many.fetch("SELECT id FROM tidegate.dead_letter WHERE fingerprint = 'rare'")
    few = [row["id"] for row in rows]
    asked: dict[str, tuple[Any, ...]] = {
        "letters_to_replay": (1, ["dead"], None, "rare", *[None] * 7, 1000),
        "named_letters_to_replay": (1, few),
        "planned_facts": (few, 5, ["orders"]),
        "planned_groups": (few, 100),
        "planned_scopes": (few,),
        "planned_sequences": (1, few, 10),
        "forgotten_claims": (few, datetime(2026, 3, 20, tzinfo=UTC)),
    }

    read_whole = {query: scans for query, arguments in asked.items() if (scans := await _whole(many, query, arguments))}

    assert len(few) == 303
    assert read_whole == {}


async def test_a_plan_needs_no_statistics(many: Connection) -> None:
    """Letters that a bug has made within a minute are planned before Postgres has ever looked at them.

    The time is for a machine that does other things, too: what it finds is a plan that compares each with each.
    """
    await many.execute("SET statement_timeout = '15s'")

    plan = await plan_replay(
        many, app_of(parking_job()), parking_job(), LetterFilter(), kind=RunKind.REPLAY, is_forced=False
    )

    assert (len(plan.letters), plan.keys, plan.parked) == (20_000, 10_000, 10_000)


async def _whole(connection: Connection, query: str, arguments: tuple[Any, ...]) -> list[str]:
    async with connection.transaction(readonly=True):
        await connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
        text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) {_QUERIES[query]}", *arguments)
    large = ("dead_letter", "inbox", "parked", "blocking_letter", "blocked_key")
    return [
        node["Relation Name"]
        for node in _below(json.loads(text)[0]["Plan"])
        if node["Node Type"] == "Seq Scan" and node["Relation Name"].startswith(large)
    ]


def _below(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _below(child)
