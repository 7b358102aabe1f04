"""SQLAlchemy sessions in handlers: one transaction with the claim, and no way to end it."""

from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import JSON, func, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tests.integration.road import MakeRoad, record
from tests.integration.test_pipeline_commands import Note, effects, job, settle
from tidegate import Context, Rejected, RetryPolicy, handle
from tidegate.sqlalchemy import HandlerSession, session
from tidegate_kernel.postgres import Pool


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effect"

    id: Mapped[str] = mapped_column(primary_key=True)
    n: Mapped[int]


class Fact(Base):
    __tablename__ = "fact"

    id: Mapped[str] = mapped_column(primary_key=True)
    told: Mapped[dict[str, Any]] = mapped_column(JSON)


@dataclass
class Seen:
    count: int | None = None
    told: dict[str, Any] | None = None


async def test_session_and_claim_commit_together(make_road: MakeRoad, pool: Pool) -> None:
    """What the session adds is there once; what it added for a rejected event is not; `ctx.db` sees it at once."""
    seen = Seen()

    async def keep(command: Note, ctx: Context[None]) -> None:
        async with session(ctx) as opened:
            opened.add(Effect(id=command.id, n=command.n))
            await opened.flush()
            seen.count = await ctx.db.fetchval("SELECT count(*) FROM effect")
            assert await opened.scalar(select(func.count()).select_from(Effect)) == seen.count
        if command.n == 1:
            raise Rejected("not this one")

    road = await make_road(job(), [handle(Note, keep)])
    await road.handle([record(n, b'{"n":%d}' % n) for n in range(3)])
    outcome = await road.handle([record(3, b'{"n":0}', id="e0")])

    assert outcome.duplicates == 1
    assert await effects(pool) == ["e0", "e2"]


async def test_savepoint_of_a_session_rolls_back_alone(make_road: MakeRoad, pool: Pool) -> None:
    """`begin_nested` works as SQLAlchemy's users expect, inside the handler's transaction."""

    async def try_twice(command: Note, ctx: Context[None]) -> None:
        async with session(ctx) as opened:
            with pytest.raises(ZeroDivisionError):
                await _fail_in_a_savepoint(opened)
            opened.add(Effect(id=command.id, n=command.n))

    road = await make_road(job(), [handle(Note, try_twice)])
    await road.handle([record(0)])

    assert await effects(pool) == ["e0"]


async def test_json_columns_come_back_as_they_went(make_road: MakeRoad, pool: Pool) -> None:
    """Without the stock dialect's codecs, JSON still travels both ways."""
    await pool.execute("CREATE TABLE fact (id text PRIMARY KEY, told json)")
    seen = Seen()

    async def keep(command: Note, ctx: Context[None]) -> None:
        async with session(ctx) as opened:
            opened.add(Fact(id=command.id, told={"n": [command.n]}))
            await opened.flush()
            opened.expunge_all()
            found = await opened.get(Fact, command.id)
            assert found is not None
            seen.told = found.told

    road = await make_road(job(), [handle(Note, keep)])
    await road.handle([record(0)])

    assert seen.told == {"n": [1]}


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_session_cannot_end_the_transaction(make_road: MakeRoad, pool: Pool, ending: str) -> None:
    """It would separate the effects from the claim, so it is refused with the remedy."""

    async def end(command: Note, ctx: Context[None]) -> None:
        async with session(ctx) as opened:
            opened.add(Effect(id=command.id, n=command.n))
            await getattr(opened, ending)()

    road = await make_road(job(retry=RetryPolicy(unexpected_attempts=1)), [handle(Note, end)])
    await settle(road, [record(0)])

    assert await effects(pool) == []
    assert "must not" in (await road.dead_letters())[0]["error_message"]


@pytest.mark.parametrize("statement", ["COMMIT", "/* now */ commit", "-- now\nCOMMIT"])
async def test_statement_cannot_end_the_transaction_either(make_road: MakeRoad, pool: Pool, statement: str) -> None:
    """The way round `commit()` is closed as well."""

    async def end(command: Note, ctx: Context[None]) -> None:
        async with session(ctx) as opened:
            opened.add(Effect(id=command.id, n=command.n))
            await opened.flush()
            await opened.execute(text(statement))

    road = await make_road(job(retry=RetryPolicy(unexpected_attempts=1)), [handle(Note, end)])
    await settle(road, [record(0)])

    assert await effects(pool) == []
    assert len(await road.dead_letters()) == 1


async def test_collision_in_a_session_is_nobodys_fault(make_road: MakeRoad, pool: Pool) -> None:
    """SQLAlchemy wraps the driver's errors; a deadlock inside must still be told from a defect of the handler."""
    tries = 0

    async def collide(command: Note, ctx: Context[None]) -> None:
        nonlocal tries
        tries += 1
        async with session(ctx) as opened:
            if tries <= 5:
                await opened.execute(text("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END $$"))
            opened.add(Effect(id=command.id, n=command.n))

    road = await make_road(job(retry=RetryPolicy(attempts=2, unexpected_attempts=2)), [handle(Note, collide)])
    await settle(road, [record(0)])

    assert await effects(pool) == ["e0"]
    assert await road.dead_letters() == []


async def _fail_in_a_savepoint(opened: HandlerSession) -> None:
    async with opened.begin_nested():
        opened.add(Effect(id="lost", n=1))
        await opened.flush()
        raise ZeroDivisionError
