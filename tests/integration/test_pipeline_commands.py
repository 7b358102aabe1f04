"""A ConsumerJob's batch on real Postgres: effects, claims, dead letters and position are one."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from consumers.batch import Batch, Outcome
from consumers.positions import Position
from tests.integration.road import TOPIC_ID, MakeRoad, Road, record
from tidegate import (
    CloudEvents,
    ConsumerJob,
    Context,
    Event,
    Json,
    Rejected,
    RetryLater,
    RetryPolicy,
    Topic,
    handle,
    handle_batch,
    on,
)
from tidegate_kernel.errors import Reason, StaleOwner, Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.postgres import Pool

ORDERS = Topic("orders", format=Json(), envelope=CloudEvents())


class Noted(msgspec.Struct):
    n: int
    text: str = ""


@dataclass(frozen=True)
class Note:
    id: str
    n: int
    text: str


def to_note(event: Event[Noted]) -> Note:
    return Note(event.id, event.data.n, event.data.text)


async def note(command: Note, ctx: Context[None]) -> None:
    await ctx.db.execute("INSERT INTO effect (id, n) VALUES ($1, $2)", command.id, command.n)


def job(**more: Any) -> ConsumerJob:
    return ConsumerJob(
        code="notes",
        topics=[ORDERS],
        unlisted="skip",
        runbook="docs/runbooks/notes.md",
        events=[on("noted", Noted, to_note)],
        **more,
    )


async def effects(pool: Pool) -> list[str]:
    return [row["id"] for row in await pool.fetch("SELECT id FROM effect ORDER BY n, id")]


async def claims(pool: Pool) -> int:
    count: int = await pool.fetchval("SELECT count(*) FROM tidegate.inbox")
    return count


async def settle(road: Road, records: Sequence[Any], *, tries: int = 20) -> Outcome:
    """Repeats a batch until it settles, as the loop does, without its pauses."""
    for _ in range(tries):
        try:
            return await road.handle(records)
        except Transient:
            continue
    raise AssertionError(f"not settled after {tries} tries")


async def test_second_delivery_changes_nothing(make_road: MakeRoad, pool: Pool) -> None:
    """Case 75: of a batch with a known id and a repeated one, each event acts once and the position moves on."""
    road = await make_road(job(), [handle(Note, note)])
    await road.handle([record(0, id="m1")])

    outcome = await road.handle([record(1, id="m1"), record(2, id="m2"), record(3, id="m2")])

    assert (outcome.applied, outcome.duplicates) == (1, 2)
    assert await effects(pool) == ["m1", "m2"]
    assert await road.stored_offset() == 4


_SAYS = """
CREATE FUNCTION says() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
    IF NEW.n > 0 THEN RAISE EXCEPTION 'doppelter Schlüsselwert: duplicate key 23505' USING ERRCODE = '{}'; END IF;
    RETURN NEW;
END$$;
CREATE TRIGGER says BEFORE INSERT ON effect FOR EACH ROW EXECUTE FUNCTION says();
"""


@pytest.mark.parametrize(
    "sqlstate, fate",
    [
        ("40P01", None),
        ("57P01", None),
        ("22021", Reason.INVALID_TEXT),
        ("23505", Reason.HANDLER_FAILED),
    ],
)
async def test_an_error_is_judged_by_its_code_in_any_language(
    make_road: MakeRoad, pool: Pool, sqlstate: str, fate: Reason | None
) -> None:
    """Case 75: a server whose messages are in another language, or say something misleading, is understood all the
    same: by SQLSTATE. A collision and a failover are waited out, the rest is the record's own."""
    await pool.execute(_SAYS.format(sqlstate))
    road = await make_road(job(), [handle(Note, note)])
    records = [record(0, b'{"n":0}'), record(1, b'{"n":1}')]
    if fate is None:
        for _ in range(5):
            with pytest.raises(Transient):
                await road.handle(records)
        await pool.execute("DROP TRIGGER says ON effect")

    await settle(road, records)

    assert [row["reason"] for row in await road.dead_letters()] == ([] if fate is None else [fate])
    assert await effects(pool) == (["e0", "e1"] if fate is None else ["e0"])
    assert await road.stored_offset() == 2


