"""Positions that somebody has to move: recognised, named, moved under a pause, taken up by workers that never stop.

Real Kafka and Postgres; the topic's log is shortened, deleted and made anew as operators and retention do it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from uuid import UUID

import asyncpg
import pytest
from aiokafka.admin import NewPartitions

from consumers.lags import lags_of
from consumers.loop import ConsumerLoop
from consumers.obstacle import NO_TOPIC_ID
from consumers.ownership import Hold
from tests.integration.notes import running, until
from tests.integration.offset_bench import ADMIN, OPERATOR, Bench, is_blocked, letters, make_topic, settle
from tidegate.backfilling import BackfillOptions, BackfillStart, run_backfill
from tidegate.console.moves import AcceptGap, Adopt, SetTo, SkipTo
from tidegate.console.offsets import Target
from tidegate.console.stands import show_offsets
from tidegate.stack.names import StackAddresses
from tidegate_kernel.errors import Conflict, Denied, Misconfigured, Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import KafkaSource, open_reader
from tidegate_kernel.kafka_options import consumer_options
from tidegate_kernel.permissions import Actor
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import KafkaSettings

pytestmark = pytest.mark.timeout(150)

MakeBench = Callable[..., Awaitable[Bench]]


@pytest.fixture
def make_bench(pool: Pool, database: str, stack: StackAddresses, unique_name: Callable[[str], str]) -> MakeBench:
    kafka = KafkaSettings(
        bootstrap=stack.kafka_bootstrap, session_timeout=timedelta(seconds=6), heartbeat_interval=timedelta(seconds=1)
    )

    async def make(topics: int = 1) -> Bench:
        # The rows of a parametrized test share the beginning of their names.
        names = [unique_name("offsets") for _ in range(topics)]
        for name in names:
            await make_topic(kafka, name)
        return Bench(pool, database, kafka, names)

    return make


@pytest.fixture
async def bench(make_bench: MakeBench) -> Bench:
    return await make_bench()


# What is in the way is recognised, named, and resolved without a restart.


async def test_a_gap_blocks_until_it_is_accepted_and_what_was_lost_is_kept(bench: Bench) -> None:
    """Case 63: retention removed offsets 3 to 5 unread. Nothing jumps; the live worker goes on where it may, and the
    missing range stands in the database with who gave it up and why."""
    await settle(bench, letters(0, 3), until_offset=3)
    await bench.send(*letters(3, 10))
    await bench.delete_before(6)
    loop = await bench.loop()
    async with running(loop):
        why = await is_blocked(bench, loop)
        assert (
            "offsets 3 to 5 before they were handled; 'tidegate pause notes --reason …', then 'tidegate offsets " in why
        )
        assert f"accept-gap notes {bench.topic}:0 " in why
        assert await bench.position() == 3

        await bench.resolve(AcceptGap(), Target())
        await bench.stands_at(10)

    assert await bench.effects() == letters(0, 3) + letters(6, 10)
    assert await bench.skipped() == [(3, 5, "gap", "anna", "told to")]


async def test_a_position_beyond_the_end_is_another_log_and_waits_for_a_person(bench: Bench) -> None:
    """Case 64: position 1000 with end 5 is no retention, and no lag of minus 995 either."""
    await settle(bench, letters(0, 5), until_offset=5)
    await bench.pool.execute("UPDATE tidegate.position SET next_offset = 1000")
    loop = await bench.loop()
    async with running(loop):
        why = await is_blocked(bench, loop)
        assert "position 1000 lies beyond the log's end 5" in why
        assert f"'tidegate offsets adopt notes {bench.topic}:0 " in why

        await bench.resolve(Adopt())
        await bench.stands_at(5)

    assert await bench.effects() == letters(0, 5), "read again from the log's start, and known"


async def test_a_re_created_topic_with_offsets_that_look_valid_is_noticed_and_read_whole(bench: Bench) -> None:
    """Case 65: offsets 0 to 9 of the old topic were handled; the new one has 15 records, so position 10 looks fine.
    Its first ten are other events: they are handled and not taken for the old ones."""
    await settle(bench, letters(0, 10), until_offset=10)
    await bench.recreate()
    await bench.send(*letters(20, 35))
    loop = await bench.loop()
    async with running(loop):
        why = await is_blocked(bench, loop)
        assert "re-created" in why
        assert f"'tidegate offsets adopt notes {bench.topic}:0 " in why
        assert await bench.position() == 10
        assert loop.source is not None
        assert [each.is_blocked for each in lags_of(loop.holdings, loop.source, loop.clock.now())] == [True]

        await bench.resolve(Adopt(), Target(bench.topic))
        await bench.stands_at(15)

    assert await bench.effects() == letters(0, 10) + letters(20, 35)
    assert await bench.skipped() == []


async def test_one_id_in_two_topics_acts_once_and_equal_places_are_two_events(make_bench: MakeBench) -> None:
    """Case 66: the inbox knows an event by its id wherever it stands, also at another offset of a mirrored topic, and
    one without an id by topic, partition and offset: neither is taken for the other."""
    bench = await make_bench(2)
    original, mirror = bench.topics
    await bench.send("shared", ids=True, topic=original)
    await bench.send("original at 1", topic=original)
    await bench.send("mirror at 0", "mirror at 1", topic=mirror)
    await bench.send("shared", ids=True, topic=mirror)
    loop = await bench.loop()
    async with running(loop):
        await bench.stands_at(2, topic=original)
        await bench.stands_at(3, topic=mirror)

    assert await bench.effects() == ["mirror at 0", "mirror at 1", "original at 1", "shared"]
    assert loop.meter.tally.duplicates == 1


async def test_a_group_whose_offsets_expired_resumes_from_our_row(bench: Bench) -> None:
    """Case 25: Kafka's group knows nothing of us any more (as a group that never committed); our row says 30."""
    await settle(bench, letters(0, 30), until_offset=30)
    await bench.send(*letters(30, 35))
    loop = await bench.loop(group="expired")
    async with running(loop):
        await bench.stands_at(35)

    assert loop.meter.tally.records == 5, "neither from the end nor all of it again"
    assert await bench.effects() == letters(0, 35)


