"""Decided letters leave by policy, beside settles; what nobody has decided about stays whatever the clock says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from dlq.forgetting import upkeep as upkeep_module
from dlq.forgetting.upkeep import LetterUpkeep
from dlq.states import FINAL, UNRESOLVED, LetterState
from tidegate.migrations.grants import Duty, grant
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Connection, Pool
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries("dlq.forgetting")
KEPT = timedelta(days=90)
_LETTERS = """
    INSERT INTO tidegate.dead_letter (
        id, job, topic, topic_id, partition, "offset", value, reason, error_class, error_message, fingerprint, attempts,
        state, decided_at, first_failed_at
    )
    SELECT
        gen_random_uuid(), $1, 'orders', '00000000-0000-0000-0000-000000000007', $2, n, 'x', 'rejected', 'Rejected', '',
        '', 1, $3, now() - $4::interval, now() - interval '200 days'
    FROM generate_series(1, $5) AS n
"""


@pytest.fixture
async def connection(pool: Pool) -> AsyncIterator[Connection]:
    async with pool.acquire() as opened:
        yield opened


@pytest.fixture
async def job(pool: Pool) -> int:
    return await make_job(pool, "tests", "ledger")


async def make_job(pool: Pool, service: str, code: str) -> int:
    number: int = await pool.fetchval(
        "INSERT INTO tidegate.job (service, code, claim_rule) VALUES ($1, $2, 'v1') RETURNING id", service, code
    )
    return number


async def keep(
    pool: Pool,
    job: int,
    state: LetterState,
    *,
    ago: timedelta | None = KEPT + timedelta(hours=1),
    count: int = 1,
    partition: int = 0,
) -> None:
    """The job has letters in `state`, decided `ago` by the database's clock."""
    await pool.execute(_LETTERS, job, partition, state, ago, count)


def keeper(pool: Pool, *, kept: timedelta | None = KEPT, metrics: Metrics | None = None) -> LetterUpkeep:
    return LetterUpkeep(pool, SystemClock(), service="tests", kept=kept, metrics=metrics or Metrics())


async def states(pool: Pool) -> list[str]:
    return [row["state"] for row in await pool.fetch("SELECT state FROM tidegate.dead_letter ORDER BY state")]


async def test_decided_letters_leave_after_their_time_and_no_earlier(pool: Pool, job: int) -> None:
    """What was decided within the time is what somebody still asks about; past it, it is only somebody's data."""
    for place, state in enumerate(FINAL):
        await keep(pool, job, state, partition=place)
        await keep(pool, job, state, partition=place + 10, ago=KEPT - timedelta(hours=1))
    metrics = Metrics()

    await keeper(pool, metrics=metrics).round()

    assert await states(pool) == sorted(FINAL)
    assert await pool.fetchval("SELECT count(*) FROM tidegate.dead_letter WHERE partition < 10") == 0
    assert metrics.letters_expired.labels("ledger")._value.get() == len(FINAL)


async def test_what_nobody_has_decided_about_never_leaves(pool: Pool, job: int) -> None:
    """G1: a letter that blocks a key cannot vanish by the clock, with events parked behind it: its age is told."""
    for place, state in enumerate(UNRESOLVED):
        await keep(pool, job, state, partition=place, ago=None)
        # Failed again after it had been put right: its old decision does not count.
        await keep(pool, job, state, partition=place + 10)
    metrics = Metrics()

    await keeper(pool, metrics=metrics).round()
    await keeper(pool, metrics=metrics).measure()

    assert len(await states(pool)) == 2 * len(UNRESOLVED)
    assert metrics.unresolved_letters.labels("ledger")._value.get() == 2 * len(UNRESOLVED)
    assert metrics.oldest_letter.labels("ledger")._value.get() == pytest.approx(200 * 86_400, abs=600)


async def test_never_keeps_all_of_them(pool: Pool, job: int) -> None:
    """Some services have to show for years what was discarded."""
    await keep(pool, job, LetterState.DISCARDED, ago=timedelta(days=4000))

    await keeper(pool, kept=None).round()

    assert await states(pool) == ["discarded"]


async def test_letters_of_another_service_are_its_own_affair(pool: Pool, job: int) -> None:
    """Two services in one database have two policies."""
    await keep(pool, await make_job(pool, "other", "ledger"), LetterState.RESOLVED)
    await keep(pool, job, LetterState.RESOLVED)

    await keeper(pool).round()

    assert await pool.fetchval(
        "SELECT service FROM tidegate.dead_letter AS d JOIN tidegate.job AS j ON j.id = d.job"
    ) == ("other")


async def test_lines_of_runs_go_with_their_letter_and_corrections_stay(pool: Pool, job: int) -> None:
    """A backfill in a year still passes by what was discarded. The letter of an edit stays: by it the edit is found."""
    await keep(pool, job, LetterState.DISCARDED, count=2)
    await keep(pool, job, LetterState.RESOLVED, count=1, partition=1)
    await pool.execute(
        """
        WITH run AS (
            INSERT INTO tidegate.replay (job, kind, state, digest, letters, reason, asked_by)
            VALUES ($1, 'discard', 'done', '', 2, '-', 'anna') RETURNING id
        )
        INSERT INTO tidegate.replay_letter (replay, letter, was, outcome)
        SELECT r.id, d.id, 'dead', 'discarded' FROM run AS r, tidegate.dead_letter AS d WHERE d.partition = 0;
        """,
        job,
    )
    await pool.execute(
        """
        INSERT INTO tidegate.correction (
            job, topic, topic_id, partition, "offset", kind, value, letter, reason, made_by
        )
        SELECT
            d.job, d.topic, d.topic_id, d.partition, d."offset",
            CASE d.state WHEN 'resolved' THEN 'edit' ELSE 'discard' END, NULL, d.id, '-', 'anna'
        FROM tidegate.dead_letter AS d
        """
    )

    await keeper(pool).round()

    assert await states(pool) == ["resolved"]
    assert await pool.fetchval("SELECT count(*) FROM tidegate.replay_letter") == 0
    assert await pool.fetchval("SELECT count(*) FROM tidegate.correction") == 3