async def test_a_full_disk_costs_no_record_an_attempt(make_road: MakeRoad, pool: Pool) -> None:
    """Postgres that has no room left for the handler's table answers every probe: it is waited out all the same."""
    await pool.execute(_SAYS.format("53100"))
    road = await make_road(job(retry=RetryPolicy(attempts=2)), [handle(Note, note)])
    records = [record(0, b'{"n":0}'), record(1, b'{"n":1}')]
    for _ in range(5):
        with pytest.raises(Transient, match="no room"):
            await road.handle(records)
    await pool.execute("DROP TRIGGER says ON effect")

    await settle(road, records)

    assert await road.dead_letters() == []
    assert await effects(pool) == ["e0", "e1"]


_CANCELLED = """
CREATE FUNCTION cancelled() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
    RAISE EXCEPTION 'canceling statement due to statement timeout' USING ERRCODE = '57014';
END$$;
"""


async def test_a_statement_of_ours_that_waits_too_long_is_tried_again(make_road: MakeRoad, pool: Pool) -> None:
    """Somebody's session holds a lock for longer than a statement may wait: the batch waits on, and the job stays a
    member of its group instead of being started anew."""
    await pool.execute(_CANCELLED)
    await pool.execute(
        "CREATE TRIGGER locked BEFORE INSERT ON tidegate.inbox FOR EACH ROW EXECUTE FUNCTION cancelled()"
    )
    road = await make_road(job(), [handle(Note, note)])
    for _ in range(4):
        with pytest.raises(Transient, match="QueryCanceledError"):
            await road.handle([record(0)])
    await pool.execute("DROP TRIGGER locked ON tidegate.inbox")

    await settle(road, [record(0)])

    assert await effects(pool) == ["e0"]
    assert await road.dead_letters() == []


async def test_a_deferred_trigger_that_takes_too_long_blames_its_own_record(make_road: MakeRoad, pool: Pool) -> None:
    """It speaks in our COMMIT, and yet it is the handler's: waited for, it would hold the partition for ever."""
    await pool.execute(_CANCELLED)
    await pool.execute(
        "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW WHEN (NEW.n = 1) EXECUTE FUNCTION cancelled()"
    )
    road = await make_road(job(), [handle(Note, note)])

    await settle(road, [record(n, b'{"n":%d}' % n) for n in range(3)])

    assert await effects(pool) == ["e0", "e2"]
    assert [row["reason"] for row in await road.dead_letters()] == [Reason.HANDLER_FAILED]


async def test_two_consumers_with_one_id_act_once(make_road: MakeRoad, pool: Pool) -> None:
    """Case 77: two transactions claim one id at the same instant; the loser waits and then sees a duplicate."""
    at_work, may_go = asyncio.Event(), asyncio.Event()

    async def slow_note(command: Note, ctx: Context[None]) -> None:
        await note(command, ctx)
        at_work.set()
        await may_go.wait()

    first = await make_road(job(), [handle(Note, slow_note)])
    other = await make_road(job(), [handle(Note, note)])
    await pool.execute(
        "INSERT INTO tidegate.position (job, topic, partition, next_offset, epoch, topic_id) "
        "SELECT job, topic, 1, 0, epoch, topic_id FROM tidegate.position"
    )
    winner = asyncio.create_task(_handle_partition(first, 0, epoch=2))
    await at_work.wait()
    loser = asyncio.create_task(_handle_partition(other, 1, epoch=2))
    await _until_blocked(pool)
    may_go.set()

    outcomes = await asyncio.gather(winner, loser)

    assert [outcome.applied for outcome in outcomes] == [1, 0]
    assert await effects(pool) == ["shared"]