async def test_a_partition_added_while_nobody_ran_begins_at_its_log_s_start(bench: Bench) -> None:
    """What was produced into it before we knew of it is part of the job; the client alone would begin at its end."""
    await settle(bench, letters(0, 2), until_offset=2)
    await add_partition(bench)
    await bench.send(*letters(2, 5), partition=1)
    async with running(await bench.loop()):
        await bench.stands_at(3, partition=1)

    assert await bench.effects() == letters(0, 5)


async def test_a_partition_added_under_a_running_worker_begins_at_its_log_s_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noticed with the client's next look at the topic, half a minute later; what came until then is not lost."""
    options = partial(consumer_options, bench.kafka)
    assert options(group=None)["metadata_max_age_ms"] == 30_000, "here it is a second"
    monkeypatch.setattr(
        "tidegate_kernel.kafka.consumer_options",
        lambda _, *, group: {**options(group=group), "metadata_max_age_ms": 1_000},
    )
    await bench.send(*letters(0, 2))
    async with running(await bench.loop()):
        await bench.stands_at(2)
        await add_partition(bench)
        await bench.send(*letters(2, 5), partition=1)

        async def begun() -> bool:
            return await bench.position(1) == 3

        async with asyncio.timeout(90):
            while not await begun():
                await asyncio.sleep(0.2)

    assert await bench.effects() == letters(0, 5)


async def add_partition(bench: Bench) -> None:
    async with bench.admin() as admin:
        await admin.create_partitions({bench.topic: NewPartitions(2, None)})
    async with open_reader(bench.kafka) as reader:
        while len(await reader.partitions_of(bench.topic)) < 2:
            await asyncio.sleep(0.05)


# Moving it by hand.


async def test_skipped_records_are_not_read_and_their_range_is_kept(bench: Bench) -> None:
    """G1: the worker lives through it and resumes behind the range, which says who gave it up and why."""
    await bench.send(*letters(0, 2))
    loop = await bench.loop()
    async with running(loop):
        await bench.stands_at(2)
        await bench.pause()
        await until(partial(_rests, loop))
        await bench.send(*letters(2, 8))
        await bench.move(await bench.plan(SkipTo(6)), OPERATOR, reason="import of the wrong file")
        await bench.resume()
        await bench.stands_at(8)

    assert await bench.effects() == letters(0, 2) + letters(6, 8)
    assert await bench.skipped() == [(2, 5, "skip", "olaf", "import of the wrong file")]


