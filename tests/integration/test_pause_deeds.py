"""Pausing and resuming as deeds: who may, what is written down, what repeats and overlaps come to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from consumers.intents import Intents
from tests.integration.pausing import OPERATOR, Bench
from tidegate.jobs.intents import Paused, Resumed, pause, resume, standing_intents
from tidegate.jobs.selection import Selection, select
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Denied, Misconfigured
from tidegate_kernel.event import JobId
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool

BOB = Actor("bob", Role.OPERATOR)
SOON = timedelta(minutes=5)


@pytest.fixture
def bench(pool: Pool, database: str) -> Bench:
    return Bench(pool, database)


async def stop(
    bench: Bench, selection: Selection, *, actor: Actor = OPERATOR, lasting: timedelta | None = None
) -> Sequence[Paused]:
    return await pause(bench.pool, actor, selection, reason="looking", lasting=lasting)


async def go(bench: Bench, selection: Selection, *, actor: Actor = OPERATOR) -> Sequence[Resumed]:
    return await resume(bench.pool, actor, selection, reason="")


async def audit(bench: Bench) -> list[asyncpg.Record]:
    rows: list[asyncpg.Record] = await bench.pool.fetch(
        "SELECT actor, action, target, reason, outcome, tenant, parameters FROM tidegate.audit ORDER BY seq"
    )
    return rows


async def test_a_pause_of_what_is_paused_names_the_one_that_stands(bench: Bench) -> None:
    """The second operator learns that the first was there; the job has one pause, and one resume ends it."""
    whole = select(bench.app, "notes")
    [first] = await stop(bench, whole)
    [again] = await stop(bench, whole, actor=BOB)

    assert (first.is_new, again.is_new) == (True, False)
    assert (again.pause.id, again.pause.actor) == (first.pause.id, "alice")
    [resumed] = await go(bench, whole)
    assert [each.id for each in resumed.ended] == [first.pause.id]


async def test_a_longer_pause_is_added_to_a_shorter_one(bench: Bench) -> None:
    """Who asks for four hours must not be told that it is paused already, for two; nor may a shorter one shorten."""
    whole = select(bench.app, "notes")
    [short] = await stop(bench, whole, lasting=SOON)
    [longer] = await stop(bench, whole, actor=BOB, lasting=2 * SOON)
    [shorter] = await stop(bench, whole, lasting=SOON / 2)

    assert (longer.is_new, [each.id for each in longer.earlier]) == (True, [short.pause.id])
    assert (shorter.is_new, shorter.pause.actor) == (False, "bob")
    [resumed] = await go(bench, whole)
    assert len(resumed.ended) == 2


async def test_resume_ends_the_same_part_and_tells_what_still_rests(bench: Bench) -> None:
    """Resuming the job must not undo the pause of a tenant that somebody else decided; nor stay silent about it."""
    await stop(bench, select(bench.app, "notes"))
    await stop(bench, select(bench.app, "notes", tenant="acme"), actor=BOB)
    await stop(bench, select(bench.app, "notes", place="1"))

    [resumed] = await go(bench, select(bench.app, "notes"))

    assert [(each.tenant, each.partition) for each in resumed.ended] == [(None, None)]
    assert [(each.tenant, each.partition) for each in resumed.remaining] == [("acme", None), (None, 1)]
    [tenant] = await go(bench, select(bench.app, "notes", tenant="acme"))
    assert [each.actor for each in tenant.ended] == ["bob"]


async def test_nothing_to_resume_is_an_answer(bench: Bench) -> None:
    """Typing it twice is no error."""
    [resumed] = await go(bench, select(bench.app, "notes"))
    assert (resumed.ended, resumed.remaining) == ([], [])


async def test_all_jobs_at_once_leave_what_was_paused_by_name(bench: Bench) -> None:
    """After the database has moved, the job that was paused for another reason stays so; by name all of it ends."""
    every = select(bench.app, None, all_jobs=True)
    await stop(bench, select(bench.app, "notes"), actor=BOB)
    paused = await stop(bench, every)
    assert [(each.job, each.is_new) for each in paused] == [("notes", True), ("index", True)]

    notes, index = await go(bench, every)

    assert [each.actor for each in notes.remaining] == ["bob"]
    assert (len(notes.ended), len(index.ended), list(index.remaining)) == (1, 1, [])
    await stop(bench, every)
    [by_name] = await go(bench, select(bench.app, "notes"))
    assert (len(by_name.ended), list(by_name.remaining)) == (2, [])


async def test_an_expired_pause_is_none(bench: Bench) -> None:
    """It is not standing, not resumed, and its row says that it ended by itself."""
    whole = select(bench.app, "notes")
    await stop(bench, whole, lasting=timedelta(milliseconds=50))
    await asyncio.sleep(0.1)  # the database's clock decides

    async with bench.pool.acquire() as connection:
        assert await standing_intents(connection, "notes") == {}
    [resumed] = await go(bench, whole)
    assert list(resumed.ended) == []
    [row] = await bench.pool.fetch("SELECT ended_by, ended_at = until AS in_time FROM tidegate.intent")
    assert (row["ended_by"], row["in_time"]) == ("expiry", True)


@pytest.mark.parametrize(
    "actor",
    [
        pytest.param(Actor("nobody"), id="without a token"),
        pytest.param(Actor("vera", Role.VIEWER), id="a viewer"),
        pytest.param(Actor("tom", Role.OPERATOR, tenants=frozenset({"acme"})), id="of another scope"),
    ],
)
async def test_a_pause_without_permission_is_refused_and_audited(bench: Bench, actor: Actor) -> None:
    """A pause stops a business: who may not must not, and the attempt is kept."""
    with pytest.raises(Denied):
        await stop(bench, select(bench.app, "notes"), actor=actor)

    assert await bench.pool.fetchval("SELECT count(*) FROM tidegate.intent") == 0
    [row] = await audit(bench)
    assert (row["actor"], row["action"], row["target"], row["outcome"]) == (
        actor.name,
        "job:pause",
        "notes.notes",
        "denied",
    )


async def test_a_tenants_operator_pauses_that_tenant_only(bench: Bench) -> None:
    """G12: a scoped token stops its own tenant's events."""
    tom = Actor("tom", Role.OPERATOR, tenants=frozenset({"acme"}))
    await stop(bench, select(bench.app, "notes", tenant="acme"), actor=tom)
    with pytest.raises(Denied):
        await stop(bench, select(bench.app, "notes", tenant="beta"), actor=tom)

    assert [(row["tenant"], row["outcome"]) for row in await audit(bench)] == [("acme", "done"), ("beta", "denied")]


