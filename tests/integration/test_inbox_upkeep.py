"""Claims past the horizon go, those within it stay, and claims that come in meanwhile do not wait."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta

import asyncpg
import pytest

from inbox import upkeep as upkeep_module
from inbox.days import attach_days, days_past_horizon, drop_day, empty_day
from inbox.identity import CONSTANT_BUCKET
from inbox.store import claim, keep_horizon
from inbox.sweep import Swept, sweep
from inbox.upkeep import InboxUpkeep, upkeep_trouble
from tests.integration.claims import SILENCE_LIMIT, days_of, key, owner, partitions_of, set_today, take
from tidegate.migrations.grants import Duty, grant
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import Fence
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Connection, Pool

# Claims are dated by Postgres itself; the clock of upkeep is the one that is moved.
TODAY = datetime.now(UTC).date()
WEEK, MONTH = timedelta(days=7), timedelta(days=28)
YESTERDAY = TODAY - timedelta(days=1)


@pytest.fixture
async def connection(pool: Pool) -> AsyncIterator[Connection]:
    async with pool.acquire() as opened:
        yield opened


@pytest.fixture
async def weekly(pool: Pool) -> Fence:
    return await owner(pool, horizon=WEEK)


@pytest.fixture
async def monthly(pool: Pool) -> Fence:
    return await owner(pool, "ledger", horizon=MONTH)


def keeper(pool: Pool, holder: str = "worker", metrics: Metrics | None = None) -> InboxUpkeep:
    return InboxUpkeep(pool, SystemClock(), metrics=metrics or Metrics(), holder=holder)


def name(day: date) -> str:
    return f"{day:%Y%m%d}"


async def test_claims_past_the_horizon_go_and_no_others(pool: Pool, connection: Connection, weekly: Fence) -> None:
    """Case 78: the last day of the horizon still counts in full; what is older goes, wherever it stands."""
    await attach_days(connection)
    keys = [key(YESTERDAY), key(CONSTANT_BUCKET), key(date(1999, 1, 1))]
    await take(pool, weekly, keys)

    await set_today(connection, TODAY + WEEK)
    await keeper(pool).round()
    assert await take(pool, weekly, keys) == {0, 1, 2}, "all are remembered for a whole week"

    await set_today(connection, TODAY + WEEK + timedelta(days=1))
    await connection.execute("UPDATE tidegate.inbox_upkeep SET succeeded_at = NULL")
    await keeper(pool).round()
    assert await partitions_of(connection, keys) == [None, None, None]
    assert await connection.fetchval("SELECT claims_since FROM tidegate.job") == TODAY + timedelta(days=1)


async def test_redelivery_after_a_long_stop_changes_nothing(pool: Pool, connection: Connection, weekly: Fence) -> None:
    """Case 78: three days away with upkeep running in other workers; the event comes again and is known."""
    await attach_days(connection)
    known = [key(TODAY), key(CONSTANT_BUCKET)]
    await take(pool, weekly, known)

    for days in range(1, 4):
        await set_today(connection, TODAY + timedelta(days=days))
        await connection.execute("UPDATE tidegate.inbox_upkeep SET succeeded_at = NULL")
        await keeper(pool).round()

    assert await take(pool, weekly, known) == {0, 1}


async def test_day_stays_while_one_job_still_needs_it(
    pool: Pool, connection: Connection, weekly: Fence, monthly: Fence
) -> None:
    """One partition serves all jobs: the shortest horizon must not forget for the longest."""
    await attach_days(connection)
    shared, own = key(YESTERDAY), key(TODAY)
    await take(pool, weekly, [shared, own])
    await take(pool, monthly, [shared])

    await set_today(connection, TODAY + WEEK + timedelta(days=2))
    assert not await empty_day(connection, YESTERDAY), "the ledger needs it"
    assert await empty_day(connection, TODAY), "nobody needs it"
    assert await take(pool, monthly, [shared]) == {0}

    await set_today(connection, TODAY + MONTH + timedelta(days=1))
    assert await empty_day(connection, YESTERDAY)


async def test_job_that_keeps_claims_for_ever_keeps_its_days(pool: Pool, connection: Connection, weekly: Fence) -> None:
    """No horizon stored means for ever: also for jobs whose code nobody runs any more."""
    forever = await owner(pool, "archive", horizon=None)
    await attach_days(connection)
    kept, constant = key(TODAY), key(CONSTANT_BUCKET)
    await take(pool, forever, [kept, constant])
    await take(pool, weekly, [key(TODAY)])

    await set_today(connection, TODAY + timedelta(days=4000))
    await keeper(pool).round()

    assert await take(pool, forever, [kept, constant]) == {0, 1}


async def test_claims_of_an_unknown_job_are_nobodys_to_drop(pool: Pool, connection: Connection, weekly: Fence) -> None:
    """A row whose job is not in the table has no horizon: it stays rather than being forgotten on a guess."""
    await attach_days(connection)
    await connection.execute("INSERT INTO tidegate.inbox (job, bucket, id) VALUES (99, $1, gen_random_uuid())", TODAY)
    await connection.execute(
        "INSERT INTO tidegate.inbox (job, bucket, id) VALUES (99, '1970-01-01', gen_random_uuid())"
    )

    await set_today(connection, TODAY + timedelta(days=4000))
    await keeper(pool).round()

    assert await connection.fetchval("SELECT count(*) FROM tidegate.inbox") == 2


async def test_late_claim_keeps_its_day(pool: Pool, connection: Connection, weekly: Fence) -> None:
    """A backfill claims events of long ago today: its claims count from today, not from the day of their ids."""
    await attach_days(connection)
    old, late = key(TODAY), key(TODAY)
    await take(pool, weekly, [old])
    await take(pool, weekly, [late], on=TODAY + timedelta(days=10))

    await set_today(connection, TODAY + timedelta(days=10))
    assert not await empty_day(connection, TODAY)
    assert await take(pool, weekly, [late]) == {0}


async def test_claim_that_arrives_while_its_day_is_searched_is_not_lost(
    pool: Pool, connection: Connection, weekly: Fence
) -> None:
    """The search needs no lock and takes long; a claim that commits behind it must stop the emptying."""
    await attach_days(connection)
    await take(pool, weekly, [key(TODAY)])
    await set_today(connection, TODAY + WEEK + timedelta(days=1))
    late = key(TODAY)

    assert await connection.fetchval("SELECT tidegate.watch_inbox_day($1)", TODAY)
    # As old as those around it, so that only its being noted can tell.
    await take(pool, weekly, [late], on=TODAY)
    assert not await connection.fetchval("SELECT tidegate.empty_inbox_day($1)", TODAY)

    assert await take(pool, weekly, [late]) == {0}
    await connection.execute("UPDATE tidegate.inbox SET claimed_on = $1", TODAY)
    assert await empty_day(connection, TODAY), "the next time it is in the search's own view"


async def test_no_day_is_emptied_unwatched_or_too_early(pool: Pool, connection: Connection, weekly: Fence) -> None:
    """Whoever calls the functions by hand can do no more than upkeep itself."""
    await attach_days(connection)
    kept = key(TODAY)
    await take(pool, weekly, [kept])

    assert not await connection.fetchval("SELECT tidegate.watch_inbox_day($1)", TODAY), "it is within the horizon"
    await set_today(connection, TODAY + WEEK + timedelta(days=1))
    assert not await connection.fetchval("SELECT tidegate.empty_inbox_day($1)", TODAY), "nobody watches it"
    assert not await connection.fetchval("SELECT tidegate.drop_inbox_day($1)", TODAY), "it is not empty"
    assert not await connection.fetchval("SELECT tidegate.drop_inbox_day($1)", date(1970, 1, 1))
    for part in ("20260101", "default; DROP TABLE tidegate.inbox"):
        assert await connection.fetchval("SELECT removed FROM tidegate.sweep_inbox($1, 1)", part) == 0
    for pages in (None, 0, -1, 1025):
        with pytest.raises(asyncpg.InvalidParameterValueError):
            await connection.fetchval("SELECT removed FROM tidegate.sweep_inbox('default', $1)", pages)
    assert await take(pool, weekly, [kept]) == {0}


async def test_empty_days_are_dropped_and_do_not_come_back(pool: Pool, connection: Connection, weekly: Fence) -> None:
    """A year of upkeep leaves as many tables as a week; a dropped day must not be attached again the next hour."""
    await attach_days(connection)
    await take(pool, weekly, [key(TODAY - timedelta(days=7)), key(YESTERDAY), key(TODAY)])

    for days in range(1, 30):
        await set_today(connection, TODAY + timedelta(days=days))
        await connection.execute("UPDATE tidegate.inbox_upkeep SET succeeded_at = NULL")
        await keeper(pool).round()

    today = TODAY + timedelta(days=29)
    assert await days_of(connection) == [name(today + timedelta(days=n)) for n in range(-7, 8)]


async def test_open_claims_delay_the_drop_not_other_claims(pool: Pool, connection: Connection, weekly: Fence) -> None:
    """Handlers hold claims open for half a minute: upkeep frees the room without waiting for them, puts the drop off,
    and no claim waits longer than its lock time-out."""
    await attach_days(connection)
    await take(pool, weekly, [key(TODAY)])
    other = await owner(pool, partition=1, horizon=WEEK)
    await set_today(connection, TODAY + WEEK + timedelta(days=1))
    longest, claims = 0.0, 0

    async with pool.acquire() as handler, handler.transaction():
        await claim(handler, weekly, [key(TODAY + WEEK)], silence_limit=SILENCE_LIMIT)
        running = asyncio.create_task(keeper(pool).round())
        while not running.done():
            asked = time.monotonic()
            await take(pool, other, [key(TODAY + WEEK), key(CONSTANT_BUCKET)])
            longest, claims = max(longest, time.monotonic() - asked), claims + 1
        await running
        assert name(TODAY) in await days_of(connection), "the partition waits until nobody holds claims"
        assert await connection.fetchval("SELECT count(*) FROM tidegate.inbox WHERE bucket = $1", TODAY) == 0

    assert claims > 3
    assert longest < 10, "the drop's own limit is a tenth of a second; without one it waits for the handler"
    assert await drop_day(connection, TODAY)


async def test_claims_and_a_sweep_of_the_same_rows_never_deadlock(
    pool: Pool, connection: Connection, weekly: Fence
) -> None:
    """Case 80: claims in sorted order and deletes in the order of pages; each may wait for the other, never both."""
    keys = [key(CONSTANT_BUCKET) for _ in range(2000)]
    await take(pool, weekly, keys)
    await set_today(connection, TODAY + WEEK + timedelta(days=1))
    owners = [await owner(pool, partition=n, horizon=WEEK) for n in range(1, 4)]

    async with asyncio.TaskGroup() as tasks:
        sweeping = tasks.create_task(sweep(connection, "constant"))
        claiming = [tasks.create_task(take(pool, fence, keys)) for fence in owners]

    # Who came first knew them still; what was free afterwards was free for exactly one.
    fresh = sum(len(keys) - len(claims.result()) for claims in claiming)
    assert sweeping.result().removed == len(keys)
    assert await connection.fetchval("SELECT count(*) FROM tidegate.inbox") == fresh <= len(keys)


async def test_sweep_reads_a_bounded_number_of_pages_and_goes_on_where_it_was(
    pool: Pool, connection: Connection, weekly: Fence
) -> None:
    """Case 79: the constant part of a busy service has millions of pages: steps are short, and a restart loses none."""
    await connection.execute(
        "INSERT INTO tidegate.inbox (job, bucket, id, claimed_on) SELECT $1, '1970-01-01', gen_random_uuid(), "
        "CASE WHEN n % 10 = 0 THEN $2::date ELSE $3::date END FROM generate_series(1, 30000) AS n",
        weekly.job,
        TODAY,
        TODAY - timedelta(days=30),
    )
    steps: list[Swept] = []
    while not steps or not steps[-1].is_finished:
        steps.append(await sweep(connection, "constant"))

    pages = await connection.fetchval("SELECT pg_relation_size('tidegate.inbox_constant') / 8192")
    assert len(steps) == -(-pages // 64) > 2
    assert max(step.removed for step in steps) < 64 * 200
    assert sum(step.removed for step in steps) == 27000
    assert await connection.fetchval("SELECT oldest FROM tidegate.inbox_sweep WHERE part = 'constant'") == TODAY
    assert await sweep(connection, "constant") == (0, True), "once a day is enough"


async def test_sweep_step_is_a_scan_of_its_own_pages(pool: Pool, connection: Connection, weekly: Fence) -> None:
    """Case 79: planned as a scan of everything, each of the thousands of steps would read the whole part."""
    await connection.execute(
        "INSERT INTO tidegate.inbox (job, bucket, id) "
        "SELECT $1, '1970-01-01', gen_random_uuid() FROM generate_series(1, 50000)",
        weekly.job,
    )
    await connection.execute("ANALYZE")
    async with connection.transaction():
        await connection.execute("SET LOCAL track_functions = 'none'")
        before = await _blocks_read(connection)
        await sweep(connection, "constant")
        after = await _blocks_read(connection)
    # Two looks at 64 pages, and what planning touches.
    assert 100 < after - before < 400


async def _blocks_read(connection: Connection) -> int:
    blocks: int = await connection.fetchval(
        "SELECT pg_stat_get_xact_blocks_fetched('tidegate.inbox_constant'::regclass)"
    )
    return blocks


async def test_one_worker_at_a_time_keeps_the_inbox(pool: Pool, connection: Connection, weekly: Fence) -> None:
    """Twenty workers must not all sweep; one that died in the middle is succeeded after its lease."""
    assert await keeper(pool, "first")._take()
    assert not await keeper(pool, "second")._take()
    await connection.execute("UPDATE tidegate.inbox_upkeep SET lease_until = now() - interval '1 s'")
    assert await keeper(pool, "second")._take()
    await keeper(pool, "second")._end()
    assert not await keeper(pool, "first")._take(), "a round came to its end a moment ago"
    await connection.execute("UPDATE tidegate.inbox_upkeep SET succeeded_at = now() - interval '1 hour'")
    assert await keeper(pool, "first")._take()


async def test_what_stands_in_the_way_is_noted_until_a_round_ends_well(
    pool: Pool, connection: Connection, weekly: Fence
) -> None:
    """An inbox that nobody keeps grows quietly for weeks: the status has to know."""
    await connection.execute("ALTER FUNCTION tidegate.attach_inbox_day(date) RENAME TO somewhere_else")
    await connection.execute(
        "CREATE FUNCTION tidegate.attach_inbox_day(day date) RETURNS boolean LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE lock_not_available; END $$"
    )
    for _ in range(2):
        with pytest.raises(Transient, match="got no partition"):
            await keeper(pool).round()
    state = await connection.fetchrow("SELECT succeeded_at, failing_since, error, holder FROM tidegate.inbox_upkeep")
    assert state is not None
    assert state["failing_since"] is not None
    assert "got no partition" in state["error"]
    assert state["holder"] is None

    await connection.execute("DROP FUNCTION tidegate.attach_inbox_day")
    await connection.execute("ALTER FUNCTION tidegate.somewhere_else(date) RENAME TO attach_inbox_day")
    await keeper(pool).round()
    state = await connection.fetchrow("SELECT succeeded_at, failing_since, error, holder FROM tidegate.inbox_upkeep")
    assert state is not None
    assert (state["failing_since"], state["error"]) == (None, None)
    assert state["succeeded_at"] is not None


@pytest.mark.parametrize(
    "state, told",
    [
        ("succeeded_at = NULL", None),
        ("succeeded_at = now() - interval '2 hours'", None),
        ("failing_since = now() - interval '1 minute', error = 'locks'", None),
        ("failing_since = now() - interval '1 hour', error = 'grant it'", r"has been failing since .* UTC: grant it"),
        ("succeeded_at = now() - interval '2 days'", r"no worker has come to the end of it since .* UTC"),
    ],
)
async def test_status_tells_upkeep_that_fails_for_long(connection: Connection, state: str, told: str | None) -> None:
    """A lock that is in use for a moment is nobody's business; a right that is missing is, and so is silence."""
    await connection.execute(f"UPDATE tidegate.inbox_upkeep SET {state}")
    trouble = await upkeep_trouble(connection)
    assert trouble is None if told is None else re.fullmatch(told, trouble or "")