async def _rests(loop: ConsumerLoop) -> bool:
    return all(Hold.PAUSED in held.holds for held in loop.holdings.all())


async def test_going_back_reads_again_and_claims_drop_what_they_know(bench: Bench) -> None:
    """A worker that is caught up takes the position anew although no new record comes; nothing acts twice."""
    await bench.send(*letters(0, 5))
    loop = await bench.loop()
    async with running(loop):
        await bench.stands_at(5)
        plan = await bench.plan(SetTo(2))
        await bench.resolve(SetTo(2))

        async def read_again() -> bool:
            return loop.meter.tally.duplicates == 3

        await until(read_again)
        await bench.stands_at(5)

    assert "offsets 2 to 4 are read again" in plan.moves[0].warning
    assert await bench.effects() == letters(0, 5)
    assert await bench.skipped() == []


async def test_a_move_is_audited_with_what_it_moved(bench: Bench) -> None:
    """Who did it before me, and what exactly?"""
    await settle(bench, letters(0, 5), until_offset=5)
    await bench.resolve(SetTo(2))

    row = await bench.pool.fetchrow(
        "SELECT actor, action, target, reason, parameters, outcome FROM tidegate.audit WHERE action = 'offsets:set'"
    )
    assert row is not None
    assert (row["actor"], row["outcome"], row["reason"]) == ("anna", "done", "told to")
    assert row["target"] == f"{bench.topic}.notes"
    assert f"{bench.topic}:0 5 -> 2" in str(row["parameters"])


@pytest.mark.parametrize(
    "case, actor, reason, words",
    [
        ("not paused", ADMIN, "told to", "run 'tidegate pause notes --partition"),
        ("expired pause", ADMIN, "told to", "is not paused"),
        ("pause of a tenant", ADMIN, "told to", "is not paused"),
        ("flood", ADMIN, "told to", "is not paused"),
        ("paused", ADMIN, " ", "refused without a reason"),
        ("paused", OPERATOR, "told to", "role admin"),
        ("paused", Actor("nobody"), "told to", "TIDEGATE_TOKEN"),
    ],
)
async def test_a_move_that_may_not_be_made_changes_nothing_and_is_audited(
    bench: Bench, case: str, actor: Actor, reason: str, words: str
) -> None:
    """Without a standing pause a worker may be at work there; without permission or a reason it is not somebody's to
    decide."""
    await settle(bench, letters(0, 5), until_offset=5)
    plan = await bench.plan(SetTo(2))
    await _arrange(bench, case)

    with pytest.raises(Denied, match=words):
        await bench.move(plan, actor, reason=reason)

    assert await bench.position() == 5
    outcomes = await bench.pool.fetch("SELECT outcome FROM tidegate.audit WHERE action = 'offsets:set'")
    assert [row["outcome"] for row in outcomes] == ["denied"]


async def _arrange(bench: Bench, case: str) -> None:
    values = {
        "not paused": None,
        "paused": "'pause', NULL, NULL",
        "expired pause": "'pause', NULL, now() - interval '1 second'",
        "pause of a tenant": "'pause', 'acme', NULL",
        "flood": "'flood', NULL, NULL",
    }[case]
    if values is not None:
        await bench.pool.execute(
            "INSERT INTO tidegate.intent (job, reason, actor, kind, tenant, until) "
            f"SELECT id, 'test', 'tests', {values} FROM tidegate.job"
        )


async def test_a_pause_of_another_partition_does_not_do(bench: Bench) -> None:
    """All or nothing: one partition that is at work keeps all of them where they are."""
    await settle(bench, letters(0, 5), until_offset=5)
    await bench.pool.execute(
        "INSERT INTO tidegate.intent (job, kind, topic, partition, reason, actor) "
        "SELECT id, 'pause', $1, 1, 'test', 'tests' FROM tidegate.job",
        bench.topic,
    )

    plan = await bench.plan(SetTo(2))

    assert plan.unpaused == [TopicPartition(bench.topic, 0)]
    with pytest.raises(Denied):
        await bench.move(plan)
    assert await bench.position() == 5