async def test_rolled_back_winner_lets_the_loser_run(make_road: MakeRoad, pool: Pool) -> None:
    """Case 77, other end: a claim that is rolled back never existed, so the waiting consumer handles the event."""
    at_work, may_go = asyncio.Event(), asyncio.Event()

    async def failing_note(command: Note, ctx: Context[None]) -> None:
        at_work.set()
        await may_go.wait()
        raise RetryLater

    first = await make_road(job(), [handle(Note, failing_note)])
    other = await make_road(job(), [handle(Note, note)])
    await pool.execute(
        "INSERT INTO tidegate.position (job, topic, partition, next_offset, epoch, topic_id) "
        "SELECT job, topic, 1, 0, epoch, topic_id FROM tidegate.position"
    )
    winner = asyncio.create_task(_handle_partition(first, 0, epoch=2))
    await at_work.wait()
    loser = asyncio.create_task(_handle_partition(other, 1, epoch=2))
    await _until_blocked(pool)
    may_go.set()

    await asyncio.gather(winner, return_exceptions=True)  # whether it tried again before or after the other is a race
    assert (await loser).applied == 1
    assert await effects(pool) == ["shared"]


async def test_one_invalid_record_costs_only_itself(make_road: MakeRoad, pool: Pool) -> None:
    """Case 47: of a hundred records with one invalid, ninety-nine are applied and one is a dead letter."""
    road = await make_road(job(), [handle(Note, note)])
    records = [record(n, b'{"n":"x"}' if n == 37 else b'{"n":%d}' % n) for n in range(100)]

    outcome = await road.handle(records)

    assert (outcome.applied, len(outcome.failures)) == (99, 1)
    assert len(await effects(pool)) == 99
    letters = await road.dead_letters()
    assert [(row["offset"], row["reason"]) for row in letters] == [(37, Reason.INVALID_EVENT)]


async def test_failure_before_a_success_is_kept(make_road: MakeRoad, pool: Pool) -> None:
    """Case 20: handled, dead letters and duplicates together are all offsets below the position, also when 7 fails."""

    async def fussy(command: Note, ctx: Context[None]) -> None:
        await note(command, ctx)
        if command.n == 7:
            raise ValueError("seven")

    road = await make_road(job(), [handle(Note, fussy)])
    outcome = await settle(road, [record(n, b'{"n":%d}' % n) for n in range(6, 9)])

    assert outcome.applied == 2
    assert await effects(pool) == ["e6", "e8"]
    letters = await road.dead_letters()
    assert [(row["offset"], row["reason"], row["attempts"]) for row in letters] == [(7, Reason.HANDLER_FAILED, 3)]
    assert await road.stored_offset() == 9


async def test_rejected_is_never_retried(make_road: MakeRoad, pool: Pool) -> None:
    """A business no is final: one call in the batch, one alone, then a dead letter, and no effect of its own."""
    calls = 0

    async def refuse(command: Note, ctx: Context[None]) -> None:
        nonlocal calls
        calls += 1
        await note(command, ctx)
        raise Rejected("credit limit")

    road = await make_road(job(), [handle(Note, refuse)])
    outcome = await road.handle([record(0)])

    assert [failure.reason for failure in outcome.failures] == [Reason.REJECTED]
    assert calls == 2
    assert await effects(pool) == []
    assert await claims(pool) == 1, "a dead letter keeps its claim"


async def test_text_postgres_cannot_hold_is_poison(make_road: MakeRoad, pool: Pool) -> None:
    """Case 32: NUL is valid JSON but no Postgres text; the record is a dead letter at once, not retried."""

    async def keep_text(command: Note, ctx: Context[None]) -> None:
        await ctx.db.execute("INSERT INTO effect (id, n) VALUES ($1, 1)", command.text)

    road = await make_road(job(), [handle(Note, keep_text)])
    outcome = await road.handle([record(0, rb'{"n":1,"text":"a\u0000b"}'), record(1, b'{"n":1,"text":"fine"}')])

    assert [failure.reason for failure in outcome.failures] == [Reason.INVALID_TEXT]
    assert await effects(pool) == ["fine"]
    (letter,) = await road.dead_letters()
    assert letter["value"] == rb'{"n":1,"text":"a\u0000b"}'
    assert letter["attempts"] == 1


