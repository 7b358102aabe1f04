"""The DLQ topic takes nothing: the source goes on, its letters wait in Postgres, and a bound makes the job rest."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from prometheus_client import Gauge
from structlog.testing import capture_logs

from consumers.backlog import LetterBacklog
from consumers.loop import ConsumerLoop
from consumers.ownership import Hold
from consumers.presence import State
from tests.integration.notes import Note, make_loop, noted, noted_ids, running, stands_at, until
from tidegate import Context, Rejected
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel import logs
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool
from tidegate_kernel.queries import load_queries

P0 = TopicPartition("notes", 0)
DLQ = "notes.notes.dlq"


async def refuse_odd(command: Note, ctx: Context[None]) -> None:
    if int(command.id[1:]) % 2:
        raise Rejected("odd")
    await ctx.db.execute("INSERT INTO effect (id) VALUES ($1)", command.id)


@pytest.fixture
async def broker(pool: Pool) -> MemoryBroker:
    """Sixty notes, every other one of which will be a letter. There is no relay: no letter reaches its topic."""
    made = MemoryBroker()
    made.create_topic("notes", 1)
    assert not any(await made.writer().write([noted("notes", n) for n in range(60)]))
    return made


async def _loop(pool: Pool, dsn: str, broker: MemoryBroker, most: int) -> ConsumerLoop:
    return await make_loop(
        pool, dsn, broker, "notes", handler=refuse_odd, batch_size=4, settings={"letter_backlog": most}
    )


async def _rests(loop: ConsumerLoop) -> bool:
    held = loop.holdings.get(P0)
    return held is not None and Hold.BACKLOG in held.holds


async def _waiting(pool: Pool) -> int:
    return int(await pool.fetchval("SELECT count(*) FROM tidegate.outbox WHERE topic = $1", DLQ))


async def _relayed(pool: Pool, count: int) -> None:
    """The topic has taken the oldest of them."""
    oldest = await pool.fetch("SELECT id FROM tidegate.outbox WHERE topic = $1 ORDER BY id LIMIT $2", DLQ, count)
    await pool.execute("DELETE FROM tidegate.outbox WHERE id = ANY ($1)", [row["id"] for row in oldest])


async def test_source_goes_on_while_the_dlq_topic_takes_nothing(
    database: str, pool: Pool, broker: MemoryBroker
) -> None:
    """Case 41: the row in Postgres is the letter; below the bound an absent topic costs nobody anything."""
    async with running(await _loop(pool, database, broker, most=31)):
        await stands_at(pool, 60)

    assert await _waiting(pool) == 30
    assert len(await noted_ids(pool)) == 30


async def test_job_rests_at_the_bound_also_under_a_new_owner_and_goes_on_below_it(
    database: str, pool: Pool, broker: MemoryBroker
) -> None:
    """Case 41: a topic that is away for a day must not fill the database; nobody has to restart anything."""
    for n in range(20):
        await _put_letter(pool, n)
    for _ in range(2):
        loop = await _loop(pool, database, broker, most=20)
        async with running(loop):
            await until(partial(_rests, loop))
            assert await noted_ids(pool) == []
    loop = await _loop(pool, database, broker, most=20)
    with capture_logs() as told:
        async with running(loop):
            await until(partial(_said, pool, State.BACKLOG))
            await _relayed(pool, 10)
            assert await _rests(loop)
            await _relayed(pool, 1)
            await until(partial(_rests_no_more, loop))
    assert [each["why"] for each in told if each["event"] == logs.PARTITION_PAUSED] == [
        f"topic '{DLQ}' has not taken 20 dead letters, which wait in the outbox"
    ]


async def test_bound_is_obeyed_within_seconds_by_a_running_job(database: str, pool: Pool, broker: MemoryBroker) -> None:
    """Not the next restart but the next look finds the backlog."""
    loop = await _loop(pool, database, broker, most=40)
    async with running(loop):
        await stands_at(pool, 60)
        for n in range(10):
            await _put_letter(pool, n)
        await until(partial(_rests, loop))
        assert not any(await broker.writer().write([noted("notes", n) for n in range(60, 80)]))
        await until(partial(_said, pool, State.BACKLOG))
        assert len(await noted_ids(pool)) == 30


async def test_letters_of_another_job_and_events_do_not_make_a_job_rest(pool: Pool) -> None:
    """One job's broken topic must not stop its neighbours."""
    await _put_letter(pool, 1, topic="notes.other.dlq")
    backlog = LetterBacklog(pool, topic=DLQ, most=1, is_full=_gauge())
    await backlog.read()
    assert not backlog.is_full


async def test_metric_is_1_while_the_backlog_is_full(pool: Pool) -> None:
    """Case 41: an alert rests on it; half of the bound ends it, or it would flap with every batch."""
    gauge = _gauge()
    backlog = LetterBacklog(pool, topic=DLQ, most=4, is_full=gauge)
    seen = []
    for step in (3, 1, -1, -1, -1, 2):
        for n in range(step):
            await _put_letter(pool, n)
        await _relayed(pool, max(0, -step))
        await backlog.read()
        seen.append((await _waiting(pool), gauge._value.get()))
    assert seen == [(3, 0), (4, 1), (3, 1), (2, 1), (1, 0), (3, 0)]


async def test_a_look_reads_no_more_than_the_bound(pool: Pool) -> None:
    """It is asked once a second by every process, also while a million letters wait."""
    await pool.execute(
        "INSERT INTO tidegate.outbox (kind, topic) SELECT 'dead_letter', $1 FROM generate_series(1, 20000)", DLQ
    )
    await pool.execute("ANALYZE tidegate.outbox")
    query = load_queries("consumers")["letters_wait"]
    plan = json.loads(await pool.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", DLQ, 99))[0]["Plan"]
    scans = [node for node in _below(plan) if node.get("Relation Name") == "outbox"]
    assert [(node["Actual Rows"] <= 100, node["Node Type"] != "Seq Scan") for node in scans] == [(True, True)]


def _below(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", []) for node in _below(child))]


def _gauge() -> Gauge:
    return Metrics().backlog_full.labels("notes")


async def _rests_no_more(loop: ConsumerLoop) -> bool:
    return not await _rests(loop)


async def _said(pool: Pool, state: State) -> bool:
    return bool(await pool.fetchval("SELECT state FROM tidegate.presence") == state)


async def _put_letter(pool: Pool, n: int, *, topic: str = DLQ) -> None:
    await pool.execute(
        "INSERT INTO tidegate.outbox (kind, topic, key) VALUES ('dead_letter', $1, $2)", topic, str(n).encode()
    )