async def test_a_position_that_moved_since_the_plan_is_not_moved(bench: Bench) -> None:
    """What is done is what was shown, or nothing."""
    await settle(bench, letters(0, 5), until_offset=5)
    await bench.pause()
    plan = await bench.plan(SetTo(2))
    await bench.pool.execute("UPDATE tidegate.position SET next_offset = 4")

    with pytest.raises(Conflict, match="look at the new plan"):
        await bench.move(plan)

    assert await bench.position() == 4


async def test_a_live_owner_s_batch_settles_or_fails_but_is_never_torn(bench: Bench, database: str) -> None:
    """The row is locked before it is moved: an owner in the middle of its settle is waited for, and not for ever."""
    await settle(bench, letters(0, 5), until_offset=5)
    await bench.pause()
    plan = await bench.plan(SetTo(2))
    owner = await asyncpg.connect(database)
    try:
        await owner.execute("BEGIN")
        await owner.execute("SELECT FROM tidegate.position FOR UPDATE")

        with pytest.raises(Transient, match="in the middle of a batch"):
            await bench.move(plan)
    finally:
        await owner.close()
    assert await bench.position() == 5


async def test_moved_position_forgets_who_died_there(bench: Bench) -> None:
    """Deaths and attempts belong to the record where they happened: the next owner need not be cautious for them."""
    await settle(bench, letters(0, 5), until_offset=5)
    await bench.pool.execute(
        "UPDATE tidegate.position SET owner = 'dead', taken_offset = 5, deaths = 2, attempt_offset = 5, attempts = 1"
    )
    await bench.resolve(SetTo(2))

    row = await bench.pool.fetchrow(
        "SELECT owner, taken_offset, deaths, attempt_offset, attempts FROM tidegate.position"
    )

    assert row is not None
    assert tuple(row.values()) == (None, None, 0, None, 0)


async def test_a_partition_without_a_position_cannot_be_moved(bench: Bench) -> None:
    """The first start writes it at the log's start; before that there is nothing to move."""
    with pytest.raises(Misconfigured, match="has no position in"):
        await bench.plan(SetTo(0))


async def test_nothing_to_accept_is_said(bench: Bench) -> None:
    """`--all` that finds nothing must not look like done."""
    await settle(bench, letters(0, 5), until_offset=5)

    with pytest.raises(Misconfigured, match="nothing in any partition needs it"):
        await bench.plan(AcceptGap(), Target())


async def test_what_is_shown_names_obstacle_and_skipped_ranges(bench: Bench) -> None:
    """`offsets show` is where everybody looks first."""
    await settle(bench, letters(0, 5), until_offset=5)
    assert await bench.obstacle() == ""
    await bench.send(*letters(5, 9))
    await bench.pause()
    await bench.move(await bench.plan(SkipTo(7)))
    await bench.delete_before(8)

    [shown] = await show_offsets(bench.app, bench.settings, bench.app.jobs[0])

    assert (shown.position, shown.log_start, shown.log_end) == (7, 8, 9)
    assert "accept-gap" in await bench.obstacle()
    assert [(each.first_offset, each.last_offset, each.cause) for each in shown.skipped] == [(5, 6, "skip")]


# Brokers before 2.8 have no topic ids.


async def test_without_topic_ids_an_incarnation_keeps_two_topics_apart(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 66, where Kafka cannot tell: a log shorter than the position is adopted under the next number, its events
    without ids are new although their coordinates were seen, and a backfill knows them by that same number."""

    async def no_id(*_: object) -> UUID:
        return NO_TOPIC_ID

    monkeypatch.setattr(KafkaSource, "topic_id", no_id)
    await settle(bench, letters(0, 10), until_offset=10)
    await bench.recreate()
    await bench.send(*letters(20, 24))
    loop = await bench.loop()
    async with running(loop):
        assert "beyond the log's end 4" in await is_blocked(bench, loop)
        await bench.resolve(Adopt())
        await bench.send(*letters(24, 34))
        await bench.stands_at(14)

    assert await bench.effects() == letters(0, 10) + letters(20, 34)
    assert await bench.pool.fetchval("SELECT topic_id FROM tidegate.position") == UUID(int=1)
    again = BackfillOptions(BackfillStart(is_beginning=True))
    report = await run_backfill(bench.app, bench.settings, "notes", again, actor=ADMIN, stop=asyncio.Event())
    assert (report.tally.records, report.tally.duplicates) == (14, 14)
    assert await bench.effects() == letters(0, 10) + letters(20, 34)