@pytest.mark.parametrize("error", [asyncpg.DeadlockDetectedError, asyncpg.SerializationError])
async def test_deadlock_is_retried_not_dead_lettered(
    make_road: MakeRoad, pool: Pool, error: type[asyncpg.PostgresError]
) -> None:
    """Case 80: an injected 40P01 or 40001, also while records are tried one by one, is rolled back and repeated."""
    failures = iter([error("at once"), error("one by one")])

    async def unlucky(command: Note, ctx: Context[None]) -> None:
        await note(command, ctx)
        for failure in failures:
            raise failure

    road = await make_road(job(), [handle(Note, unlucky)])
    await settle(road, [record(0), record(1)])

    assert await effects(pool) == ["e0", "e1"]
    assert await road.dead_letters() == []


async def test_collision_repeats_the_batch_as_a_whole(make_road: MakeRoad, pool: Pool) -> None:
    """A deadlock is no record's fault: looking for one by halving would take locks in another order than everybody
    else and collide again, which once made a job crawl at a hundredth of its speed."""
    sizes: list[int] = []

    async def unlucky(commands: Sequence[Note], ctx: Context[None]) -> None:
        sizes.append(len(commands))
        if len(sizes) == 1:
            raise asyncpg.DeadlockDetectedError("injected")
        await ctx.db.executemany("INSERT INTO effect (id, n) VALUES ($1, $2)", [(c.id, c.n) for c in commands])

    road = await make_road(job(), [handle_batch(Note, unlucky)])
    await settle(road, [record(n, b'{"n":%d}' % n) for n in range(64)])

    assert sizes == [64, 64]
    assert len(await effects(pool)) == 64


async def test_collision_while_looking_for_a_bad_record_starts_over(make_road: MakeRoad, pool: Pool) -> None:
    """In isolating mode, too, a deadlock ends the pass; it is nobody's failed attempt."""
    sizes: list[int] = []

    async def unlucky(commands: Sequence[Note], ctx: Context[None]) -> None:
        sizes.append(len(commands))
        if len(sizes) == 3:
            raise asyncpg.DeadlockDetectedError("injected")
        if any(command.n == 13 for command in commands):
            raise Rejected("thirteen")
        await ctx.db.executemany("INSERT INTO effect (id, n) VALUES ($1, $2)", [(c.id, c.n) for c in commands])

    road = await make_road(job(retry=RetryPolicy(attempts=1)), [handle_batch(Note, unlucky)])
    await settle(road, [record(n, b'{"n":%d}' % n) for n in range(32)])

    assert sizes[:4] == [32, 32, 16, 32]
    assert len(await effects(pool)) == 31
    assert [row["reason"] for row in await road.dead_letters()] == [Reason.REJECTED]


async def test_crossed_batches_do_not_deadlock(make_road: MakeRoad, pool: Pool) -> None:
    """Case 80: two lanes claim the same ids in opposite orders, many times; Postgres never has to kill one."""
    road = await make_road(job(), [handle(Note, note)])
    other = await make_road(job(), [handle(Note, note)])
    await pool.execute(
        "INSERT INTO tidegate.position (job, topic, partition, next_offset, epoch, topic_id) "
        "SELECT job, topic, 1, 0, epoch, topic_id FROM tidegate.position"
    )
    before = await pool.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")

    for round_ in range(100):
        ids = [f"{round_}-{n}" for n in range(10)]
        await asyncio.gather(
            _handle_partition(road, 0, epoch=2, ids=ids, first=round_ * 10),
            _handle_partition(other, 1, epoch=2, ids=ids[::-1], first=round_ * 10),
        )

    assert await pool.fetchval("SELECT count(*) FROM effect") == 1000
    after = await pool.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    assert after == before


