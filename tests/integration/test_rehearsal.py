"""A rehearsal tells what a replay would come to, on real Postgres, and changes nothing (G8)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from consumers.never_committed import CommittedMeanwhile
from consumers.rehearsal import ONCE, Rehearsal
from consumers.rehearsed import Rehearsed
from dlq.runs import Outcome, RunKind
from projections.memory import MemorySink
from tests.integration.parking_bench import (
    BAD,
    GARBAGE,
    Bench,
    Note,
    Noted,
    make_bench,
    note,
    of_key,
    parking_job,
)
from tests.integration.replay_bench import ReplayBench
from tests.integration.road import MakeRoad
from tidegate import (
    App,
    CloudEvents,
    Context,
    Dependency,
    Event,
    Handler,
    Json,
    ProjectionJob,
    Rejected,
    Topic,
    Upsert,
    handle,
    handle_batch,
    on,
)
from tidegate.jobs.declaration import Job
from tidegate.rehearsing import refuse_outside_calls
from tidegate_kernel.errors import Misconfigured, Reason
from tidegate_kernel.postgres import Pool

K, L, M = b"k", b"l", b"m"


@pytest.fixture
async def bench(make_road: MakeRoad) -> Bench:
    return await make_bench(make_road)


@pytest.fixture
def replays(pool: Pool, database: str) -> ReplayBench:
    bench = ReplayBench(pool, database)
    bench.job = replace(bench.job, retry=ONCE)
    return bench


async def rehearse(replays: ReplayBench, letters: Sequence[UUID] | None = None) -> Rehearsed:
    ledger, hands = await replays._hands(RunKind.REPLAY)
    chosen = await replays.letters() if letters is None else letters
    return await Rehearsal(hands, ledger, chosen, silence_limit=timedelta(seconds=60)).run()


def outcomes(rehearsed: Rehearsed) -> dict[Outcome, int]:
    return {outcome: letters for outcome, letters in rehearsed.outcomes.items() if letters}


async def lenient(command: Note, ctx: Context[None]) -> None:
    """The mended handler; also publishes, and takes a number of a sequence."""
    await ctx.db.execute("INSERT INTO effect (id, n) VALUES ($1, $2)", command.id, command.n)
    ctx.publish("told", {"id": command.id})


def failing_for(*ids: str, error: type[Exception] = Rejected) -> list[Handler]:
    async def some_fail(command: Note, ctx: Context[None]) -> None:
        await lenient(command, ctx)
        if command.id in ids:
            raise error(f"not {command.id}")

    return [handle(Note, some_fail)]


async def everything(pool: Pool) -> dict[str, list[str]]:
    """All rows of all tables. A job's presence and its upkeep are nobody's here."""
    tables = await pool.fetch(
        "SELECT table_schema || '.' || table_name AS name FROM information_schema.tables "
        "WHERE table_schema IN ('tidegate', 'public') AND table_type = 'BASE TABLE' ORDER BY 1"
    )
    return {
        row["name"]: [r[0] for r in await pool.fetch(f"SELECT t::text FROM {row['name']} AS t ORDER BY 1")]
        for row in tables
    }


async def test_a_mended_handler_would_pass_and_nothing_is_changed(
    bench: Bench, pool: Pool, replays: ReplayBench
) -> None:
    """G8: whoever reads the answer has moved nothing: no claim, no letter, no parked event, no outbox, no effect."""
    await bench.settle([of_key(0, K, BAD), of_key(1, K), of_key(2, L, GARBAGE), of_key(3, L), of_key(4, None, BAD)])
    await pool.execute("UPDATE tidegate.dead_letter SET value = '{\"n\":1}' WHERE value = $1", GARBAGE)
    replays.handlers = [handle(Note, lenient)]
    before = await everything(pool)

    rehearsed = await rehearse(replays)

    assert outcomes(rehearsed) == {Outcome.RESOLVED: 3}
    assert (rehearsed.passed, rehearsed.failed, rehearsed.failures) == (2, 0, {})
    assert await everything(pool) == before
    assert len(before) > 20, "the tables were not found"


async def test_what_would_still_fail_is_grouped_with_a_sample(bench: Bench, pool: Pool, replays: ReplayBench) -> None:
    """The new errors say what is still to be mended; the old ones are in the letters."""
    await bench.settle([of_key(n, b"k%d" % n, BAD) for n in range(5)])
    replays.handlers = [*failing_for("e1", "e3", error=KeyError)]
    before = await everything(pool)

    rehearsed = await rehearse(replays)

    assert outcomes(rehearsed) == {Outcome.RESOLVED: 3, Outcome.FAILED: 2}
    (failure,) = rehearsed.failures.values()
    assert (failure.reason, failure.cause.error_class, failure.letters) == (Reason.HANDLER_FAILED, "KeyError", 2)
    assert failure.sample == (await replays.letters())[1]
    assert failure.handler.endswith("some_fail")
    assert "e1" not in failure.cause.message
    assert await everything(pool) == before


async def test_parked_events_are_rehearsed_as_if_their_letter_had_passed(
    bench: Bench, pool: Pool, replays: ReplayBench
) -> None:
    """They see what the letter's handler has written, and stop at the first failure, as a replay does."""

    async def after_the_first(command: Note, ctx: Context[None]) -> None:
        if command.id != "e0" and await ctx.db.fetchval("SELECT count(*) FROM effect WHERE id = 'e0'") == 0:
            raise Rejected("the first is missing")
        await lenient(command, ctx)
        if command.id == "e2":
            raise Rejected("not this one")

    await bench.settle([of_key(0, K, BAD), of_key(1, K), of_key(2, K), of_key(3, K)])
    replays.handlers = [handle(Note, after_the_first)]

    rehearsed = await rehearse(replays)

    assert outcomes(rehearsed) == {Outcome.RESOLVED: 1}
    assert (rehearsed.passed, rehearsed.failed) == (1, 1)
    (failure,) = rehearsed.failures.values()
    assert (failure.parked, failure.letters, failure.sample, failure.place) == (1, 0, None, "orders:0:2")
    assert await bench.effects() == []


