"""A flood of dead letters on a real Postgres: it stops the topic in every worker until somebody releases it."""

from __future__ import annotations

from functools import partial

import pytest

from consumers.flood import FloodLimit
from consumers.loop import ConsumerLoop
from consumers.ownership import Hold
from tests.integration.notes import Note, make_loop, noted, noted_ids, running, stands_at, until
from tidegate import App, CloudEvents, ConsumerJob, Context, Json, Rejected, Topic
from tidegate.jobs.floods import plan_release, read_floods, release_flood
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.errors import Denied, Misconfigured
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool

LIMIT = FloodLimit(run_length=5)
P0 = TopicPartition("notes", 0)
OPERATOR = Actor("op", Role.OPERATOR)

# As the notes' service declares it; only its names matter here.
JOB = ConsumerJob(
    code="notes",
    topics=[Topic("notes", format=Json(), envelope=CloudEvents())],
    unlisted="skip",
    runbook="-",
    events=[],
)


async def refuse_small(command: Note, ctx: Context[None]) -> None:
    if int(command.id[1:]) < 20:
        raise Rejected("too small")
    await ctx.db.execute("INSERT INTO effect (id) VALUES ($1)", command.id)


@pytest.fixture
async def broker(pool: Pool) -> MemoryBroker:
    made = MemoryBroker()
    made.create_topic("notes", 1)
    assert not any(await made.writer().write([noted("notes", n) for n in range(30)]))
    return made


async def _loop(pool: Pool, dsn: str, broker: MemoryBroker) -> ConsumerLoop:
    return await make_loop(pool, dsn, broker, "notes", handler=refuse_small, batch_size=5, flood=LIMIT)


async def _letters(pool: Pool) -> int:
    return int(await pool.fetchval("SELECT count(*) FROM tidegate.dead_letter") or 0)


async def _is_stopped(loop: ConsumerLoop) -> bool:
    held = loop.holdings.get(P0)
    return held is not None and Hold.FLOOD in held.holds


async def test_a_flood_stops_the_topic_until_it_is_released(database: str, pool: Pool, broker: MemoryBroker) -> None:
    """Case 49: five letters and not twenty; a restart does not start it again; released, all the rest is handled."""
    for _ in range(2):
        loop = await _loop(pool, database, broker)
        async with running(loop):
            await until(partial(_is_stopped, loop))
        assert await _letters(pool) == 5
    await _release(pool, broker, until={0: 20})
    async with running(await _loop(pool, database, broker)):
        await stands_at(pool, 30)
    assert await noted_ids(pool) == [f"e{n}" for n in range(20, 30)]
    assert await _letters(pool) == 20


async def test_a_running_worker_goes_on_after_the_release(database: str, pool: Pool, broker: MemoryBroker) -> None:
    """Nobody has to restart anything."""
    loop = await _loop(pool, database, broker)
    async with running(loop):
        await until(partial(_is_stopped, loop))
        await _release(pool, broker, until=None)
        await stands_at(pool, 30)


async def test_release_is_permitted_planned_and_audited(database: str, pool: Pool, broker: MemoryBroker) -> None:
    """It is somebody's word that letters up to there are foreseen."""
    loop = await _loop(pool, database, broker)
    async with running(loop):
        await until(partial(_is_stopped, loop))
        with pytest.raises(Denied):
            await _release(pool, broker, until=None, actor=Actor("viewer", Role.VIEWER))
        with pytest.raises(Misconfigured, match="has no offset 31"):
            await _release(pool, broker, until={0: 31})
        assert await _is_stopped(loop)
        await _release(pool, broker, until={0: 5})
    rows = await pool.fetch("SELECT actor, outcome FROM tidegate.audit WHERE action = 'flood:release' ORDER BY seq")
    assert [tuple(row) for row in rows] == [("viewer", "denied"), ("op", "done")]


async def _release(pool: Pool, broker: MemoryBroker, *, until: dict[int, int] | None, actor: Actor = OPERATOR) -> None:
    app = App(service="notes", owner="tests", jobs=[])
    async with pool.acquire() as connection, broker.reader([]) as reader:
        floods = await read_floods(connection, app, JOB)
        plan = await plan_release(reader, JOB, floods, topic=None, until=until)
        await release_flood(connection, actor, app, JOB, plan, reason="known")