async def test_what_a_handler_says_is_not_told_while_it_is_retried(make_road: MakeRoad, pool: Pool) -> None:
    """The reason of a wait is logged; an exception's own text may quote the record, so only its class is told."""

    async def fail(command: Note, ctx: Context[None]) -> None:
        raise ValueError("jane@example.org")

    road = await make_road(job(), [handle(Note, fail)])

    with pytest.raises(Transient) as told:
        await road.handle([record(0)])

    assert "ValueError" in str(told.value)
    assert "jane" not in str(told.value)


async def test_handlers_do_not_see_our_tables_first(make_road: MakeRoad, pool: Pool) -> None:
    """The role of the local stack is called like our schema; a handler's unqualified table is still its own."""
    await pool.execute("CREATE TABLE public.position (n bigint)")

    async def place(command: Note, ctx: Context[None]) -> None:
        await ctx.db.execute("INSERT INTO position (n) VALUES ($1)", command.n)

    road = await make_road(job(), [handle(Note, place)])
    await road.handle([record(0)])

    assert await pool.fetchval("SELECT n FROM public.position") == 1


async def test_partial_writes_of_a_failed_handler_vanish(make_road: MakeRoad, pool: Pool) -> None:
    """A handler that wrote and then failed leaves nothing, while its neighbours stay."""

    async def half_done(command: Note, ctx: Context[None]) -> None:
        await note(command, ctx)
        if command.n == 2:
            await ctx.db.execute("SELECT 1 / 0")

    road = await make_road(job(), [handle(Note, half_done)])
    await settle(road, [record(n, b'{"n":%d}' % n) for n in range(4)])

    assert await effects(pool) == ["e0", "e1", "e3"]


async def test_swallowed_database_error_is_the_handlers_own(make_road: MakeRoad, pool: Pool) -> None:
    """A handler that catches a failed statement breaks its transaction: isolating mode finds it, others pass."""

    async def swallow(command: Note, ctx: Context[None]) -> None:
        await note(command, ctx)
        if command.n == 1:
            with contextlib.suppress(asyncpg.DivisionByZeroError):
                await ctx.db.execute("SELECT 1 / 0")

    road = await make_road(job(), [handle(Note, swallow)])
    await settle(road, [record(n, b'{"n":%d}' % n) for n in range(3)])

    assert await effects(pool) == ["e0", "e2"]
    assert [row["offset"] for row in await road.dead_letters()] == [1]


async def test_deferred_constraint_blames_its_own_record(make_road: MakeRoad, pool: Pool) -> None:
    """A constraint that speaks only at commit is checked per record, so the others of the batch are not lost."""
    await pool.execute("CREATE TABLE parent (n bigint PRIMARY KEY); INSERT INTO parent VALUES (0), (2)")
    await pool.execute("ALTER TABLE effect ADD FOREIGN KEY (n) REFERENCES parent (n) DEFERRABLE INITIALLY DEFERRED")
    road = await make_road(job(), [handle(Note, note)])
    await settle(road, [record(n, b'{"n":%d}' % n) for n in range(3)])

    assert await effects(pool) == ["e0", "e2"]
    assert [row["offset"] for row in await road.dead_letters()] == [1]


async def test_transient_to_the_end_is_a_dead_letter(make_road: MakeRoad, pool: Pool) -> None:
    """A record that stays transient while Postgres answers ends as retries_exhausted after the policy's attempts."""

    async def busy(command: Note, ctx: Context[None]) -> None:
        if command.n == 1:
            raise RetryLater(after=0)
        await note(command, ctx)

    road = await make_road(job(retry=RetryPolicy(attempts=3)), [handle(Note, busy)])
    await settle(road, [record(n, b'{"n":%d}' % n) for n in range(3)])

    assert await effects(pool) == ["e0", "e2"]
    (letter,) = await road.dead_letters()
    assert (letter["reason"], letter["attempts"]) == (Reason.RETRIES_EXHAUSTED, 3)