async def test_letters_behind_a_failure_or_one_that_is_not_chosen_are_not_tried(
    bench: Bench, replays: ReplayBench
) -> None:
    """G4: nothing is tried out of order, so nothing is told that a replay would not come to."""
    await bench.settle([of_key(0, K, BAD), of_key(1, L, BAD)])
    await bench.settle([of_key(2, K, GARBAGE), of_key(3, L, GARBAGE)])
    replays.handlers = failing_for("e0")
    letters = await replays.letters()

    assert outcomes(await rehearse(replays)) == {Outcome.FAILED: 2, Outcome.RESOLVED: 1, Outcome.BEHIND: 1}
    assert outcomes(await rehearse(replays, letters[2:])) == {Outcome.BEHIND: 2}


async def test_a_replay_comes_to_what_was_rehearsed(bench: Bench, replays: ReplayBench) -> None:
    """An answer that the replay then belies is worse than none: also of repeats, edits and discards."""
    await bench.settle([of_key(n, b"k%d" % n, BAD) for n in range(4)] + [of_key(9, b"k9", GARBAGE, id="e0")])
    await bench.settle([of_key(n + 20, b"k%d" % (n % 6), BAD if n % 2 else None) for n in range(9)])
    await replays.pool.execute("UPDATE tidegate.dead_letter SET value = '{\"n\":1}' WHERE value = $1", GARBAGE)
    await replays.pool.execute(
        """
        INSERT INTO tidegate.correction (job, topic, topic_id, partition, "offset", kind, letter, reason, made_by)
        SELECT job, topic, topic_id, partition, "offset", 'discard', id, '-', '-' FROM tidegate.dead_letter
        WHERE "offset" = 2
        """
    )
    replays.handlers = failing_for("e1", "e22")

    rehearsed = await rehearse(replays)
    replayed = await replays.replay()

    assert outcomes(rehearsed) == replayed
    assert set(replayed) >= {Outcome.RESOLVED, Outcome.FAILED, Outcome.ALREADY_PROCESSED, Outcome.DISCARDED}


async def test_handlers_of_lists_are_rehearsed(bench: Bench, replays: ReplayBench) -> None:
    """They are halved until the one at fault is found, as ever."""

    async def all_at_once(commands: Sequence[Note], ctx: Context[None]) -> None:
        for command in commands:
            await lenient(command, ctx)
        if any(command.id == "e2" for command in commands):
            raise Rejected("one of them")

    await bench.settle([of_key(n, None, BAD) for n in range(5)])
    replays.handlers = [handle_batch(Note, all_at_once)]

    assert outcomes(await rehearse(replays)) == {Outcome.RESOLVED: 4, Outcome.FAILED: 1}
    assert await bench.effects() == []


async def test_a_handler_that_breaks_its_connection_fails_alone(bench: Bench, replays: ReplayBench) -> None:
    """It takes the transaction of all others with it; they are rehearsed again without it."""

    async def one_breaks(command: Note, ctx: Context[None]) -> None:
        await lenient(command, ctx)
        if command.id == "e1":
            await ctx.db.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    await bench.settle([of_key(n, b"k%d" % n, BAD) for n in range(3)])
    replays.handlers = [handle(Note, one_breaks)]

    rehearsed = await rehearse(replays)

    assert outcomes(rehearsed) == {Outcome.RESOLVED: 2, Outcome.FAILED: 1}
    assert [failure.letters for failure in rehearsed.failures.values()] == [1]


async def test_a_handler_that_commits_is_told(bench: Bench, replays: ReplayBench) -> None:
    """What it has done is kept: nobody may go on believing that nothing was changed."""

    async def commits(command: Note, ctx: Context[None]) -> None:
        await lenient(command, ctx)
        await ctx.db.raw.execute("COMMIT")

    await bench.settle([of_key(0, K, BAD)])
    replays.handlers = [handle(Note, commits)]

    with pytest.raises(CommittedMeanwhile, match="calls_outside"):
        await rehearse(replays)