async def test_numbers_of_the_inbox_are_told(pool: Pool, connection: Connection, weekly: Fence) -> None:
    """Case 79: how many claims each part holds, how old the oldest is, how much room is not free yet."""
    await attach_days(connection)
    metrics = Metrics()
    await take(pool, weekly, [key(TODAY), key(CONSTANT_BUCKET), key(date(1999, 1, 1))], on=TODAY - timedelta(days=3))
    await take(pool, weekly, [key(date(1999, 1, 1))], on=TODAY - timedelta(days=30))

    await keeper(pool, metrics=metrics).round()

    read = metrics.registry.get_sample_value
    assert read("tidegate_inbox_oldest_claim_days", {"part": "default"}) == 3
    assert read("tidegate_inbox_claims_removed_total", {"part": "default"}) == 1
    assert read("tidegate_inbox_partitions", {"part": "days"}) == 15
    assert read("tidegate_inbox_dead_rows", {"part": "default"}) is not None
    assert read("tidegate_inbox_upkeep_succeeded_timestamp_seconds") == pytest.approx(time.time(), abs=60)
    assert (read("tidegate_inbox_upkeep_seconds") or 0) > 0


async def test_worker_with_few_rights_keeps_the_inbox(
    pool: Pool, connection: Connection, database: str, weekly: Fence
) -> None:
    """Workers own no table and may delete no claim: a whole round, attaching to dropping, goes with their grants."""
    await attach_days(connection)
    await take(pool, weekly, [key(TODAY), key(CONSTANT_BUCKET)])
    await set_today(connection, TODAY + timedelta(days=30))
    role = f"worker_{secrets.token_hex(4)}"
    await connection.execute(f"CREATE ROLE {role}")
    await grant(connection, {role: Duty.WORKER})

    async def become(opened: asyncpg.pool.PoolConnectionProxy[asyncpg.Record]) -> None:
        await opened.execute(f"SET ROLE {role}")

    try:
        async with asyncpg.create_pool(database, min_size=0, setup=become) as poor:
            await keeper(poor).round()
    finally:
        await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")

    today = TODAY + timedelta(days=30)
    assert await days_of(connection) == [name(today + timedelta(days=n)) for n in range(-7, 8)]
    assert await connection.fetchval("SELECT count(*) FROM tidegate.inbox") == 0


async def test_horizon_is_stored_in_whole_days(pool: Pool, connection: Connection, weekly: Fence) -> None:
    """Claims carry a day: a horizon of an hour must not become none."""
    for horizon, days in [(timedelta(hours=1), 1), (timedelta(days=2), 2), (timedelta(days=2, seconds=1), 3)]:
        await keep_horizon(connection, weekly.job, horizon)
        assert await connection.fetchval("SELECT horizon_days FROM tidegate.job") == days
    await keep_horizon(connection, weekly.job, None)
    assert await connection.fetchval("SELECT horizon_days FROM tidegate.job") is None
    assert await days_past_horizon(connection) == []


async def test_part_of_a_sweep_is_left_to_the_next_round(
    pool: Pool, connection: Connection, weekly: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The days ahead must not wait for hours behind the sweep of a part of a hundred gigabytes."""
    monkeypatch.setattr(upkeep_module, "_SWEEP_SECONDS", 0.0)
    await take(pool, weekly, [key(CONSTANT_BUCKET)], on=TODAY - timedelta(days=30))
    await keeper(pool).round()
    assert await connection.fetchval("SELECT count(*) FROM tidegate.inbox") == 1