async def test_time_outs_do_not_make_the_first_defect_the_last(make_road: MakeRoad, pool: Pool) -> None:
    """Each class of failure has attempts of its own: a bad minute of a dependency costs nobody those of a defect."""
    failures: list[Exception] = [RetryLater(after=0), RetryLater(after=0), KeyError("n"), KeyError("n")]

    async def unlucky(command: Note, ctx: Context[None]) -> None:
        if failures:
            raise failures.pop(0)
        await note(command, ctx)

    road = await make_road(job(retry=RetryPolicy(attempts=4, unexpected_attempts=3)), [handle(Note, unlucky)])
    await settle(road, [record(0, b'{"n":0}')])

    assert await effects(pool) == ["e0"]
    assert await road.dead_letters() == []


@pytest.mark.parametrize("way", ["terminated", "closed"])
async def test_a_handler_that_breaks_its_connection_costs_its_own_event(
    make_road: MakeRoad, pool: Pool, way: str
) -> None:
    """Its failure hides under that of the transaction: the partition would try the batch again for ever."""

    async def breaks(command: Note, ctx: Context[None]) -> None:
        if command.n == 1 and way == "terminated":
            await ctx.db.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        elif command.n == 1:
            await ctx.db.raw.close()
        await note(command, ctx)

    road = await make_road(job(retry=RetryPolicy(attempts=3)), [handle(Note, breaks)])
    await settle(road, [record(n, b'{"n":%d}' % n) for n in range(3)])

    assert await effects(pool) == ["e0", "e2"]
    (letter,) = await road.dead_letters()
    assert letter["offset"] == 1
    assert letter["reason"] in (Reason.RETRIES_EXHAUSTED, Reason.HANDLER_FAILED)


async def test_handler_over_its_time_is_cut_off(make_road: MakeRoad, pool: Pool) -> None:
    """Case 15: a hanging handler costs its record, not the partition: a dead letter, and its neighbours are applied."""

    async def hang(command: Note, ctx: Context[None]) -> None:
        await note(command, ctx)
        if command.n == 1:
            await ctx.db.execute("SELECT pg_sleep(30)")

    hasty = job(handler_timeout=timedelta(seconds=0.2), retry=RetryPolicy(unexpected_attempts=2))
    road = await make_road(hasty, [handle(Note, hang)])
    await settle(road, [record(n, b'{"n":%d}' % n) for n in range(3)])

    assert await effects(pool) == ["e0", "e2"]
    (letter,) = await road.dead_letters()
    assert letter["reason"] == Reason.HANDLER_FAILED
    assert letter["error_class"].endswith("HandlerTimedOut")


async def test_a_cancellation_that_nobody_asked_for_is_the_handlers_own(make_road: MakeRoad, pool: Pool) -> None:
    """A handler that awaits a task which was cancelled raises CancelledError: taken for a stop, it would end the lane
    in silence, and no other would take over its partitions."""

    async def await_cancelled(command: Note, ctx: Context[None]) -> None:
        await note(command, ctx)
        if command.n == 1:
            task = asyncio.ensure_future(asyncio.sleep(30))
            task.cancel()
            await task

    road = await make_road(job(), [handle(Note, await_cancelled)])
    await settle(road, [record(n, b'{"n":%d}' % n) for n in range(3)])

    assert await effects(pool) == ["e0", "e2"]
    (letter,) = await road.dead_letters()
    assert letter["reason"] == Reason.HANDLER_FAILED
    assert letter["error_class"].endswith("HandlerCancelled")