async def test_erased_letter_stays(pool: Pool, job: int) -> None:
    """It holds nothing any more, and while it is there no import from Kafka brings back what was in it."""
    await keep(pool, job, LetterState.DISCARDED)
    await pool.execute("UPDATE tidegate.dead_letter SET erased_at = now()")

    await keeper(pool).round()

    assert await states(pool) == ["discarded"]


async def test_more_than_a_chunk_goes_in_one_round(pool: Pool, job: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that first sets a policy has years of them; each chunk is a transaction of its own."""
    monkeypatch.setattr(upkeep_module, "_CHUNK", 10)
    await keep(pool, job, LetterState.RESOLVED, count=35)

    await keeper(pool).round()

    assert await states(pool) == []


async def test_two_workers_at_once_neither_wait_nor_count_twice(pool: Pool, job: int) -> None:
    """Every worker keeps house: what one has in hand, the other passes by."""
    await keep(pool, job, LetterState.RESOLVED, count=700)
    metrics = [Metrics(), Metrics()]

    await asyncio.gather(*(keeper(pool, metrics=each).round() for each in metrics))

    assert sum(each.letters_expired.labels("ledger")._value.get() for each in metrics) == 700
    assert await states(pool) == []


async def test_letter_in_use_is_not_waited_for(pool: Pool, job: int) -> None:
    """A settle or a run that holds a letter is never held up by upkeep, nor upkeep by it."""
    await keep(pool, job, LetterState.RESOLVED, count=3)
    async with pool.acquire() as settling, settling.transaction():
        await settling.execute('SELECT FROM tidegate.dead_letter WHERE "offset" = 2 FOR UPDATE')

        async with asyncio.timeout(5):
            await keeper(pool).round()

        assert await states(pool) == ["resolved"]
    await keeper(pool).round()
    assert await states(pool) == []


async def test_table_that_is_being_migrated_is_left_for_the_next_round(pool: Pool, job: int) -> None:
    """Waiting in line before a table lock would make every settle behind it wait too: half a second, no longer."""
    await keep(pool, job, LetterState.RESOLVED)
    async with pool.acquire() as migrating, migrating.transaction():
        await migrating.execute("LOCK TABLE tidegate.dead_letter IN SHARE MODE")
        async with asyncio.timeout(5):
            await keeper(pool).round()
    assert await states(pool) == ["resolved"]

    await keeper(pool).round()
    assert await states(pool) == []


async def test_role_of_a_worker_lets_them_go_and_may_delete_none(pool: Pool, connection: Connection, job: int) -> None:
    """Least privilege: through the function alone, which drops nothing younger than a day and nothing undecided."""
    await keep(pool, job, LetterState.RESOLVED)
    await keep(pool, job, LetterState.DEAD, ago=None, partition=1)
    role = f"tide_{job}_{id(pool) % 10_000}"
    await connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'tests'")
    try:
        await grant(connection, {role: Duty.WORKER})
        await connection.execute(f"SET SESSION AUTHORIZATION {role}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("DELETE FROM tidegate.dead_letter")
        with pytest.raises(asyncpg.InvalidParameterValueError):
            await connection.fetch(_QUERIES["drop_decided"], "tests", timedelta(hours=23), 10)
        dropped = await connection.fetch(_QUERIES["drop_decided"], "tests", KEPT, 10)
    finally:
        await connection.execute("RESET SESSION AUTHORIZATION")
        await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")

    assert [tuple(row) for row in dropped] == [("ledger", 1)]
    assert await states(pool) == ["dead"]


async def test_upkeep_reads_no_more_than_what_leaves(pool: Pool, connection: Connection, job: int) -> None:
    """Every five minutes in every worker: by the index of decisions, and for the gauge from an index alone."""
    await keep(pool, job, LetterState.RESOLVED, count=20_000, ago=timedelta(days=10))
    await keep(pool, job, LetterState.DEAD, count=2_000, ago=None, partition=1)
    await keep(pool, job, LetterState.DISCARDED, count=30, partition=2)
    await connection.execute("VACUUM (ANALYZE) tidegate.dead_letter")
    body: str = await connection.fetchval(
        "SELECT prosrc FROM pg_proc WHERE oid = 'tidegate.drop_decided_letters(text, interval, integer)'::regprocedure"
    )
    statement = body[body.index("WITH due") : body.index(";\nEND")]
    for name, value in (("of_service", "'tests'"), ("kept", "interval '90 days'"), ("most", "500")):
        statement = statement.replace(name, value)

    drop = await plan(connection, statement)
    gauge = await plan(connection, _QUERIES["unresolved_letters"], "tests", list(UNRESOLVED))

    assert "dead_letter_by_decision" in drop
    assert '"Seq Scan", "Parallel Aware": false, "Async Capable": false, "Relation Name": "dead_letter"' not in drop
    assert "dead_letter_by_fingerprint" in gauge
    assert "Index Only Scan" in gauge


async def plan(connection: Connection, statement: str, *arguments: Any) -> str:
    """The plan as one line of JSON."""
    return json.dumps(json.loads(await connection.fetchval(f"EXPLAIN (FORMAT JSON) {statement}", *arguments)))