async def test_a_live_consumer_is_not_kept_waiting(bench: Bench, replays: ReplayBench) -> None:
    """No key is locked by a rehearsal: a live consumer parks behind its letter meanwhile."""
    reached, may_end = asyncio.Event(), asyncio.Event()

    async def waits(command: Note, ctx: Context[None]) -> None:
        await lenient(command, ctx)
        reached.set()
        await may_end.wait()

    await bench.settle([of_key(0, K, BAD)])
    replays.handlers = [handle(Note, waits)]
    rehearsal = asyncio.create_task(rehearse(replays))
    await asyncio.wait_for(reached.wait(), 20)

    await asyncio.wait_for(bench.settle([of_key(1, K), of_key(2, L)]), 20)

    may_end.set()
    assert outcomes(await rehearsal) == {Outcome.RESOLVED: 1}
    assert (await bench.parked(), await bench.effects()) == (["e1"], ["e2"])


async def test_rows_that_others_hold_are_given_way_to(
    bench: Bench, pool: Pool, replays: ReplayBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rehearsal waits for nobody for long: it tells that it could not, and holds up no queue of waiters."""
    monkeypatch.setattr("consumers.rehearsal._LONGEST_WAIT", timedelta(milliseconds=50))

    async def locks(command: Note, ctx: Context[None]) -> None:
        await ctx.db.execute("SELECT n FROM held FOR UPDATE")

    await pool.execute("CREATE TABLE held AS SELECT 1 AS n")
    await bench.settle([of_key(0, K, BAD)])
    replays.handlers = [handle(Note, locks)]

    async with pool.acquire() as holder, holder.transaction():
        await holder.execute("SELECT n FROM held FOR UPDATE")
        rehearsed = await rehearse(replays)

    (failure,) = rehearsed.failures.values()
    assert (failure.reason, failure.cause.error_class.rpartition(".")[2]) == (
        Reason.RETRIES_EXHAUSTED,
        "LockNotAvailableError",
    )


async def test_a_projection_is_rehearsed_without_writing(make_road: MakeRoad, pool: Pool, database: str) -> None:
    """The sink gets nothing, not even what would pass."""
    sink, fails = MemorySink(), {0, 1}

    def document(event: Event[Noted]) -> Upsert:
        if event.data.n in fails:
            raise KeyError(event.data.n)
        return Upsert(event.id, 1, {"n": event.data.n})

    await sink.prepare()
    job = ProjectionJob(
        code="search",
        topics=[Topic("orders", format=Json(), envelope=CloudEvents())],
        unlisted="skip",
        runbook="-",
        events=[on("noted", Noted, document)],
        sink=sink,
        freshness_sla=timedelta(seconds=5),
    )
    road = await make_road(job, sink=sink)
    await road.handle([of_key(0, K, b'{"n":0}'), of_key(1, K, b'{"n":1}'), of_key(2, L, GARBAGE)])
    fails.discard(0)
    before = await everything(pool)

    rehearsed = await rehearse(ReplayBench(pool, database, job, sink=sink))

    assert outcomes(rehearsed) == {Outcome.RESOLVED: 1, Outcome.FAILED: 2}
    assert {failure.cause.error_class for failure in rehearsed.failures.values()} >= {"KeyError"}
    assert len(sink.rows()) == 0
    assert await everything(pool) == before


async def prepared(command: Note, deps: None) -> int:
    return 1


async def with_prepared(command: Note, ctx: Context[None], got: int) -> None:
    await note(command, ctx)


async def answers() -> bool:
    return True


MAIL = Dependency("mail", probe=answers, transient=[OSError])


@pytest.mark.parametrize(
    "handler, job, why",
    [
        (handle(Note, with_prepared, prepare=prepared), {}, "with_prepared calls the outside"),
        (handle(Note, note, calls_outside=True), {}, "note calls the outside"),
        (handle(Note, note), {"needs": ["mail"]}, "it needs mail"),
    ],
)
def test_a_job_that_calls_the_outside_is_refused(handler: Handler, job: dict[str, Any], why: str) -> None:
    """A mail cannot be rolled back."""
    declared = parking_job(**job)
    app = App(service="tests", owner="tests", jobs=[declared], handlers=[handler], dependencies=[MAIL])

    with pytest.raises(Misconfigured, match=why):
        refuse_outside_calls(app, declared)


class Mail:
    """A command of another job."""


async def send(command: Mail, ctx: Context[None]) -> None:
    """Sends."""


def untold(event: Event[Noted]) -> Any:
    return Note(event.id, event.data.n)


def test_handlers_of_other_jobs_are_no_hindrance() -> None:
    """But where a mapping does not tell what it makes, any handler may be meant."""
    told, hidden = parking_job(), replace(parking_job(), code="hidden", events=[on("noted", Noted, untold)])
    handlers = [handle(Note, note), handle(Mail, send, calls_outside=True)]
    jobs: list[Job] = [told, hidden]
    app = App(service="tests", owner="tests", jobs=jobs, handlers=handlers)

    refuse_outside_calls(app, told)
    with pytest.raises(Misconfigured, match="send calls the outside"):
        refuse_outside_calls(app, hidden)