@pytest.mark.parametrize("raised", [SystemExit(3), BaseExceptionGroup("both", [SystemExit(3), KeyError("n")])])
async def test_a_handler_that_exits_ends_no_process(make_road: MakeRoad, pool: Pool, raised: BaseException) -> None:
    """A library that calls sys.exit would end worker after worker, with all that they have in hand."""

    async def leave(command: Note, ctx: Context[None]) -> None:
        await note(command, ctx)
        if command.n == 1:
            raise raised

    road = await make_road(job(), [handle(Note, leave)])
    await settle(road, [record(n, b'{"n":%d}' % n) for n in range(3)])

    assert await effects(pool) == ["e0", "e2"]
    (letter,) = await road.dead_letters()
    assert letter["error_class"].endswith("HandlerExited")


async def test_batch_handler_is_halved_to_the_bad_record(make_road: MakeRoad, pool: Pool) -> None:
    """G6: one bad record among 64 costs a batch handler O(log n) more calls, not 64."""
    calls = 0

    async def note_all(commands: Sequence[Note], ctx: Context[None]) -> None:
        nonlocal calls
        calls += 1
        if any(command.n == 13 for command in commands):
            raise Rejected("thirteen")
        await ctx.db.executemany("INSERT INTO effect (id, n) VALUES ($1, $2)", [(c.id, c.n) for c in commands])

    road = await make_road(job(), [handle_batch(Note, note_all)])
    outcome = await road.handle([record(n, b'{"n":%d}' % n) for n in range(64)])

    assert (outcome.applied, len(outcome.failures)) == (63, 1)
    assert len(await effects(pool)) == 63
    assert calls <= 2 * 6 + 2


async def test_prepare_that_fails_for_a_duplicate_buries_nothing(make_road: MakeRoad, pool: Pool) -> None:
    """`prepare` runs before the claims are known; an event that was applied long ago must not become a dead letter."""
    fails = False

    async def fetch(command: Note, deps: None) -> int:
        if fails:
            raise Rejected("gone meanwhile")
        return command.n + 100

    async def keep(command: Note, ctx: Context[None], fetched: int) -> None:
        await ctx.db.execute("INSERT INTO effect (id, n) VALUES ($1, $2)", command.id, fetched)

    road = await make_road(job(), [handle(Note, keep, prepare=fetch)])
    await road.handle([record(0, id="m1")])
    fails = True

    outcome = await road.handle([record(1, id="m1"), record(2, id="m2")])

    assert [(f.record.offset, f.reason) for f in outcome.failures] == [(2, Reason.REJECTED)]
    assert (outcome.applied, outcome.duplicates) == (0, 1)
    assert await pool.fetchval("SELECT n FROM effect") == 101


async def test_stale_owner_cannot_settle(make_road: MakeRoad, pool: Pool) -> None:
    """G9: after another process took the partition over, the old owner's batch changes nothing at all."""
    stale = await make_road(job(), [handle(Note, note)])
    owner = await make_road(job(), [handle(Note, note)])

    with pytest.raises(StaleOwner):
        await stale.handle([record(0)])
    await owner.handle([record(0)])

    assert await effects(pool) == ["e0"]


async def test_position_cannot_run_ahead_of_its_effects(make_road: MakeRoad, pool: Pool) -> None:
    """Case 21: with Postgres refusing the write, the stored offset stays; afterwards the row is there once."""
    road = await make_road(job(), [handle(Note, note)])
    await pool.execute("ALTER TABLE effect RENAME TO hidden")
    with pytest.raises(Transient):
        await road.handle([record(0)])
    assert await road.stored_offset() == 0
    assert await claims(pool) == 0
    await pool.execute("ALTER TABLE hidden RENAME TO effect")

    await settle(road, [record(0)])

    assert await effects(pool) == ["e0"]
    assert await road.stored_offset() == 1


async def test_published_event_commits_with_its_cause(make_road: MakeRoad, pool: Pool) -> None:
    """The outbox holds what handlers published if and only if their transaction committed, under the same id again."""

    async def announce(command: Note, ctx: Context[None]) -> None:
        ctx.publish("notes.taken", {"n": command.n}, key=command.id)
        if command.n == 1:
            raise Rejected("not this one")

    road = await make_road(job(), [handle(Note, announce)])
    await road.handle([record(n, b'{"n":%d}' % n) for n in range(3)])

    rows = await pool.fetch("SELECT key FROM tidegate.outbox WHERE kind = 'event' ORDER BY id")
    assert [row["key"] for row in rows] == [b"e0", b"e2"]