async def test_a_pause_without_a_reason_is_refused(bench: Bench) -> None:
    """Whoever finds it at night has nobody to ask."""
    with pytest.raises(Denied, match="--reason"):
        await pause(bench.pool, OPERATOR, select(bench.app, "notes"), reason="  ")


async def test_pauses_and_their_ends_are_written_down(bench: Bench) -> None:
    """Who did it before me."""
    part = select(bench.app, "notes", place="notes:1")
    await stop(bench, part, lasting=SOON)
    await go(bench, part, actor=BOB)

    told: list[tuple[Any, ...]] = [(r["actor"], r["action"], r["reason"], r["outcome"]) for r in await audit(bench)]
    assert told == [("alice", "job:pause", "looking", "done"), ("bob", "job:resume", "", "done")]
    assert await bench.pool.fetchval("SELECT ended_by FROM tidegate.intent") == "bob"


async def test_a_job_can_be_paused_before_its_first_start(bench: Bench) -> None:
    """A release goes out paused, and begins when somebody looks at it."""
    [paused] = await stop(bench, select(bench.app, "index"))
    number = await bench.pool.fetchval("SELECT id FROM tidegate.job WHERE code = 'index'")
    read = Intents(bench.pool, SystemClock(), job=JobId(number))
    await read.read()
    assert [each.id for each in read.standing()] == [paused.pause.id]


async def test_a_pause_has_a_longest_time(bench: Bench) -> None:
    """A typing error of four digits is no pause until the year 20000."""
    with pytest.raises(Misconfigured, match="up to 366 days"):
        await stop(bench, select(bench.app, "notes"), lasting=timedelta(days=4000))


async def test_a_pause_tells_of_the_backfill_that_goes_on(bench: Bench) -> None:
    """Pauses hold back live consumers: whoever wants all of it to rest must know what does not."""
    [first] = await stop(bench, select(bench.app, "notes"))
    await bench.pool.execute(
        "INSERT INTO tidegate.backfill (job, source, holder, lease_until) "
        "SELECT id, 'beginning', 'host:1', now() + interval '15 s' FROM tidegate.job WHERE code = 'notes'"
    )
    [second] = await stop(bench, select(bench.app, "notes"))
    assert (first.backfill, second.backfill) == (None, 1)