@pytest.mark.parametrize(
    "statement",
    [
        *("commit", "SELECT 1; COMMIT", "/* now */ commit", "-- now\nROLLBACK", "\n; end"),
        *("SELECT '--'; COMMIT", "SELECT '/*'; COMMIT; SELECT '*/'", "SELECT E'\\'; '; COMMIT", "SELECT $$;$$; COMMIT"),
    ],
)
async def test_handler_may_not_end_the_transaction(make_road: MakeRoad, pool: Pool, statement: str) -> None:
    """A handler that commits by hand would separate its effects from the claim: the statement is refused."""

    async def commit(command: Note, ctx: Context[None]) -> None:
        await note(command, ctx)
        await ctx.db.execute(statement)

    road = await make_road(job(retry=RetryPolicy(unexpected_attempts=1)), [handle(Note, commit)])
    await settle(road, [record(0)])

    assert await effects(pool) == []
    assert "must not run" in (await road.dead_letters())[0]["error_message"]


_COMMITS_INSIDE = "BEGIN INSERT INTO effect (id, n) VALUES ('inside', 0); COMMIT; END"


@pytest.mark.parametrize("statement", [f"DO $$ {_COMMITS_INSIDE} $$", "CALL commits()"])
async def test_a_block_or_procedure_that_commits_leaves_nothing_behind(
    make_road: MakeRoad, pool: Pool, statement: str
) -> None:
    """Postgres refuses it inside a transaction: the event is a dead letter, nothing of it is applied, its neighbours
    are, and none of them is lost."""
    await pool.execute(f"CREATE PROCEDURE commits() LANGUAGE plpgsql AS $$ {_COMMITS_INSIDE} $$")

    async def commit(command: Note, ctx: Context[None]) -> None:
        await note(command, ctx)
        if command.id == "e1":
            await ctx.db.execute(statement)

    road = await make_road(job(retry=RetryPolicy(unexpected_attempts=1)), [handle(Note, commit)])
    await settle(road, [record(n) for n in range(3)])

    (letter,) = await road.dead_letters()
    assert (letter["offset"], letter["reason"]) == (1, "handler_failed")
    assert await effects(pool) == ["e0", "e2"]
    assert await road.stored_offset() == 3


async def test_a_block_of_code_is_a_statement_like_any_other(make_road: MakeRoad, pool: Pool) -> None:
    """Its END ends no transaction, nor does a text that says so."""

    async def by_block(command: Note, ctx: Context[None]) -> None:
        await ctx.db.execute(
            'DO $$ BEGIN PERFORM 1; END $$; SELECT \'; COMMIT\', "; end" FROM (SELECT 1 AS "; end") AS t'
        )
        await note(command, ctx)

    road = await make_road(job(), [handle(Note, by_block)])
    await settle(road, [record(0)])

    assert await road.dead_letters() == []
    assert await effects(pool) == ["e0"]


async def _handle_partition(
    road: Road, partition: int, *, epoch: int, ids: Sequence[str] = ("shared",), first: int = 0
) -> Outcome:
    records = [replace(record(first + n, id=id_), partition=partition) for n, id_ in enumerate(ids)]
    fence = road.parts.steward.fence(TopicPartition("orders", partition), Position(epoch, first, TOPIC_ID))
    return await road.parts.pipeline.handle(Batch(fence, TOPIC_ID, records, first + len(records)))


async def _until_blocked(pool: Pool) -> None:
    """Returns once some backend of this database waits for a lock of another."""
    async with asyncio.timeout(10):
        while not await pool.fetchval(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
        ):
            await asyncio.sleep(0.01)
